"""From a schedule to the arrays of one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np

from octavo.engine.request import Request
from octavo.engine.scheduler import Chunk
from octavo.kv_layout import BLOCK_SIZE
from octavo.ops.protocol import Batch, DecodeRun, Int32s, SampleBatch
from octavo.sampling.rows import SampleRows


class ChunkRows(NamedTuple):
    """The output rows of one chunk: first the `num_scored` prompt tokens scored, then one that draws, if it does."""

    request: Request
    num_scored: int
    is_drawing: bool


@dataclass(slots=True)
class StepInput:
    """What the executor gets, and whose rows come back."""

    batch: Batch
    sample: SampleBatch
    rows: list[ChunkRows]


class StepBuilder:
    """Builds the arrays of each step. While the same requests decode, what did not change is kept from step to step.

    Arrays that were handed out are never written again.
    """

    def __init__(self) -> None:
        self._decoding: _Decoding | None = None

    def build(self, chunks: Sequence[Chunk]) -> StepInput:
        """The arrays of a step that computes `chunks`."""
        if self._decoding is not None and self._decoding.is_continued_by(chunks):
            return self._decoding.next_step()
        step = build_step(chunks)
        is_steady = all(c.num_tokens == 1 and c.request.sampling.is_steady for c in chunks)
        only_draws = is_steady and all(r.is_drawing and not r.num_scored for r in step.rows)
        self._decoding = _Decoding(step, [c.request for c in chunks]) if only_draws else None
        return step

    def decode_run(self, num_steps: int, stop: Int32s) -> DecodeRun:
        """A run of decode steps from the step built last, whose chunks are one plain token each."""
        assert self._decoding is not None, "not a decode step"
        return DecodeRun(num_steps, *self._decoding.ends, stop)


class _Decoding:
    """The arrays of a step in which each request computes one token, and what the next one takes over of them."""

    def __init__(self, step: StepInput, requests: list[Request]) -> None:
        self._step = step
        self._requests = requests
        self._tables = [request.table for request in requests]
        self._num_blocks = [0 if table is None else table.num_blocks for table in self._tables]
        self._num_swaps = self._count_swaps()
        self._rows = np.arange(len(requests))
        ids = [sorted(request.end_token_ids) for request in requests]
        self.ends = (
            np.cumsum([0, *map(len, ids)], dtype=np.int32),
            np.fromiter(chain.from_iterable(ids), np.int32),
        )

    def is_continued_by(self, chunks: Sequence[Chunk]) -> bool:
        """Whether the same requests, on the same tables, compute the token they just drew."""
        if self._count_swaps() != self._num_swaps:
            return False
        return len(chunks) == len(self._requests) and all(
            chunk.request is request
            and chunk.num_tokens == 1
            and request.table is table
            and request.output_token_ids
            and request.num_remaining_tokens == 1
            for chunk, request, table in zip(chunks, self._requests, self._tables, strict=True)
        )

    def _count_swaps(self) -> int:
        return sum(table.num_swaps for table in self._tables if table is not None)

    def next_step(self) -> StepInput:
        """The arrays of the next step."""
        old = self._step
        requests = self._requests
        positions = np.array([r.num_computed_tokens for r in requests], np.int32)
        block_tables = self._grown_tables(old.batch.block_tables)
        blocks = block_tables[self._rows, positions // BLOCK_SIZE]
        batch = Batch(
            token_ids=np.array([r.output_token_ids[-1] for r in requests], np.int32),
            positions=positions,
            slots=blocks * BLOCK_SIZE + positions % BLOCK_SIZE,
            query_start=old.batch.query_start,
            seq_lens=positions + 1,
            block_tables=block_tables,
            output_rows=old.batch.output_rows,
        )
        num_made = np.array([r.sampling.num_made for r in requests], np.int32)
        self._step = StepInput(batch, replace(old.sample, positions=num_made), old.rows)
        return self._step

    def _grown_tables(self, block_tables: Int32s) -> Int32s:
        """The tables with the blocks that came since; a copy if there are any."""
        num_blocks = [0 if table is None else table.num_blocks for table in self._tables]
        if num_blocks == self._num_blocks:
            return block_tables
        width = max(block_tables.shape[1], *num_blocks)
        grown = np.zeros((len(num_blocks), width), np.int32)
        grown[:, : block_tables.shape[1]] = block_tables
        for row, (table, before, now) in enumerate(
            zip(self._tables, self._num_blocks, num_blocks, strict=True)
        ):
            if table is not None and now != before:
                grown[row, before:now] = table.block_ids[before:]
        self._num_blocks = num_blocks
        return grown


def build_step(chunks: Sequence[Chunk]) -> StepInput:
    """Lay the chunks out one after the other.

                 chunk 0        chunk 1   chunk 2
    token_ids    a b c d        e         f g h          positions count up from num_computed_tokens
    query_start  0              4         5              ^ 8
    output_rows        s s s d            d     -        s: scores the token after it, d: draws the next token

    A chunk draws if it reaches the last known token; of a prompt whose scores are wanted, position p scores p + 1.
    """
    counts = np.array([c.num_tokens for c in chunks], np.int32)
    starts = np.array([c.request.num_computed_tokens for c in chunks], np.int32)
    query_start = np.zeros(len(chunks) + 1, np.int32)
    np.cumsum(counts, out=query_start[1:])
    token_ids = _token_ids(chunks, query_start.tolist())
    chunk_of_token = np.repeat(np.arange(len(chunks), dtype=np.int32), counts)
    positions = (
        np.arange(len(token_ids), dtype=np.int32) + (starts - query_start[:-1])[chunk_of_token]
    )
    block_tables = _block_tables(chunks)
    blocks = block_tables[chunk_of_token, positions // BLOCK_SIZE]
    sample, rows, output_rows = _rows(chunks, query_start.tolist())
    batch = Batch(
        token_ids=token_ids,
        positions=positions,
        slots=blocks * BLOCK_SIZE + positions % BLOCK_SIZE,
        query_start=query_start,
        seq_lens=starts + counts,
        block_tables=block_tables,
        output_rows=output_rows,
    )
    return StepInput(batch, sample, rows)


def _token_ids(chunks: Sequence[Chunk], query_start: list[int]) -> Int32s:
    token_ids = np.empty(query_start[-1], np.int32)
    for (request, num_tokens), at in zip(chunks, query_start, strict=False):
        start = request.num_computed_tokens
        token_ids[at : at + num_tokens] = request.tokens(start, start + num_tokens)
    return token_ids


def _block_tables(chunks: Sequence[Chunk]) -> Int32s:
    tables = [c.request.table for c in chunks]
    width = max(table.num_blocks for table in tables if table is not None)
    block_tables = np.zeros((len(chunks), width), np.int32)
    for row, table in zip(block_tables, tables, strict=True):
        if table is not None:
            row[: table.num_blocks] = table.block_ids
    return block_tables


def _rows(
    chunks: Sequence[Chunk], query_start: list[int]
) -> tuple[SampleBatch, list[ChunkRows], Int32s]:
    sampling = SampleRows()
    rows: list[ChunkRows] = []
    output_rows: list[int] = []
    for (request, num_tokens), at in zip(chunks, query_start, strict=False):
        start = request.num_computed_tokens
        num_scored = 0
        if request.is_scoring:
            first = max(start, request.num_scored_tokens)
            end = min(start + num_tokens, request.num_prompt_tokens - 1)
            num_scored = max(0, end - first)
            targets = request.prompt_token_ids[first + 1 : first + 1 + num_scored]
            sampling.score(targets, request.sampling.num_prompt_logprobs)
            output_rows.extend(range(at + first - start, at + first - start + num_scored))
        is_drawing = request.max_output_tokens > 0 and num_tokens == request.num_remaining_tokens
        if is_drawing:
            sampling.draw(request.sampling)
            output_rows.append(at + num_tokens - 1)
        rows.append(ChunkRows(request, num_scored, is_drawing))
    return sampling.build(), rows, np.array(output_rows, np.int32)
