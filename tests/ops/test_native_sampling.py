"""Draws of the native sampler follow the distribution that `reference` defines; odd logits do no harm."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from octavo.kv_layout import KVLayout
from octavo.ops import reference_sampling as definition
from octavo.ops.native import NativeExecutor
from octavo.ops.protocol import SampleResult
from tests.ops.batches import Chunk, make_batch, make_sample, num_blocks
from tests.ops.native_backends import ISAS, native
from tests.ops.sampler_cases import LogitsModel

NUM_DRAWS = 20_000
ROWS = 1000

SAMPLERS = {
    "temperature": {"temperature": 0.7},
    "hot": {"temperature": 1.8},
    "top_k": {"temperature": 1.0, "top_k": 17},
    "top_p": {"temperature": 1.0, "top_p": 0.8},
    "min_p": {"temperature": 1.0, "min_p": 0.05},
    "typical_p": {"temperature": 1.0, "typical_p": 0.7},
    "penalties": {
        "temperature": 1.0,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.3,
    },
    "all": {"temperature": 1.2, "top_k": 40, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.9},
}


def _executor(isa: str, logits: np.ndarray, num_rows: int = ROWS) -> NativeExecutor:
    backend = native(isa)
    model = LogitsModel(backend.ops, logits.astype(np.float32))
    return backend.compile(model, KVLayout(1, 1, 16), num_blocks(num_rows), num_rows)


def _draw(executor: NativeExecutor, rows: Sequence[int], **sampling: object) -> SampleResult:
    """One token from each of these rows of logits."""
    chunk = Chunk(rows, 0, range(num_blocks(len(rows))))
    return executor.execute(make_batch([chunk], "all"), make_sample(len(rows), **sampling))


def _defined_probs(logits: np.ndarray, sampling: dict) -> np.ndarray:
    """Probabilities after all filters, from the definition."""
    sample = make_sample(1, **sampling)
    adjusted = definition.penalised(logits.astype(np.float32), sample, 0).astype(np.float64)
    weights = np.exp((adjusted - adjusted.max()) / sample.temperature[0])
    probs = definition.keep_min_p(weights / weights.sum(), float(sample.min_p[0]))
    probs = definition.keep_top_k(probs, int(sample.top_k[0]))
    probs = definition.keep_top_p(probs, float(sample.top_p[0]))
    return definition.keep_typical(probs, float(sample.typical_p[0]))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", SAMPLERS)
def test_20_000_draws_follow_the_defined_distribution(isa: str, name: str):
    logits = np.random.default_rng(1).standard_normal(60) * 1.5
    lists = {"seen": [[1, 5, 5, 40]], "made": [[5, 5, 7]]}
    probs = _defined_probs(logits, SAMPLERS[name] | lists)
    executor = _executor(isa, logits[None, :])
    counts = np.zeros(60)
    for start in range(0, NUM_DRAWS, ROWS):
        seeds = np.arange(start, start + ROWS) * 977 + 5
        lists_of_rows = {k: v * ROWS for k, v in lists.items()}
        drawn = _draw(executor, [0] * ROWS, seeds=seeds, **SAMPLERS[name], **lists_of_rows)
        counts += np.bincount(drawn.token_ids, minlength=60)
    executor.close()
    assert counts[probs == 0].sum() == 0
    expected = probs[probs > 0] * NUM_DRAWS
    statistic = ((counts[probs > 0] - expected) ** 2 / expected).sum()
    degrees = len(expected) - 1
    # Chi-square has mean `degrees` and variance 2 * degrees; five standard deviations.
    assert statistic < degrees + 5 * np.sqrt(2 * degrees)


@pytest.mark.parametrize("isa", ISAS)
def test_logits_that_are_not_numbers_give_a_valid_token(isa: str):
    rows = np.random.default_rng(2).standard_normal((6, 5000))
    rows[0, :] = np.nan
    rows[1, 7] = np.nan
    rows[2, 4500] = np.inf
    rows[3, :] = -np.inf
    rows[4, 4097:] = np.nan
    # A product with infinite weights would spread NaN: these logits come from the bias of the sampler instead.
    executor = _executor(isa, np.zeros((1, 5000)), 6)
    bias = [dict(enumerate(row)) for row in rows]
    for sampling in (
        {},
        {"temperature": 1.0},
        {"temperature": 1.0, "top_k": 5},
        {"temperature": 1.0, "top_p": 0.5},
        {"temperature": 1.0, "min_p": 0.1, "typical_p": 0.5},
        {"temperature": 1.0, "typical_p": 0.5},
    ):
        result = _draw(executor, [0] * 6, bias=bias, num_logprobs=3, seeds=range(6), **sampling)
        assert ((result.token_ids >= 0) & (result.token_ids < 5000)).all()
        assert result.token_ids[2] == 4500
        assert result.token_ids[1] != 7
    executor.close()


@pytest.mark.parametrize("isa", ISAS)
def test_raw_logits_that_are_not_numbers_give_a_valid_token(isa: str):
    executor = _executor(isa, np.full((1, 5000), np.nan), 2)
    for temperature in (0.0, 1.0):
        result = _draw(executor, [0, 0], temperature=temperature, num_logprobs=5)
        assert ((result.token_ids >= 0) & (result.token_ids < 5000)).all()
        assert (result.top_ids == -1).all()
    executor.close()


@pytest.mark.parametrize("isa", ISAS)
def test_more_alternatives_than_ids_are_padded(isa: str):
    executor = _executor(isa, np.arange(5.0)[None, :], 1)
    result = _draw(executor, [0], num_logprobs=8)
    assert result.top_ids[0].tolist() == [4, 3, 2, 1, 0, -1, -1, -1]
    assert np.isnan(result.top_logprobs[0]).tolist() == [False] * 5 + [True] * 3
    executor.close()


@pytest.mark.parametrize("isa", ISAS)
def test_a_banned_id_is_never_drawn(isa: str):
    logits = np.zeros((1, 50))
    executor = _executor(isa, logits)
    bias = [{3: -np.inf, 4: -np.inf}] * ROWS
    for sampling in ({}, {"top_k": 49}, {"top_p": 0.999}, {"typical_p": 0.999}):
        drawn = _draw(
            executor, [0] * ROWS, bias=bias, temperature=2.0, seeds=range(ROWS), **sampling
        )
        assert not np.isin(drawn.token_ids, [3, 4]).any()
    executor.close()
