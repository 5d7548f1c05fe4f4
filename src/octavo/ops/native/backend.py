"""The native backend: runs recorded programs on the kernels of this machine, one C++ call a step."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from octavo.config import ActivationPrecision
from octavo.errors import InvalidRequest
from octavo.kv_layout import KVLayout
from octavo.observability.limits import MachineCeilings, ModelWork
from octavo.observability.op_costs import OpCost
from octavo.ops.native import _native
from octavo.ops.native.counters import read_op_costs
from octavo.ops.native.limits import measure_in_place, work_of
from octavo.ops.native.ops import NativeOps
from octavo.ops.native.packed import PackedPart, PackingOps, Sink
from octavo.ops.native.program import Tensor, Value, Weight
from octavo.ops.protocol import (
    Batch,
    Bytes,
    DecoderModel,
    DecodeRun,
    Int32s,
    Int64s,
    SampleBatch,
    SampleResult,
)

_logger = logging.getLogger(__name__)

_TERMS: Final = {ActivationPrecision.INT8: 1, ActivationPrecision.INT8X2: 2}
"""int8 terms of an activation."""

NativeModel = DecoderModel[Tensor, Weight]


def supported_isas() -> tuple[str, ...]:
    """Names of the kernel tables this machine runs, best first."""
    return tuple(_native.supported_tables())


class NativeBackend:
    """Packs weights into memory and runs models on `num_threads` threads, the calling one included.

    `isa` names a kernel table, None takes the best. `activation_precision` holds for products with quantised weights:
    float weights multiply the float activations themselves.
    Raises: InvalidRequest for an unknown or unsupported `isa`, ValueError for a thread count below 1.
    """

    def __init__(
        self,
        num_threads: int,
        isa: str | None = None,
        activation_precision: ActivationPrecision = ActivationPrecision.INT8,
    ) -> None:
        names = supported_isas()
        if isa is not None and isa not in names:
            raise InvalidRequest(
                f"no kernels {isa!r} on this machine: choose one of {', '.join(names)}", param="isa"
            )
        runtime = _native.Runtime(num_threads, isa or names[0], _TERMS[activation_precision])
        self._kernel_table = runtime.table
        self._num_threads = num_threads
        self._activation_precision = activation_precision
        self._runtime: _native.Runtime | None = runtime
        self._ops: NativeOps | None = NativeOps(runtime)

    @property
    def ops(self) -> NativeOps:
        """The operations to build a model with."""
        if self._ops is None:
            raise RuntimeError("the backend is closed")
        return self._ops

    @property
    def kernel_table(self) -> str:
        """Name of the kernels in use."""
        return self._kernel_table

    def load_packed(self, part: PackedPart, *, is_mapped: bool = False) -> None:
        """Read packed weights; models loaded after that take the tensors in it from there.

        `is_mapped` maps the file instead, unchecked, for weights larger than the memory.
        Raises: ValueError if the file is short or a checksum is wrong, CapacityError.
        """
        assert self._runtime is not None
        region = self._runtime.load_region(
            part.fd, part.offset, part.num_bytes, part.checksums, is_mapped=is_mapped
        )
        self.ops.adopt(region, part.tensors)

    def packing_ops(self, sink: Sink) -> PackingOps:
        """Operations that pack what a model loads and hand it to `sink`. Holds no weights."""
        assert self._runtime is not None
        return PackingOps(self._runtime, sink)

    def checksums(self, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
        """Checksums of packed weights, one for each FILE_BLOCK bytes."""
        assert self._runtime is not None
        return self._runtime.checksums(data)

    def compile(
        self, model: NativeModel, layout: KVLayout, num_blocks: int, max_batched_tokens: int
    ) -> NativeExecutor:
        """Record the model and make it runnable with a KV pool of `num_blocks` blocks."""
        ops = self.ops
        assert self._runtime is not None
        program = record(model, ops, self._runtime)
        executor = _native.make_executor(
            program,
            num_layers=layout.num_layers,
            num_kv_heads=layout.num_kv_heads,
            head_dim=layout.head_dim,
            kv_type=layout.dtype.number,
            num_blocks=num_blocks,
            max_batched_tokens=max_batched_tokens,
        )
        assert executor.kv_block_bytes == layout.block_bytes
        _logger.info(
            "native backend: %s kernels, %s activations, %d threads, %.1f MB of packed weights, %d KV blocks of %s",
            self._kernel_table,
            self._activation_precision.value,
            self._num_threads,
            self._runtime.weight_bytes / 1e6,
            num_blocks,
            layout.dtype.value,
        )
        return NativeExecutor(executor, self._runtime, work_of(program, layout))

    def close(self) -> None:
        """Drop the weights and threads; they are freed when no executor is left open. Idempotent."""
        self._runtime = None
        self._ops = None


class NativeExecutor:
    """One recorded model with its KV memory. See octavo.ops.protocol.Executor."""

    def __init__(
        self, executor: _native.Executor, runtime: _native.Runtime, work: ModelWork
    ) -> None:
        self._executor: _native.Executor | None = executor
        self._runtime: _native.Runtime | None = runtime
        self._kernel_table = runtime.table
        self._work = work

    @property
    def kernel_table(self) -> str:
        """Name of the kernels in use."""
        return self._kernel_table

    @property
    def work(self) -> ModelWork | None:
        """See Executor.work."""
        return self._work

    def measure_ceilings(self, seconds: float) -> MachineCeilings | None:
        """See Executor.measure_ceilings. Reads the packed weights themselves."""
        if self._runtime is None:
            raise RuntimeError("the executor is closed")
        return measure_in_place(self._runtime, seconds)

    def set_counting(self, is_counting: bool) -> None:
        """See Executor.set_counting. It costs two looks at the clock for each operation."""
        self._open().set_counting(is_counting)

    def op_costs(self) -> list[OpCost]:
        """See Executor.op_costs."""
        return read_op_costs(self._open())

    def watch(self, counter: Int64s) -> None:
        """See Executor.watch. The thread that calls for the step counts its own operations."""
        self._open().watch(counter)

    def execute(self, batch: Batch, sample: SampleBatch) -> SampleResult:
        """Run one step without the GIL. See Executor.execute.

        Raises: ValueError when arrays disagree with each other, or with what was compiled.
        """
        num_rows = len(batch.output_rows)
        width = max(0, int(sample.num_logprobs.max(initial=0)))
        result = SampleResult(
            token_ids=np.empty(num_rows, np.int32),
            logprobs=np.empty(num_rows, np.float32),
            ranks=np.empty(num_rows, np.int32),
            top_ids=np.empty((num_rows, width), np.int32),
            top_logprobs=np.empty((num_rows, width), np.float32),
        )
        self._open().execute(batch, sample, result)
        return result

    def decode(self, batch: Batch, sample: SampleBatch, run: DecodeRun) -> Int32s:
        """Run decode steps in one call without the GIL. See Executor.decode.

        Raises: ValueError as `execute`, and for rows that a run cannot have.
        """
        num_rows = len(batch.seq_lens)
        tokens = np.empty(run.num_steps * num_rows, np.int32)
        num_done = self._open().decode(batch, sample, run, tokens)
        return tokens.reshape(run.num_steps, num_rows)[:num_done]

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole KV blocks, (source id, destination id), in order."""
        self._open().copy_blocks(list(pairs))

    def read_block(self, block_id: int) -> Bytes:
        """A copy of a KV block's bytes, made without the GIL. See Executor.read_block."""
        return self._open().read_block(block_id)

    def write_block(self, block_id: int, data: Bytes) -> None:
        """Overwrite a KV block, without the GIL. See Executor.write_block."""
        self._open().write_block(block_id, data)

    def fill_kv(self, value: float) -> None:
        """Overwrite all KV memory."""
        self._open().fill_kv(value)

    def close(self) -> None:
        """Free the KV memory and buffers. Idempotent."""
        self._executor = None
        self._runtime = None

    def _open(self) -> _native.Executor:
        if self._executor is None:
            raise RuntimeError("the executor is closed")
        return self._executor


def record(model: NativeModel, ops: NativeOps, runtime: _native.Runtime) -> _native.Program:
    """Call the model's two functions once and return what they did. Raises ValueError if shapes do not fit."""
    program = _native.Program(runtime)
    ops.begin(program)
    try:
        hidden = model.forward(ops, _symbolic_batch())
        assert isinstance(hidden, Value)
        logits = model.logits(ops, Value(program.end_body(hidden.id)))
        assert isinstance(logits, Value)
        program.end_head(logits.id)
    finally:
        ops.end()
    return program


def _symbolic_batch() -> Batch:
    """Stands for the batch of every step: recorded operations do not look inside."""
    none = np.empty(0, np.int32)
    return Batch(
        token_ids=none,
        positions=none,
        slots=none,
        query_start=np.zeros(1, np.int32),
        seq_lens=none,
        block_tables=np.empty((0, 0), np.int32),
        output_rows=none,
    )
