"""Building steps by hand: batches without an engine, for tests of operations, models and executors.

chunk = Chunk(token_ids, start=0, block_table=[3, 0, 5])    tokens start .. of one sequence, where its KV lies
batch = make_batch([chunk, ...], rows="last" | "all")
sample = make_sample(len(batch.output_rows), temperature=0.7, top_k=[5, 0])    scalars or one value a row
ids = generate(executor, prompt_ids, 8)                     greedy, one sequence, prompt in one step
logprobs = prompt_logprobs(executor, ids)                   of ids[1:]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from octavo.kv_layout import BLOCK_SIZE
from octavo.ops.protocol import Batch, Executor, SampleBatch

_DEFAULTS = {
    "temperature": (np.float32, 0.0),
    "top_k": (np.int32, 0),
    "top_p": (np.float32, 1.0),
    "min_p": (np.float32, 0.0),
    "typical_p": (np.float32, 1.0),
    "repetition_penalty": (np.float32, 1.0),
    "presence_penalty": (np.float32, 0.0),
    "frequency_penalty": (np.float32, 0.0),
    "seeds": (np.uint64, 0),
    "choices": (np.int32, 0),
    "positions": (np.int32, 0),
    "is_scored": (np.bool_, False),
    "targets": (np.int32, 0),
    "num_logprobs": (np.int32, -1),
}


@dataclass
class Chunk:
    """Consecutive tokens of one sequence, the first at position `start`."""

    token_ids: Sequence[int]
    start: int
    block_table: Sequence[int]


def num_blocks(num_tokens: int) -> int:
    """Blocks that hold this many tokens."""
    return -(-num_tokens // BLOCK_SIZE)


def make_batch(chunks: Sequence[Chunk], rows: str | Sequence[int] = "last") -> Batch:
    """One step over these chunks; logits of their last tokens, of all tokens, or of given token indices."""
    sizes = [len(c.token_ids) for c in chunks]
    query_start = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    positions = [np.arange(c.start, c.start + len(c.token_ids)) for c in chunks]
    slots = [
        np.asarray(c.block_table)[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE
        for c, p in zip(chunks, positions, strict=True)
    ]
    tables = np.zeros((len(chunks), max(len(c.block_table) for c in chunks)), np.int32)
    for table, chunk in zip(tables, chunks, strict=True):
        table[: len(chunk.block_table)] = chunk.block_table
    if rows == "last":
        output_rows = query_start[1:] - 1
    elif rows == "all":
        output_rows = np.arange(query_start[-1])
    else:
        output_rows = np.asarray(rows)
    return Batch(
        token_ids=np.concatenate([c.token_ids for c in chunks]).astype(np.int32),
        positions=np.concatenate(positions).astype(np.int32),
        slots=np.concatenate(slots).astype(np.int32),
        query_start=query_start,
        seq_lens=np.array([c.start + n for c, n in zip(chunks, sizes, strict=True)], np.int32),
        block_tables=tables,
        output_rows=output_rows.astype(np.int32),
    )


def make_sample(
    num_rows: int,
    *,
    bias: Sequence[dict[int, float]] = (),
    seen: Sequence[Sequence[int]] = (),
    made: Sequence[Sequence[int]] = (),
    **values: object,
) -> SampleBatch:
    """What to draw per row: greedy without logprobs unless told otherwise. Values are scalars or one per row."""
    unknown = set(values) - set(_DEFAULTS)
    assert not unknown, f"no such fields: {unknown}"
    arrays = {
        name: np.broadcast_to(np.asarray(values.get(name, default), dtype), (num_rows,)).copy()
        for name, (dtype, default) in _DEFAULTS.items()
    }
    biases = list(bias) or [{}] * num_rows
    for prefix, lists in (("bias", biases), ("seen", seen), ("made", made)):
        rows = [list(r) for r in lists] or [[]] * num_rows
        arrays[f"{prefix}_start"] = np.cumsum([0] + [len(r) for r in rows]).astype(np.int32)
        arrays[f"{prefix}_ids"] = np.array([i for r in rows for i in r], np.int32)
    arrays["bias_values"] = np.array([v for b in biases for v in b.values()], np.float32)
    assert set(arrays) == {f.name for f in fields(SampleBatch)}
    return SampleBatch(**arrays)


def generate(
    executor: Executor, prompt_ids: Sequence[int], num_tokens: int, **sampling: object
) -> list[int]:
    """Tokens that follow a prompt, alone in the batch, greedy unless `sampling` says otherwise."""
    table = range(num_blocks(len(prompt_ids) + num_tokens))
    chunk = Chunk(prompt_ids, 0, table)
    made: list[int] = []
    while len(made) < num_tokens:
        sample = make_sample(1, positions=len(made), **sampling)
        made.append(int(executor.execute(make_batch([chunk]), sample).token_ids[0]))
        chunk = Chunk(made[-1:], len(prompt_ids) + len(made) - 1, table)
    return made


def prompt_logprobs(
    executor: Executor, token_ids: Sequence[int], chunk_size: int = 128
) -> np.ndarray:
    """Log-probability of every token but the first, given those before it."""
    table = range(num_blocks(len(token_ids)))
    parts = []
    for chunk in _chunks(token_ids[:-1], chunk_size, table):
        targets = token_ids[chunk.start + 1 : chunk.start + 1 + len(chunk.token_ids)]
        sample = make_sample(len(targets), is_scored=True, targets=targets, num_logprobs=0)
        parts.append(executor.execute(make_batch([chunk], "all"), sample).logprobs)
    return np.concatenate(parts)


def _chunks(ids: Sequence[int], size: int, table: Sequence[int]) -> Iterable[Chunk]:
    for start in range(0, len(ids), size):
        yield Chunk(ids[start : start + size], start, table)
