"""Each figure of `bench engine` against the speed that the machine allows it. The formulas of a step are those of
`octavo.observability.limits`; here is which steps a figure is made of."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
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
    work: ModelWork,
    ceilings: MachineCeilings,
    run: MeasureConfig,
    rates: Mapping[tuple[str, int], Sequence[float]],
    allowed: Mapping[tuple[str, int], Sequence[MachineCeilings]],
) -> dict[str, object]:
    """What the machine allows, what the model needs, and the share of its limit that each figure reaches.

    `rates`: every round of every figure (kind and batch size), tokens/s. `allowed`: what the machine allowed in that
    round. In `shares` a figure has what limits it ("memory" or "arithmetic"), its limit in tokens/s, the median of its
    rounds' shares of it as `share`, and the best as `best_share`. `ceilings` are only told.
    """
    shares: dict[str, Any] = {"decode": {}, "mixed": {}}
    for (kind, batch), figure_rates in rates.items():
        limits = [
            _limit(FigureLimits(work, each, run), kind, batch) for each in allowed[kind, batch]
        ]
        entry = _entry(limits, figure_rates)
        if kind == "prefill":
            shares[kind] = entry
        else:
            shares[kind][str(batch)] = entry
    return {"ceilings": asdict(ceilings), "work": asdict(work), "shares": shares}


def _limit(limits: FigureLimits, kind: str, batch: int) -> FigureLimit:
    if kind == "prefill":
        return limits.prefill()
    return limits.decode(batch) if kind == "decode" else limits.mixed(batch)


def _entry(limits: Sequence[FigureLimit], rates: Sequence[float]) -> dict[str, object]:
    shares = [limit.share(rate) for limit, rate in zip(limits, rates, strict=True)]
    middle = sorted(limits, key=lambda limit: limit.tokens_per_s)[len(limits) // 2]
    return {
        **asdict(middle),
        "bound": middle.bound.value,
        "share": statistics.median(shares),
        "best_share": max(shares),
    }
