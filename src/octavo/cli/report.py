"""What `octavo run` says about an answer, in lines for standard error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from octavo.outputs import RequestOutput, TokenLogprobs

_SHOWN_S: Final = 0.00005
"""A part below this shows as nothing."""


def stats_line(output: RequestOutput, elapsed_s: float) -> str:
    """Prompt, cached and generated tokens, time to first token, tokens per second after it."""
    num_tokens = len(output.outputs[0].token_ids)
    first_s = output.metrics.first_token_s
    tail_s = elapsed_s - (first_s or elapsed_s)
    rate = f", {(num_tokens - 1) / tail_s:.1f} tok/s" if num_tokens > 1 and tail_s > 0 else ""
    first = "none" if first_s is None else f"{first_s * 1000:.0f} ms"
    return (
        f"[{len(output.prompt_token_ids)} prompt tokens, {output.num_cached_tokens} cached; "
        f"first token {first}; {num_tokens} tokens{rate}]"
    )


def explanation_lines(output: RequestOutput) -> Iterator[str]:
    """What the time went to, and what would help; nothing unless it was asked for."""
    explanation = output.explanation
    if explanation is not None:
        parts = ", ".join(
            f"{name} {1000 * seconds:.1f} ms"
            for name, seconds in explanation.parts.items()
            if seconds >= _SHOWN_S
        )
        yield f"[{explanation.cause} {explanation.remedy}]"
        yield f"[{parts}]"


def logprob_lines(output: RequestOutput) -> Iterator[str]:
    """A line for each token that was scored: its log-probability, its rank, itself, the alternatives."""
    yield from _lines("prompt", output.prompt_logprobs or [])
    yield from _lines("answer", output.outputs[0].logprobs or [])


def _lines(where: str, positions: Sequence[TokenLogprobs | None]) -> Iterator[str]:
    for position in positions:
        if position is None:  # nothing comes before the first token of a prompt
            continue
        chosen, *others = position.values()
        rest = "".join(f"  {other.decoded_token!r} {other.logprob:.3f}" for other in others)
        yield f"[{where} {chosen.logprob:8.3f}  rank {chosen.rank:<5} {chosen.decoded_token!r}{rest and '  |' + rest}]"
