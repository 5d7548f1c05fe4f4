"""A model in this process whose steps are timed and counted, through all that a request of `LLM` passes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from octavo import LLM, SamplingParams
from octavo.api.options import engine_config
from octavo.api.runtime import load_runtime
from octavo.bench.stepping import DecodeWindow, LimitsBetween, SteppingClient
from octavo.bench.workload import random_ids

SLACK_TOKENS = 256
"""Room for what the first requests generate until the last has read its prompt."""


class OpCount(NamedTuple):
    """One operation over all steps that were counted: see `Executor.op_counts` of the native module."""

    kind: str
    matrices: list[tuple[int, int, int, int]]  # ggml type, rows, cols, packed bytes
    calls: int
    rows: int
    work_ns: int
    wait_ns: int

    @property
    def macs_per_row(self) -> int:
        """Multiply-accumulates for each row of activations."""
        return sum(rows * cols for _, rows, cols, _ in self.matrices)

    @property
    def num_bytes(self) -> int:
        """Packed bytes that one call reads."""
        return sum(size for *_, size in self.matrices)


@dataclass(frozen=True)
class Decoded:
    """Requests decoded together: their speed, their ids up to the shortest, how busy this thread was meanwhile."""

    tokens_per_s: float
    ids: list[list[int]]
    busy: float


class Loaded:
    """A loaded model. Options are those of `LLM`."""

    def __init__(self, model: Path, **options: Any) -> None:
        runtime = load_runtime(engine_config(model, options))
        self._client = _Client(runtime)
        self._executor = runtime.engine._runner._executor._executor  # type: ignore[attr-defined]
        self.llm = LLM.from_client(self._client, runtime.processor)
        self._rng = np.random.default_rng()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._executor = None
        self.llm.close()

    def prompts(self, count: int, length: int) -> list[list[int]]:
        """Random ids, others each time."""
        max_id = min(40000, self.llm.info.vocab_size)
        return [random_ids(length, max_id, self._rng) for _ in range(count)]

    def decode(self, prompts: Sequence[list[int]], num_tokens: int) -> Decoded:
        """Greedy, all together; timed from the step that starts the last of them on, `num_tokens` of each."""
        window = DecodeWindow(len(prompts), len(prompts) * num_tokens)
        self._client.watch(window)
        params = SamplingParams(
            temperature=0, max_tokens=num_tokens + SLACK_TOKENS, ignore_eos=True
        )
        wall, cpu = time.perf_counter(), time.thread_time()
        try:
            outputs = self.llm.generate(list(prompts), params, use_tqdm=False)
        finally:
            self._client.watch(None)
        busy = (time.thread_time() - cpu) / (time.perf_counter() - wall)
        assert window.tokens_per_s is not None
        ids = [list(output.outputs[0].token_ids) for output in outputs]
        shortest = min(map(len, ids))
        return Decoded(window.tokens_per_s, [one[:shortest] for one in ids], min(1.0, busy))

    def mixed(self, batch: int, num_tokens: int = 64) -> float:
        """Generated tokens per second of requests of 128 + `num_tokens` tokens, from start to end."""
        params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
        prompts = self.prompts(batch, 128)
        started = time.perf_counter()
        self.llm.generate(prompts, params, use_tqdm=False)
        return batch * num_tokens / (time.perf_counter() - started)

    def share_outside_model(self, batch: int, num_tokens: int) -> float:
        """Of the time of generating, what is not spent in the backend: scheduling, handling, text, messages."""
        params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
        prompts = self.prompts(batch, 4)
        before, started = self.llm.stats().model_s, time.perf_counter()
        self.llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - started
        return 1 - (self.llm.stats().model_s - before) / seconds

    def count_ops(self, batch: int, num_tokens: int) -> tuple[list[OpCount], float]:
        """Operations of steps that decode `batch` requests together, and how busy this thread was."""
        self._client.on_window = lambda: self._executor.set_counting(True)
        try:
            decoded = self.decode(self.prompts(batch, 8), num_tokens)
            counts = [OpCount(*count) for count in self._executor.op_counts()]
        finally:
            self._client.on_window = None
            self._executor.set_counting(False)
        return counts, decoded.busy

    def limits(self) -> LimitsBetween:
        """Looks at what the machine allows this model, from now on."""
        return LimitsBetween(self._client)


class _Client(SteppingClient):
    """Tells when the last of the requests has started: from then on all decode together."""

    on_window: Callable[[], None] | None = None

    def outputs(self) -> Any:
        window = self._window
        outputs = super().outputs()
        if self.on_window is not None and window is not None and not window._num_waiting:
            self.on_window()
            self.on_window = None
        return outputs
