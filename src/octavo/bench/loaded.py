"""A model loaded in this process, driven as `LLM` drives it, and timed: what the in-process benchmarks measure with."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import numpy as np

from octavo import __version__
from octavo.api.limits import engine_ceilings
from octavo.api.llm import LLM
from octavo.api.runtime import load_runtime
from octavo.bench.machine import cpu_facts
from octavo.bench.stepping import DecodeWindow, Span, SteppingClient
from octavo.bench.workload import random_ids
from octavo.config import EngineConfig
from octavo.errors import CapacityError, OctavoError
from octavo.messages import EngineInfo
from octavo.observability.limits import MachineCeilings
from octavo.outputs import RequestOutput
from octavo.params import SamplingParams

SLACK_TOKENS: Final = 256
"""Room for what the first requests generate until the last has read its prompt."""
_MAX_ID: Final = 40000

OnFigure = Callable[[str], None]
"""Told what is measured next."""


class LoadedEngine:
    """One loaded model. Prompts are fresh random ids each time, answers greedy and of given length."""

    def __init__(self, llm: LLM, client: SteppingClient, seed: int, load_s: float) -> None:
        self.client = client
        self.load_s = load_s
        """Seconds it took to load."""
        self._llm = llm
        self._rng = np.random.default_rng(seed)
        self._num_prompts = 0
        self._max_id = min(_MAX_ID, llm.info.vocab_size)

    @property
    def info(self) -> EngineInfo:
        """What is loaded."""
        return self._llm.info

    def prompts(self, count: int, length: int) -> list[list[int]]:
        """Random prompts that nobody has seen before: no two begin with the same token, so nothing of one is cached."""
        first = range(self._num_prompts, self._num_prompts + count)
        self._num_prompts += count
        return [[i % self._max_id, *random_ids(length - 1, self._max_id, self._rng)] for i in first]

    def generate(
        self,
        prompts: Sequence[list[int]],
        num_tokens: int | Sequence[int],
        *,
        may_be_cached: bool = False,
    ) -> Span:
        """Answer all prompts with `num_tokens` tokens each, or as many as its own; from start to end.

        Raises: CapacityError if they do not fit the KV cache together, OctavoError if one fails, or was cached.
        """
        wanted = [num_tokens] * len(prompts) if isinstance(num_tokens, int) else list(num_tokens)
        params = [_params(count) for count in wanted]
        before, started = self.client.stats(), time.perf_counter()
        outputs = self._llm.generate(list(prompts), params, use_tqdm=False)
        span = Span.between(started, before, time.perf_counter(), self.client.stats())
        _check(outputs, may_be_cached=may_be_cached)
        for output, count in zip(outputs, wanted, strict=True):
            if len(output.outputs[0].token_ids) != count:
                raise OctavoError(f"a request did not generate its {count} tokens")
        return span

    def decode(
        self, batch: int, context: int, num_tokens: int, *, is_counted: bool = False
    ) -> DecodeWindow:
        """Decode `batch` requests together after prompts of `context` tokens, `num_tokens` each while all decode.

        The requests go on until the last that started has what it needs, so that all decode in every timed step.
        `is_counted`: the operations of exactly these steps are counted.
        Raises: OctavoError if they never decode all together, and as `generate`.
        """
        on_open = [lambda: self.client.set_counting(True)] if is_counted else []
        window = DecodeWindow(batch, batch * num_tokens, *on_open)
        self.client.watch(window)
        try:
            params = _params(num_tokens + 1 + SLACK_TOKENS)
            outputs = self._llm.generate(self.prompts(batch, context), params, use_tqdm=False)
        finally:
            self.client.watch(None)
            if is_counted:
                self.client.set_counting(False)
        _check(outputs)
        if window.span is None:
            raise OctavoError(
                f"batch {batch}: the first requests ended before the last began to decode; raise --gen or --max-step-ms"
            )
        return window

    def ceilings(self, on_figure: OnFigure) -> MachineCeilings | None:
        """What the machine allows this engine; None where nothing is known of the model's work."""
        if self.info.work is None:
            return None
        on_figure("limits")
        return engine_ceilings(self.info)

    def facts(self) -> dict[str, object]:
        """What every report says of the engine and the machine."""
        info = self.info
        return {
            "engine": "octavo",
            "version": __version__,
            "threads": info.num_threads,
            "load_s": round(self.load_s, 3),
            "machine": cpu_facts()
            | {"kernel_table": info.kernel_table, "threads": info.num_threads},
        }


@contextmanager
def loaded_engine(
    config: EngineConfig, *, longest: int, num_seqs: int, seed: int
) -> Iterator[LoadedEngine]:
    """Load the model with room for requests of `longest` tokens, at least `num_seqs` of them together.

    Raises: what loading raises.
    """
    started = time.perf_counter()
    num_seqs = max(config.scheduler.max_num_seqs, num_seqs)
    fitting = replace(
        config,
        model=replace(config.model, max_model_len=longest),
        scheduler=replace(config.scheduler, max_num_seqs=num_seqs),
    )
    runtime = load_runtime(fitting)
    client = SteppingClient(runtime)
    with LLM.from_client(client, runtime.processor) as llm:
        yield LoadedEngine(llm, client, seed, time.perf_counter() - started)


def _params(num_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)


def _check(outputs: Sequence[RequestOutput], *, may_be_cached: bool = False) -> None:
    """Refuse figures that are not what they say: prompts that were cached, requests that ran twice or failed."""
    for output in outputs:
        answer = output.outputs[0]
        if answer.finish_reason == "error":
            raise OctavoError(f"a request failed: {answer.stop_reason}")
        if output.num_cached_tokens and not may_be_cached:
            raise OctavoError(f"{output.num_cached_tokens} tokens of a random prompt were cached")
        if output.metrics.num_preemptions:
            raise CapacityError(
                f"{len(outputs)} requests do not fit the KV cache together: give it more with "
                "--kv-cache-memory-bytes, or lower --batch"
            )
