"""`bench engine`: speed in this process, through everything a request of `LLM.generate` passes.

Figures, in tokens per second, as in the benchmarks of other engines we compare with:
  prefill      one sequence of `prompt` tokens, one token generated
  decode[b]    b sequences decoded together, all after 128 prompt tokens, greedy
  mixed[b]     b requests of 128 prompt + `gen` generated tokens from start to end, generated tokens / wall time
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from octavo import __version__
from octavo.api.limits import engine_ceilings
from octavo.api.llm import LLM
from octavo.api.runtime import load_runtime
from octavo.bench.machine import cpu_facts
from octavo.bench.options import CONTEXT_TOKENS, MeasureConfig
from octavo.bench.shares import limits_report
from octavo.bench.stepping import DecodeWindow, SteppingClient
from octavo.bench.workload import random_ids
from octavo.config import EngineConfig
from octavo.errors import CapacityError, OctavoError
from octavo.messages import EngineInfo
from octavo.observability.limits import MachineCeilings
from octavo.outputs import RequestOutput
from octavo.params import SamplingParams

_SLACK_TOKENS: Final = 256
"""Room for what the first requests generate until the last has read its prompt."""
_MAX_ID: Final = 40000

Figure = tuple[str, int]
"""Kind and batch size; prefill has batch size 1."""
OnFigure = Callable[[str], None]
"""Told what is measured next."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Every timed round of every figure, in tokens per second."""

    rates: dict[Figure, list[float]]

    def table(self, choose: Callable[[Sequence[float]], float]) -> dict[str, object]:
        """One number per figure: {"prefill": …, "decode": {"1": …}, "mixed": {"1": …}}."""
        table: dict[str, object] = {}
        for kind in ("prefill", "decode", "mixed"):
            chosen = {str(b): choose(rates) for (k, b), rates in self.rates.items() if k == kind}
            table[kind] = chosen["1"] if kind == "prefill" else chosen
        return table


def bench_engine(
    config: EngineConfig, run: MeasureConfig, *, on_figure: OnFigure = lambda _: None
) -> dict[str, object]:
    """Load the model, run one round that is not timed and `repeat` that are; returns the report.

    Raises: CapacityError if the requests do not fit the KV cache together, and what loading raises.
    """
    started = time.perf_counter()
    runtime = load_runtime(_fitting(config, run))
    client = SteppingClient(runtime)
    with LLM.from_client(client, runtime.processor) as llm:
        load_s = time.perf_counter() - started
        bench = _Bench(llm, client, run)
        # Before and after, and the better of the two: other work on the machine comes and goes.
        before = _ceilings(llm.info, run, on_figure)
        measured = bench.rounds(on_figure)
        after = _ceilings(llm.info, run, on_figure, with_memory=False)
        report = _report(llm.info, config.model.model, run, measured, load_s)
        report["limits"] = None
        if llm.info.work is not None and before is not None and after is not None:
            best = before.best_with(after)
            report["limits"] = limits_report(llm.info.work, best, run, report)
        return report


def _ceilings(
    info: EngineInfo, run: MeasureConfig, on_figure: OnFigure, *, with_memory: bool = True
) -> MachineCeilings | None:
    """What the machine allows this engine, None if nobody asked."""
    if not run.limits or info.work is None:
        return None
    on_figure("limits")
    return engine_ceilings(info, with_memory=with_memory)


def _fitting(config: EngineConfig, run: MeasureConfig) -> EngineConfig:
    """The configuration with room for the largest batch and the longest request."""
    longest = max(run.prompt + 1, CONTEXT_TOKENS + run.gen + _SLACK_TOKENS)
    num_seqs = max(config.scheduler.max_num_seqs, *run.batches)
    return replace(
        config,
        model=replace(config.model, max_model_len=longest),
        scheduler=replace(config.scheduler, max_num_seqs=num_seqs),
    )


