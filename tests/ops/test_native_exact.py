"""Bits of the native backend never depend on neighbours, chunks, threads, block tables or what free blocks hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from octavo.config import ActivationPrecision
from octavo.dtypes import KVDType, QuantFormat
from octavo.models.base import LoadedModel
from octavo.models.table import load_model
from octavo.ops.decode_run import decode_by_steps
from octavo.ops.native import NativeExecutor
from octavo.ops.protocol import DecodeRun, SampleResult
from tests.ops.batches import Chunk, make_batch, make_sample, num_blocks
from tests.ops.native_backends import ISAS, native
from tests.tiny_models import tiny_source

POOL_BLOCKS = 160
MAX_TOKENS = 512
TOP = 20
LENGTHS = (1, 7, 8, 9, 16, 130, 257)


@dataclass(frozen=True)
class Setup:
    """The same model on one and on two threads."""

    single: NativeExecutor
    double: NativeExecutor


def _load(
    architecture: str,
    isa: str,
    precision: ActivationPrecision,
    kv_dtype: KVDType,
    num_threads: int,
) -> NativeExecutor:
    backend = native(isa, num_threads, precision)
    source = tiny_source(
        architecture,
        hidden_size=256,
        num_heads=4,
        num_kv_heads=1,
        head_dim=64,
        intermediate_size=256,
        # Every kind of product: quantised, quantised with minimum, sub-blocks of 16, levels, float.
        formats=tuple(QuantFormat),
        embed_format=QuantFormat.Q8_0,
        window=140,
        # Gemma's sixth layer is the first without a window.
        num_layers=6 if architecture == "gemma3" else 2,
    )
    loaded: LoadedModel = load_model(source, backend.ops)
    layout = loaded.config.kv_layout(kv_dtype)
    return backend.compile(loaded.model, layout, POOL_BLOCKS, MAX_TOKENS)


@pytest.fixture(
    scope="module",
    params=[
        *(
            (isa, architecture, ActivationPrecision.INT8, KVDType.F16)
            for isa in ISAS
            for architecture in ("llama", "gemma3")
        ),
        # The C++ tests take every table.
        (ISAS[0], "llama", ActivationPrecision.INT8X2, KVDType.F16),
        *(
            (ISAS[0], "llama", ActivationPrecision.INT8, dtype)
            for dtype in KVDType
            if dtype is not KVDType.F16
        ),
    ],
    ids=lambda param: f"{param[0]}-{param[1]}-{param[2].value}-{param[3].name}",
)
def setup(request: pytest.FixtureRequest) -> Iterator[Setup]:
    isa, architecture, precision, dtype = request.param
    setup = Setup(*(_load(architecture, isa, precision, dtype, threads) for threads in (1, 2)))
    yield setup
    setup.single.close()
    setup.double.close()


def _prompt(length: int) -> list[int]:
    return np.random.default_rng(length).integers(0, 320, length).tolist()


def _tables(lengths: Sequence[int], seed: int) -> list[np.ndarray]:
    """Shuffled, disjoint block tables."""
    ids = np.random.default_rng(seed).permutation(POOL_BLOCKS)
    ends = np.cumsum([num_blocks(n) for n in lengths])
    return [ids[end - num_blocks(n) : end] for end, n in zip(ends, lengths, strict=True)]


def _last_rows(executor: NativeExecutor, chunks: Sequence[Chunk]) -> SampleResult:
    return executor.execute(make_batch(chunks), make_sample(len(chunks), num_logprobs=TOP))


def _alone(executor: NativeExecutor, length: int, chunk_size: int, seed: int) -> SampleResult:
    """The last row of a prompt that is alone in the batch, given in chunks."""
    ids, [table] = _prompt(length), _tables([length], seed)
    executor.fill_kv(float("nan"))
    for start in range(0, length, chunk_size):
        result = _last_rows(executor, [Chunk(ids[start : start + chunk_size], start, table)])
    return result


def _assert_row(result: SampleResult, row: int, expected: SampleResult) -> None:
    assert np.isfinite(expected.top_logprobs).all()
    np.testing.assert_array_equal(result.top_ids[row], expected.top_ids[0])
    np.testing.assert_array_equal(result.top_logprobs[row], expected.top_logprobs[0])
    assert result.token_ids[row] == expected.token_ids[0]


@pytest.mark.parametrize("length", LENGTHS)
def test_chunks_threads_and_blocks_change_no_bit(setup: Setup, length: int):
    expected = _alone(setup.single, length, MAX_TOKENS, seed=0)
    for executor in (setup.single, setup.double):
        for chunk_size in (1, 16, 64, MAX_TOKENS):
            if length // chunk_size > 20 and executor is setup.single:
                continue  # one token at a time is covered with two threads
            _assert_row(_alone(executor, length, chunk_size, seed=chunk_size), 0, expected)


def test_batch_mates_change_no_bit(setup: Setup):
    lengths = LENGTHS
    expected = [_alone(setup.single, n, MAX_TOKENS, seed=0) for n in lengths]
    for executor in (setup.single, setup.double):
        executor.fill_kv(float("nan"))
        tables = _tables(lengths, seed=3)
        result = _last_rows(
            executor,
            [Chunk(_prompt(n), 0, table) for n, table in zip(lengths, tables, strict=True)],
        )
        for row in range(len(lengths)):
            _assert_row(result, row, expected[row])


def test_decoding_together_equals_decoding_alone(setup: Setup):
    """40 sequences: more rows than a slab of logits, more tiles than threads."""
    lengths = [1 + 2 * i for i in range(40)]
    tables = _tables(lengths, seed=4)
    setup.double.fill_kv(float("nan"))
    setup.single.fill_kv(float("nan"))
    for n, table in zip(lengths, tables, strict=True):
        if n > 1:
            for executor in (setup.single, setup.double):
                _last_rows(executor, [Chunk(_prompt(n)[:-1], 0, table)])
    chunks = [
        Chunk(_prompt(n)[-1:], n - 1, table) for n, table in zip(lengths, tables, strict=True)
    ]
    together = _last_rows(setup.double, chunks)
    for row, chunk in enumerate(chunks):
        _assert_row(together, row, _last_rows(setup.single, [chunk]))


def test_wanted_rows_change_no_bit(setup: Setup):
    ids, [table] = _prompt(100), _tables([100], seed=5)
    chunk = Chunk(ids, 0, table)
    every = setup.double.execute(make_batch([chunk], "all"), make_sample(100, num_logprobs=TOP))
    some = setup.double.execute(make_batch([chunk], [3, 50, 99]), make_sample(3, num_logprobs=TOP))
    np.testing.assert_array_equal(some.top_logprobs, every.top_logprobs[[3, 50, 99]])
    none = setup.double.execute(make_batch([chunk], []), make_sample(0))
    assert none.token_ids.shape == (0,)


def test_seeded_draws_do_not_depend_on_neighbours(setup: Setup):
    [table] = _tables([64], seed=6)
    chunk = Chunk(_prompt(64), 0, table)
    sampling = {
        "temperature": np.linspace(0.5, 3.0, 64),
        "seeds": np.arange(64),
        "top_p": np.where(np.arange(64) % 2, 0.8, 1.0),
        "top_k": np.arange(64) % 3 * 20,
    }
    together = setup.double.execute(make_batch([chunk], "all"), make_sample(64, **sampling))
    for row in (0, 1, 31, 32, 63):
        alone = setup.single.execute(
            make_batch([chunk], [row]), make_sample(1, **{k: v[row] for k, v in sampling.items()})
        )
        # The executors hold the same weights; only the batch differs.
        assert alone.token_ids[0] == together.token_ids[row]


def test_copied_block_continues_like_the_original(setup: Setup):
    ids, [table] = _prompt(40), _tables([48], seed=7)
    executor = setup.double
    _last_rows(executor, [Chunk(ids, 0, table)])
    expected = _last_rows(executor, [Chunk([5], 40, table)])
    spare = next(i for i in range(POOL_BLOCKS) if i not in table)
    _last_rows(executor, [Chunk(ids, 0, table)])
    executor.copy_blocks([(int(table[2]), spare)])
    _assert_row(_last_rows(executor, [Chunk([5], 40, [*table[:2], spare])]), 0, expected)


@pytest.mark.parametrize("num_rows", [1, 3, 9])
def test_a_run_of_decode_steps_equals_single_steps(setup, num_rows) -> None:
    lengths = [4 + 13 * i for i in range(num_rows)]
    tables = _tables([n + 40 for n in lengths], 3)
    sampling = {"temperature": np.arange(num_rows) % 2 * 0.9, "seeds": np.arange(num_rows)}
    prompts = [Chunk(_prompt(n), 0, t) for n, t in zip(lengths, tables, strict=True)]
    first = setup.single.execute(make_batch(prompts), make_sample(num_rows, **sampling)).token_ids
    decoding = [Chunk([token], n, t) for token, n, t in zip(first, lengths, tables, strict=True)]
    batch, sample = make_batch(decoding), make_sample(num_rows, positions=1, **sampling)
    free = DecodeRun(24, np.zeros(num_rows + 1, np.int32), np.zeros(0, np.int32))
    expected = decode_by_steps(setup.single.execute, batch, sample, free)
    for executor in (setup.single, setup.double):
        executor.execute(make_batch(prompts), make_sample(num_rows, **sampling))
        np.testing.assert_array_equal(executor.decode(batch, sample, free), expected)
        ends = np.arange(num_rows + 1, dtype=np.int32)
        run = DecodeRun(24, ends, expected[7])
        over = (expected == expected[7]).any(axis=1)
        cut = executor.decode(batch, sample, run)
        np.testing.assert_array_equal(cut, expected[: int(np.argmax(over)) + 1])
        stopped = replace(free, stop=np.ones(1, np.int32))
        np.testing.assert_array_equal(executor.decode(batch, sample, stopped), expected[:1])


def test_a_run_of_decode_steps_refuses_what_it_cannot_do(setup) -> None:
    [table] = _tables([40], 1)
    batch = make_batch([Chunk([1], 8, table)])
    none = DecodeRun(4, np.zeros(2, np.int32), np.zeros(0, np.int32))
    refused = [
        (batch, make_sample(1, num_logprobs=0), none),
        (batch, make_sample(1, bias=[{3: 1.0}]), none),
        (batch, make_sample(1, is_scored=True, targets=1), none),
        (make_batch([Chunk([1, 2], 8, table)]), make_sample(1), none),
        (batch, make_sample(1), DecodeRun(400, none.end_start, none.end_ids)),
        (batch, make_sample(1), DecodeRun(0, none.end_start, none.end_ids)),
        (batch, make_sample(1), DecodeRun(4, np.zeros(3, np.int32), none.end_ids)),
        (batch, make_sample(1), replace(none, stop=np.zeros(0, np.int32))),
    ]
    for arguments in refused:
        with pytest.raises(
            ValueError, match=r"run of decode|num_steps|reach|end_ids|elements|stop"
        ):
            setup.double.decode(*arguments)
    assert setup.double.decode(batch, make_sample(1), none).shape == (4, 1)
