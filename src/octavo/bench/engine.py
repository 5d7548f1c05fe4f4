"""`bench engine`: speed in this process, through everything a request of `LLM.generate` passes.

Figures, in tokens per second, as in the benchmarks of other engines we compare with:
  prefill      one sequence of `prompt` tokens, one token generated
  decode[b]    b sequences decoded together, all after 128 prompt tokens, greedy
  mixed[b]     b requests of 128 prompt + `gen` generated tokens from start to end, generated tokens / wall time
and of each the share of the wall time that was spent outside the model.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from octavo.bench.loaded import SLACK_TOKENS, LoadedEngine, OnFigure, loaded_engine
from octavo.bench.options import CONTEXT_TOKENS, MeasureConfig
from octavo.bench.shares import limits_report
from octavo.bench.stepping import LimitsBetween
from octavo.config import EngineConfig
from octavo.observability.limits import MachineCeilings

Figure = tuple[str, int]
"""Kind and batch size; prefill has batch size 1."""
Reading = tuple[float, float]
"""Tokens per second, and the share of the time outside the model."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Every timed round of every figure.

    `rates`: tokens per second. `outside`: shares of the time outside the model. `ceilings`: what the machine allowed
    meanwhile; empty where limits are not measured.
    """

    rates: dict[Figure, list[float]] = field(default_factory=dict)
    outside: dict[Figure, list[float]] = field(default_factory=dict)
    ceilings: dict[Figure, list[MachineCeilings]] = field(default_factory=dict)

    def add(self, figure: Figure, reading: Reading, ceilings: MachineCeilings | None) -> None:
        """Take a round."""
        for rounds, value in zip((self.rates, self.outside), reading, strict=True):
            rounds.setdefault(figure, []).append(value)
        if ceilings is not None:
            self.ceilings.setdefault(figure, []).append(ceilings)


def bench_engine(
    config: EngineConfig, run: MeasureConfig, *, on_figure: OnFigure = lambda _: None
) -> dict[str, object]:
    """Load the model, run one round that is not timed and `repeat` that are; returns the report.

    Raises: CapacityError if the requests do not fit the KV cache together, and what loading raises.
    """
    longest = max(run.prompt + 1, CONTEXT_TOKENS + run.gen + SLACK_TOKENS)
    num_seqs = max(run.batches)
    with loaded_engine(config, longest=longest, num_seqs=num_seqs, seed=run.seed) as loaded:
        ceilings = loaded.ceilings(on_figure) if run.limits else None
        measured = _Bench(loaded, run).rounds(on_figure)
        report = _report(loaded, config.model.model, run, measured)
        report["limits"] = None
        work = loaded.info.work
        if work is not None and ceilings is not None and measured.ceilings:
            report["limits"] = limits_report(work, ceilings, run, measured.rates, measured.ceilings)
        return report


class _Bench:
    """Measures one loaded model."""

    def __init__(self, loaded: LoadedEngine, run: MeasureConfig) -> None:
        self._loaded = loaded
        self._run = run

    def rounds(self, on_figure: OnFigure) -> Measured:
        """One round to warm up and `repeat` that count."""
        measured = Measured()
        for kind, batch in self._figures():
            on_figure(f"{kind} {batch} (warm-up)")
            self._measure(kind, batch)
        limits = LimitsBetween(self._loaded.client) if self._run.limits else None
        for _ in range(self._run.repeat):
            for kind, batch in self._figures():
                on_figure(f"{kind} {batch}")
                reading = self._measure(kind, batch)
                measured.add((kind, batch), reading, limits.look() if limits else None)
        return measured

    def _figures(self) -> list[Figure]:
        batches = self._run.batches
        return [("prefill", 1)] + [(kind, b) for b in batches for kind in ("decode", "mixed")]

    def _measure(self, kind: str, batch: int) -> Reading:
        match kind:
            case "prefill":
                return self._generate(1, self._run.prompt, 1, of=self._run.prompt)
            case "decode":
                return self._decode(batch)
            case _:
                return self._generate(
                    batch, CONTEXT_TOKENS, self._run.gen, of=batch * self._run.gen
                )

    def _generate(self, batch: int, length: int, num_tokens: int, *, of: int) -> Reading:
        """`of` tokens over the seconds from start to end."""
        span = self._loaded.generate(self._loaded.prompts(batch, length), num_tokens)
        return of / span.seconds, span.outside_share

    def _decode(self, batch: int) -> Reading:
        window = self._loaded.decode(batch, CONTEXT_TOKENS, self._run.gen - 1)
        assert window.span is not None
        return window.num_tokens / window.span.seconds, window.span.outside_share


def _table(
    rounds: Mapping[Figure, list[float]], choose: Callable[[Sequence[float]], float]
) -> dict[str, object]:
    """One number per figure: {"prefill": …, "decode": {"1": …}, "mixed": {"1": …}}."""
    table: dict[str, object] = {}
    for kind in ("prefill", "decode", "mixed"):
        chosen = {str(b): choose(values) for (k, b), values in rounds.items() if k == kind}
        table[kind] = chosen["1"] if kind == "prefill" else chosen
    return table


def _report(
    loaded: LoadedEngine, model: str, run: MeasureConfig, measured: Measured
) -> dict[str, object]:
    return {
        "benchmark": "engine",
        "model": Path(model).name,
        "prompt": run.prompt,
        "gen": run.gen,
        "repeat": run.repeat,
        **_table(measured.rates, max),
        "median": _table(measured.rates, statistics.median),
        "outside_model": _table(measured.outside, statistics.median),
        **loaded.facts(),
    }
