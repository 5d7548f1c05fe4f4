"""Words for what a request's time went to, and for what would help."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.messages import EngineTimeline
from octavo.observability.request_record import Cause, RequestRecord, longest_hold


def sentences(
    kind: Cause, record: RequestRecord, total_s: float, parts: Mapping[str, float]
) -> tuple[str, str]:
    """One sentence of cause, one of remedy."""
    shares = _Shares(total_s, parts)
    timeline = record.timeline
    match kind:
        case Cause.QUEUE if timeline is not None:
            return _queue(timeline, shares)
        case Cause.MEMORY if timeline is not None:
            return (
                f"It waited {shares.of('queue', 'passed_over')} for free KV blocks: "
                f"{_ahead(timeline)}, and there are {timeline.num_blocks} blocks in all.",
                "Give the cache more memory (--kv-cache-memory-bytes), ask for fewer tokens (max_tokens, shorter "
                "prompts), or send fewer requests at once.",
            )
        case Cause.PREEMPTION if timeline is not None:
            return (
                f"It was preempted {_times(record.num_preemptions)} to make room for others, and lost "
                f"{shares.of('preempted')}: waiting, and computing {timeline.num_recomputed_tokens} tokens again.",
                "Give the cache more memory (--kv-cache-memory-bytes), run fewer requests together "
                "(--max-num-seqs), or give this one a lower number as its priority.",
            )
        case Cause.COLD_PREFILL if timeline is not None:
            why, remedy = _miss(record, timeline)
            return (
                f"Computing {timeline.num_computed_tokens} of its {record.num_prompt_tokens} prompt tokens took "
                f"{shares.of('prefill')}: {why}.",
                remedy,
            )
        case Cause.ENGINE_DIED:
            return (
                f"The engine process died meanwhile, and another one went on with the request: {shares.of('replayed')} "
                "went by before.",
                "Look for the end of the engine process in the server's log.",
            )
        case Cause.SLOW_CLIENT:
            return (
                f"The client took its time: the request waited for it {shares.of('client')}.",
                "Read the stream as it comes, or ask for the answer in one piece (stream: false).",
            )
        case Cause.NOTHING_UNUSUAL if timeline is not None:
            return _usual(record, timeline, shares)
        case _:
            return (
                "The engine told nothing of this request: it ended before it got there.",
                "Look for its error in the answer and in the server's log.",
            )


def _queue(timeline: EngineTimeline, shares: _Shares) -> tuple[str, str]:
    waited = f"It waited {shares.of('queue', 'passed_over')}"
    match longest_hold(timeline):
        case "slots":
            return (
                f"{waited} for a free slot: {_ahead(timeline)}, and at most {timeline.max_num_seqs} run together.",
                "Raise --max-num-seqs, send fewer requests at once, or give this one a lower number as its priority.",
            )
        case "tokens":
            return (
                f"{waited} while steps computed the prompts of others: {_ahead(timeline)}.",
                "Let prompts share what they have in common, or raise --max-num-batched-tokens.",
            )
        case _:
            return (
                f"{waited} for the step at hand to end: {_ahead(timeline)}.",
                "Lower --max-num-batched-tokens, so that steps are shorter.",
            )


def _miss(record: RequestRecord, timeline: EngineTimeline) -> tuple[str, str]:
    """Why the prompt was not cached, and what to do."""
    if record.has_prompt_logprobs:
        return (
            "prompt_logprobs need all of it",
            "Do without prompt_logprobs where they are not needed.",
        )
    at = f"from token {timeline.miss_at} on" + (
        f" ({record.miss_text!r})" if record.miss_text else ""
    )
    match timeline.miss_reason:
        case "diverged":
            others = f", where others have {record.others_text!r}" if record.others_text else ""
            return (
                f"{at} it differs from what is cached{others}",
                "Put what differs between requests (dates, ids, names) behind what they share.",
            )
        case "evicted":
            return (
                f"{at} it had been cached, and its memory was needed for others",
                "Give the cache more memory (--kv-cache-memory-bytes).",
            )
        case "salt":
            return (
                f"{at} it is cached under another cache_salt only",
                "Use one cache_salt for requests that may share a cache.",
            )
        case "disabled":
            return (
                "the prefix cache is off",
                "Start without --no-enable-prefix-caching.",
            )
        case "cold":
            return (
                f"{at} nobody had sent this text before",
                "Send what requests share once beforehand, and keep it at the front of every prompt.",
            )
        case _:
            return (
                "nothing of it was looked for in the cache",
                "Send what requests share at the front of every prompt.",
            )


def _usual(record: RequestRecord, timeline: EngineTimeline, shares: _Shares) -> tuple[str, str]:
    decode_s = shares.parts["decode"]
    rate = f" at {record.num_output_tokens / decode_s:.1f} tok/s" if decode_s > 0 else ""
    beside = (
        f", {timeline.num_decode_rows / timeline.num_decode_steps:.1f} requests a step"
        if timeline.num_decode_rows > timeline.num_decode_steps
        else ""
    )
    return (
        f"Nothing unusual: {record.num_output_tokens} tokens{rate}{beside}.",
        "A shorter answer, fewer requests at once or a smaller model would be faster.",
    )


class _Shares:
    """Words for parts of a time."""

    def __init__(self, total_s: float, parts: Mapping[str, float]) -> None:
        self.total_s = total_s
        self.parts = parts

    def of(self, *names: str) -> str:
        """The sum of some parts, and the whole."""
        return f"{_time(sum(self.parts[name] for name in names))} of {_time(self.total_s)}"


def _ahead(timeline: EngineTimeline) -> str:
    count = timeline.num_ahead
    ids = timeline.ahead_ids
    if not count:
        return "no other request was there when it came"
    named = f" ({', '.join(ids)}{', ...' if count > len(ids) else ''})" if ids else ""
    return f"{count} {'request was' if count == 1 else 'requests were'} there before it{named}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"
