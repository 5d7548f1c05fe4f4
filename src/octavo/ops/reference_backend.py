"""The numpy backend: runs any model with nothing installed, a few tokens per second. Oracle of every other backend."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from octavo.kv_layout import KVLayout
from octavo.observability.limits import MachineCeilings, ModelWork
from octavo.observability.op_costs import OpCost
from octavo.ops.decode_run import decode_by_steps
from octavo.ops.protocol import (
    Batch,
    Bytes,
    DecoderModel,
    DecodeRun,
    Floats,
    Int32s,
    Int64s,
    SampleBatch,
    SampleResult,
)
from octavo.ops.reference import Dequantize, ReferenceOps, ReferenceWeight
from octavo.ops.reference_kv import ReferenceKV
from octavo.ops.reference_sampling import empty_result, sample_rows

_logger = logging.getLogger(__name__)

_ROWS_PER_SLAB: Final = 32
"""Rows of logits held at once: 34 MB for a vocabulary of 262,144."""

ReferenceModel = DecoderModel[Floats, ReferenceWeight]


class ReferenceBackend:
    """Loads weights as float32 and runs models line by line.

    `dequantize` turns a tensor of a weight file into float32. It is passed in because file formats live above `ops`.
    """

    def __init__(self, dequantize: Dequantize) -> None:
        self._ops = ReferenceOps(dequantize)

    @property
    def ops(self) -> ReferenceOps:
        """The operations to build a model with."""
        return self._ops

    def compile(
        self, model: ReferenceModel, layout: KVLayout, num_blocks: int, max_batched_tokens: int
    ) -> ReferenceExecutor:
        """Make the model runnable with a KV pool of `num_blocks` blocks."""
        _logger.info("reference backend: %d KV blocks of %s", num_blocks, layout.dtype.name)
        kv = ReferenceKV(layout, num_blocks)
        return ReferenceExecutor(model, self._ops, kv, max_batched_tokens)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What a closed executor no longer has."""

    model: ReferenceModel
    ops: ReferenceOps
    kv: ReferenceKV


class ReferenceExecutor:
    """One model with its KV memory. See Executor."""

    def __init__(
        self, model: ReferenceModel, ops: ReferenceOps, kv: ReferenceKV, max_batched_tokens: int
    ) -> None:
        self._loaded: _Loaded | None = _Loaded(model, ops.with_kv(kv), kv)
        self._max_batched_tokens = max_batched_tokens

    @property
    def kernel_table(self) -> str:
        """Name of the kernels in use."""
        return "reference"

    @property
    def work(self) -> ModelWork | None:
        """Not known: nothing is measured against this backend's speed."""
        return None

    def measure_ceilings(self, seconds: float) -> MachineCeilings | None:
        """See Executor.measure_ceilings: numpy has none worth measuring."""
        return None

    def set_counting(self, is_counting: bool) -> None:
        """See Executor.set_counting: nothing is counted."""

    def op_costs(self) -> list[OpCost]:
        """See Executor.op_costs: always empty."""
        return []

    def watch(self, counter: Int64s) -> None:
        """See Executor.watch: products are counted."""
        self._open().ops.counter = counter

    def execute(self, batch: Batch, sample: SampleBatch) -> SampleResult:
        """Run one step. See Executor.execute."""
        model, ops = self._open().model, self._open().ops
        num_tokens = len(batch.token_ids)
        if num_tokens > self._max_batched_tokens:
            raise ValueError(
                f"{num_tokens} tokens in a step, compiled for {self._max_batched_tokens}"
            )
        result = empty_result(sample)
        hidden = model.forward(ops, batch)
        for first_row in range(0, len(batch.output_rows), _ROWS_PER_SLAB):
            rows = batch.output_rows[first_row : first_row + _ROWS_PER_SLAB]
            sample_rows(model.logits(ops, hidden[rows]), sample, first_row, result)
        return result

    def decode(self, batch: Batch, sample: SampleBatch, run: DecodeRun) -> Int32s:
        """Run decode steps. See Executor.decode."""
        return decode_by_steps(self.execute, batch, sample, run)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole KV blocks, (source id, destination id), in order."""
        for source, destination in pairs:
            self._open().kv.copy_block(source, destination)

    def read_block(self, block_id: int) -> Bytes:
        """A copy of a KV block's bytes. See Executor.read_block."""
        return self._open().kv.read_block(block_id)

    def write_block(self, block_id: int, data: Bytes) -> None:
        """Overwrite a KV block. See Executor.write_block."""
        self._open().kv.write_block(block_id, data)

    def fill_kv(self, value: float) -> None:
        """Overwrite all KV memory."""
        self._open().kv.fill(value)

    def close(self) -> None:
        """Drop the model and the KV memory."""
        self._loaded = None

    def _open(self) -> _Loaded:
        if self._loaded is None:
            raise RuntimeError("the executor is closed")
        return self._loaded
