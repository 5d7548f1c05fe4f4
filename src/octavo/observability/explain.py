"""Why a request took as long as it did: its time in parts, one sentence of cause, one of remedy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from octavo.observability.request_record import Cause, RequestRecord, longest_hold
from octavo.observability.sentences import sentences

_NOTABLE: Final = 0.2
"""Share of the time from which a wait is the cause."""

_NOTABLE_PREFILL: Final = 0.4
"""The same for the prompt, which has to be computed by somebody."""

_FEW_TOKENS: Final = 32
"""A prompt this short has nothing to gain from a cache."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where the time of a request went. `parts` are seconds by name and add up to `total_s`.

    replayed: in engines that died, and until others were there. queue: until its first step. preempted: waiting after a preemption, and computing again what was lost.
    passed_over: its prompt waited while steps computed others. prefill, decode: steps that computed it.
    front_end: outputs handed on and detokenised while no step ran for it. client: the reader took its time.
    other: what the parts leave.
    """

    request_id: str
    kind: Cause
    cause: str
    remedy: str
    total_s: float
    parts: dict[str, float]
    facts: dict[str, object]

    def as_json(self) -> dict[str, object]:
        """A JSON object."""
        return {
            "id": self.request_id,
            "object": "request.explanation",
            "kind": self.kind.value,
            "cause": self.cause,
            "remedy": self.remedy,
            "total_s": round(self.total_s, 6),
            "parts_s": {name: round(seconds, 6) + 0.0 for name, seconds in self.parts.items()},
            **self.facts,
        }


def explain(record: RequestRecord) -> Explanation:
    """Name what a request's time went to."""
    total_s, parts = _parts(record)
    kind = _kind(record, total_s, parts)
    cause, remedy = sentences(kind, record, total_s, parts)
    return Explanation(record.request_id, kind, cause, remedy, total_s, parts, _facts(record))


def time_parts(record: RequestRecord) -> dict[str, float]:
    """The parts alone: seconds by name."""
    return _parts(record)[1]


def _parts(record: RequestRecord) -> tuple[float, dict[str, float]]:
    """The whole time, and its parts in the order in which they come.

    arrived .. (replayed) .. added | queue .. decode, between | until .. told | told .. delivered
    """
    timeline = record.timeline
    told_s = record.told_s
    delivered_s = max(record.delivered_s, told_s)
    if timeline is None:
        total_s = delivered_s - record.arrived_s
        return total_s, {"client": delivered_s - told_s, "other": told_s - record.arrived_s}
    # An answer that the front end cut off goes on in the engine for a moment, or is still decoded there.
    engine_s = timeline.until_s if timeline.is_final else max(told_s, timeline.until_s)
    told_s = max(told_s, engine_s)
    delivered_s = max(delivered_s, told_s)
    paused_s = min(record.paused_s, timeline.between_s)
    parts = {
        "replayed": timeline.replayed_s,
        "queue": max(0.0, timeline.added_s - timeline.replayed_s - record.arrived_s)
        + timeline.queue_s,
        "preempted": timeline.preempted_s,
        "passed_over": timeline.passed_over_s,
        "prefill": timeline.prefill_s,
        "decode": timeline.decode_s + engine_s - timeline.until_s,
        "front_end": timeline.between_s - paused_s + told_s - engine_s,
        "client": delivered_s - told_s + paused_s,
    }
    total_s = delivered_s - record.arrived_s
    parts["other"] = total_s - sum(parts.values())
    return total_s, parts


def _kind(record: RequestRecord, total_s: float, parts: Mapping[str, float]) -> Cause:
    timeline = record.timeline
    if timeline is None and parts["client"] < _NOTABLE * total_s:
        return Cause.UNKNOWN
    queue_s = parts.get("queue", 0.0) + parts.get("passed_over", 0.0)
    lasted = {
        Cause.ENGINE_DIED: parts.get("replayed", 0.0),
        Cause.QUEUE: queue_s,
        Cause.PREEMPTION: parts.get("preempted", 0.0),
        Cause.SLOW_CLIENT: parts["client"],
    }
    num_computed = 0 if timeline is None else timeline.num_computed_tokens
    prefill_s = parts.get("prefill", 0.0)
    if num_computed > _FEW_TOKENS and prefill_s >= _NOTABLE_PREFILL * total_s:
        lasted[Cause.COLD_PREFILL] = prefill_s
    kind = max(lasted, key=lambda one: lasted[one])
    if total_s <= 0 or lasted[kind] < _NOTABLE * total_s:
        return Cause.NOTHING_UNUSUAL
    if kind is Cause.QUEUE and timeline is not None and longest_hold(timeline) == "blocks":
        return Cause.MEMORY
    return kind


def _facts(record: RequestRecord) -> dict[str, object]:
    """What there is to know besides times, for machines."""
    facts: dict[str, object] = {
        "finish_reason": record.finish_reason,
        "prompt_tokens": record.num_prompt_tokens,
        "cached_tokens": record.num_cached_tokens,
        "completion_tokens": record.num_output_tokens,
        "preemptions": record.num_preemptions,
        "detokenise_s": round(record.detokenise_s, 6),
        "client_wait_s": round(record.event_wait_s + record.paused_s, 6),
    }
    timeline = record.timeline
    if timeline is None:
        return facts
    steps = timeline.num_decode_steps
    return facts | {
        "queue": {
            "requests_ahead": timeline.num_ahead,
            "ids": timeline.ahead_ids,
            "for_slots_s": round(timeline.held_by_slots_s, 6),
            "for_blocks_s": round(timeline.held_by_blocks_s, 6),
            "for_tokens_s": round(timeline.held_by_tokens_s, 6),
        },
        "prefill": {
            "computed_tokens": timeline.num_computed_tokens,
            "recomputed_tokens": timeline.num_recomputed_tokens,
            "chunks": timeline.num_chunks,
        },
        "miss": None
        if timeline.miss_reason is None
        else {
            "reason": timeline.miss_reason,
            "token": timeline.miss_at,
            "text": record.miss_text,
            "others_text": record.others_text,
        },
        "decode": {
            "steps": steps,
            "mean_batch_size": round(timeline.num_decode_rows / steps, 2) if steps else None,
            "model_s": round(timeline.decode_model_s, 6),
            "beside_prefill_s": round(timeline.beside_prefill_s, 6),
        },
    }
