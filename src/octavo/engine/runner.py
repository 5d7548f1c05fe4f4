"""Runs steps on a backend and takes their time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo.engine.share_log import ShareLog
from octavo.observability.limits import MachineCeilings
from octavo.observability.op_costs import OpCost
from octavo.ops.protocol import (
    Batch,
    Bytes,
    DecodeRun,
    Executor,
    Int32s,
    Int64s,
    SampleBatch,
    SampleResult,
)

Clock = Callable[[], float]
"""Seconds of a monotonic clock."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step gave, and how long it took."""

    sampled: SampleResult
    seconds: float


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """What a run of decode steps drew, [steps done, R], and how long all of them took."""

    token_ids: Int32s
    seconds: float


class ModelRunner:
    """Owns the executor: one model and its KV memory. One thread uses it."""

    def __init__(self, executor: Executor, clock: Clock, share_log: ShareLog | None = None) -> None:
        self._executor = executor
        self._clock = clock
        self._share_log = share_log
        self.busy_s = 0.0
        """Seconds spent in the executor so far."""

    @property
    def kernel_table(self) -> str:
        """Name of the kernels in use."""
        return self._executor.kernel_table

    def now_s(self) -> float:
        """Seconds of the clock that times the steps."""
        return self._clock()

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole KV blocks, (source, destination), in order."""
        self._executor.copy_blocks(pairs)

    @property
    def limit_share(self) -> float | None:
        """See EngineStats."""
        return None if self._share_log is None else self._share_log.share

    def run(self, batch: Batch, sample: SampleBatch) -> StepResult:
        """Run one step: KV of every token is written, each output row gets its token or score."""
        started = self._clock()
        sampled = self._executor.execute(batch, sample)
        return StepResult(sampled, self._lap(started, batch, 1))

    def decode(self, batch: Batch, sample: SampleBatch, run: DecodeRun) -> DecodeResult:
        """Run up to `run.num_steps` decode steps, without coming back in between."""
        started = self._clock()
        token_ids = self._executor.decode(batch, sample, run)
        return DecodeResult(token_ids, self._lap(started, batch, len(token_ids)))

    def watch(self, counter: Int64s) -> None:
        """Add 1 to `counter` [1] after every operation from now on."""
        self._executor.watch(counter)

    def set_counting(self, is_counting: bool) -> None:
        """Whether the operations of steps from now on are counted; turning it on starts from zero."""
        self._executor.set_counting(is_counting)

    def op_costs(self) -> list[OpCost]:
        """What was counted. See Executor.op_costs."""
        return self._executor.op_costs()

    def measure_ceilings(self, seconds: float) -> MachineCeilings | None:
        """What the machine allows now. See Executor.measure_ceilings."""
        return self._executor.measure_ceilings(seconds)

    def read_block(self, block_id: int) -> Bytes:
        """A copy of a KV block's bytes. Any thread may call it: see Executor.read_block."""
        return self._executor.read_block(block_id)

    def write_block(self, block_id: int, data: Bytes) -> None:
        """Overwrite a KV block. Any thread may call it: see Executor.write_block."""
        self._executor.write_block(block_id, data)

    def fill_kv(self, value: float) -> None:
        """Overwrite all KV memory. For tests: no result may depend on what free blocks hold."""
        self._executor.fill_kv(value)

    def close(self) -> None:
        """Free the model and the KV memory. Idempotent."""
        self._executor.close()

    def _lap(self, started: float, batch: Batch, num_steps: int) -> float:
        seconds = self._clock() - started
        self.busy_s += seconds
        if self._share_log is not None:
            self._share_log.observe(batch, seconds, num_steps)
        return seconds
