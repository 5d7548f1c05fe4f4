"""A run of decode steps by single steps: what `Executor.decode` means, for executors without a faster way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from octavo.kv_layout import BLOCK_SIZE
from octavo.ops.protocol import Batch, DecodeRun, Int32s, SampleBatch, SampleResult


def decode_by_steps(
    execute: Callable[[Batch, SampleBatch], SampleResult],
    batch: Batch,
    sample: SampleBatch,
    run: DecodeRun,
) -> Int32s:
    """See Executor.decode."""
    rows = np.arange(len(batch.seq_lens))
    steps: list[Int32s] = []
    while True:
        drawn = execute(batch, sample).token_ids
        steps.append(drawn)
        if len(steps) == run.num_steps or run.stop[0] or _is_over(drawn, run):
            return np.stack(steps)
        positions = batch.positions + 1
        blocks = batch.block_tables[rows, positions // BLOCK_SIZE]
        batch = replace(
            batch,
            token_ids=drawn,
            positions=positions,
            slots=blocks * BLOCK_SIZE + positions % BLOCK_SIZE,
            seq_lens=batch.seq_lens + 1,
        )
        sample = replace(sample, positions=sample.positions + 1)


def _is_over(drawn: Int32s, run: DecodeRun) -> bool:
    return any(
        token in run.end_ids[run.end_start[row] : run.end_start[row + 1]]
        for row, token in enumerate(drawn)
    )
