"""Each figure of `bench engine` against the speed that the machine allows it. The formulas of a step are those of
`octavo.observability.limits`; here is which steps a figure is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from octavo.bench.options import CONTEXT_TOKENS, MeasureConfig
from octavo.observability.limits import (
    Bound,
    MachineCeilings,
    ModelWork,
    StepLimit,
    decode_limit,
    prefill_limit,
)


@dataclass(frozen=True, slots=True)
class FigureLimit:
    """The most tokens per second a figure can have: what the memory allows, what the arithmetic allows."""

    memory_tokens_per_s: float
    arithmetic_tokens_per_s: float
    tokens_per_s: float
    bound: Bound

    def share(self, tokens_per_s: float) -> float:
        """Of the limit, 0 to 1."""
        return tokens_per_s / self.tokens_per_s


class FigureLimits:
    """The limits of one model on one machine for the figures of `run`."""

    def __init__(self, work: ModelWork, ceilings: MachineCeilings, run: MeasureConfig) -> None:
        self._work = work
        self._ceilings = ceilings
        self._run = run

    def prefill(self) -> FigureLimit:
        """prompt tokens / least time of one step that reads them all, with logits for the last one."""
        limit = prefill_limit(self._work, self._ceilings, num_tokens=self._run.prompt)
        return _figure(self._run.prompt, limit)

    def decode(self, batch: int) -> FigureLimit:
        """batch / least time of a step that decodes them all, at the mean context of the window that is timed."""
        return _figure(batch, self._decode_step(batch))

    def mixed(self, batch: int) -> FigureLimit:
        """Generated tokens / (least time to read all prompts at once + gen - 1 decode steps of the whole batch)."""
        num_prompt = batch * CONTEXT_TOKENS
        prompts = prefill_limit(self._work, self._ceilings, num_tokens=num_prompt, num_seqs=batch)
        step = self._decode_step(batch)
        num_steps = self._run.gen - 1
        least_s = prompts.seconds + num_steps * step.seconds
        whole = StepLimit(
            prompts.memory_s + num_steps * step.memory_s,
            prompts.arithmetic_s + num_steps * step.arithmetic_s,
        )
        num_tokens = batch * self._run.gen
        by_parts = _figure(num_tokens, whole)
        return FigureLimit(
            by_parts.memory_tokens_per_s,
            by_parts.arithmetic_tokens_per_s,
            num_tokens / least_s,
            whole.bound,
        )

    def _decode_step(self, batch: int) -> StepLimit:
        mean_context = CONTEXT_TOKENS + self._run.gen // 2
        return decode_limit(self._work, self._ceilings, [mean_context] * batch)


def _figure(num_tokens: int, limit: StepLimit) -> FigureLimit:
    return FigureLimit(
        num_tokens / limit.memory_s,
        num_tokens / limit.arithmetic_s,
        num_tokens / limit.seconds,
        limit.bound,
    )


def limits_report(
    work: ModelWork, ceilings: MachineCeilings, run: MeasureConfig, figures: Mapping[str, Any]
) -> dict[str, object]:
    """What the machine allows, what the model needs, and the share of its limit that each figure reaches.

    `figures` are best rates, and medians under "median". In `shares` a figure has what limits it ("memory" or
    "arithmetic"), its limit in tokens/s, `share` of it for the median and `best_share`.
    """
    limits = FigureLimits(work, ceilings, run)
    median = figures["median"]
    prefill = _entry(limits.prefill(), figures["prefill"], median["prefill"])
    by_batch: dict[str, Callable[[int], FigureLimit]] = {
        "decode": limits.decode,
        "mixed": limits.mixed,
    }
    shares: dict[str, object] = {"prefill": prefill}
    for kind, limit_of in by_batch.items():
        shares[kind] = {
            batch: _entry(limit_of(int(batch)), best, median[kind][batch])
            for batch, best in figures[kind].items()
        }
    return {"ceilings": asdict(ceilings), "work": asdict(work), "shares": shares}


def _entry(limit: FigureLimit, best: float, median: float) -> dict[str, object]:
    return {
        **asdict(limit),
        "bound": limit.bound.value,
        "share": limit.share(median),
        "best_share": limit.share(best),
    }