class _Bench:
    """Measures one loaded model."""

    def __init__(self, llm: LLM, client: SteppingClient, run: MeasureConfig) -> None:
        self._llm = llm
        self._client = client
        self._run = run
        self._rng = np.random.default_rng(run.seed)
        self._max_id = min(_MAX_ID, llm.info.vocab_size)

    def rounds(self, on_figure: OnFigure) -> Measured:
        """One round to warm up and `repeat` that count."""
        measured = Measured({})
        for round_ in range(self._run.repeat + 1):
            for kind, batch in self._figures():
                on_figure(f"{kind} {batch}" + ("" if round_ else " (warm-up)"))
                rate = self._measure(kind, batch)
                if round_:
                    measured.rates.setdefault((kind, batch), []).append(rate)
        return measured

    def _figures(self) -> list[Figure]:
        batches = self._run.batches
        return [("prefill", 1)] + [(kind, b) for b in batches for kind in ("decode", "mixed")]

    def _measure(self, kind: str, batch: int) -> float:
        match kind:
            case "prefill":
                return self._prefill()
            case "decode":
                return self._decode(batch)
            case _:
                return self._mixed(batch)

    def _prefill(self) -> float:
        seconds = self._generate(self._prompts(1, self._run.prompt), 1)
        return self._run.prompt / seconds

    def _mixed(self, batch: int) -> float:
        seconds = self._generate(self._prompts(batch, CONTEXT_TOKENS), self._run.gen)
        return batch * self._run.gen / seconds

    def _decode(self, batch: int) -> float:
        """The requests go on until the last that started has what it needs, so that all decode in every timed step."""
        window = DecodeWindow(batch, batch * (self._run.gen - 1))
        self._client.watch(window)
        try:
            outputs = self._llm.generate(
                self._prompts(batch, CONTEXT_TOKENS),
                _params(self._run.gen + _SLACK_TOKENS),
                use_tqdm=False,
            )
        finally:
            self._client.watch(None)
        _check(outputs)
        if window.tokens_per_s is None:
            raise OctavoError(
                f"batch {batch}: the first requests ended before the last began to decode; raise --gen or --max-step-ms"
            )
        return window.tokens_per_s

    def _generate(self, prompts: list[list[int]], num_tokens: int) -> float:
        """Seconds from start to end."""
        started = time.perf_counter()
        outputs = self._llm.generate(prompts, _params(num_tokens), use_tqdm=False)
        seconds = time.perf_counter() - started
        _check(outputs)
        if any(len(output.outputs[0].token_ids) != num_tokens for output in outputs):
            raise OctavoError(f"a request did not generate its {num_tokens} tokens")
        return seconds

    def _prompts(self, count: int, length: int) -> list[list[int]]:
        return [random_ids(length, self._max_id, self._rng) for _ in range(count)]


def _params(num_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)


def _check(outputs: Sequence[RequestOutput]) -> None:
    """Refuse figures that are not what they say: prompts that were cached, requests that ran twice or failed."""
    for output in outputs:
        answer = output.outputs[0]
        if answer.finish_reason == "error":
            raise OctavoError(f"a request failed: {answer.stop_reason}")
        if output.num_cached_tokens:
            raise OctavoError(f"{output.num_cached_tokens} tokens of a random prompt were cached")
        if output.metrics.num_preemptions:
            raise CapacityError(
                f"{len(outputs)} requests do not fit the KV cache together: give it more with "
                "--kv-cache-memory-bytes, or lower --batch"
            )


def _report(
    info: EngineInfo, model: str, run: MeasureConfig, measured: Measured, load_s: float
) -> dict[str, object]:
    return {
        "benchmark": "engine",
        "engine": "octavo",
        "version": __version__,
        "model": Path(model).name,
        "threads": info.num_threads,
        "prompt": run.prompt,
        "gen": run.gen,
        "repeat": run.repeat,
        **measured.table(max),
        "median": measured.table(statistics.median),
        "load_s": round(load_s, 3),
        "machine": cpu_facts() | {"kernel_table": info.kernel_table, "threads": info.num_threads},
    }
