"""Which steps a figure is made of, and so how fast it could be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo.bench.options import CONTEXT_TOKENS, MeasureConfig
from octavo.bench.shares import FigureLimits, limits_report
from octavo.observability.limits import Bound, MatrixWork, ModelWork, ReadRate
from tests.unit.bench.conftest import CEILINGS

WORK = ModelWork(MatrixWork(10**8, 0, 10**8), MatrixWork(10**7, 0, 10**7), (1000,), (0,))
LIMITS = FigureLimits(WORK, CEILINGS, MeasureConfig(prompt=512, gen=64))
MEAN_CONTEXT = CONTEXT_TOKENS + 32


def decode_s(batch: int) -> tuple[float, float]:
    """Seconds of a step by memory and by arithmetic."""
    return (1.1e8 + batch * MEAN_CONTEXT * 1000) / 2.2e9, batch * 1.1e8 / 1e11


def test_prefill_is_one_step() -> None:
    limit = LIMITS.prefill()
    assert limit.arithmetic_tokens_per_s == pytest.approx(512 / ((512 * 1e8 + 1e7) / 1e11))
    assert limit.memory_tokens_per_s == pytest.approx(512 / 0.05)
    assert (limit.bound, limit.tokens_per_s) == (Bound.ARITHMETIC, limit.arithmetic_tokens_per_s)
    assert limit.share(limit.tokens_per_s / 4) == 0.25


@pytest.mark.parametrize(("batch", "bound"), [(1, Bound.MEMORY), (64, Bound.ARITHMETIC)])
def test_decoding_reads_the_weights_once_for_all(batch: int, bound: Bound) -> None:
    memory_s, arithmetic_s = decode_s(batch)
    limit = LIMITS.decode(batch)
    assert limit.memory_tokens_per_s == pytest.approx(batch / memory_s)
    assert limit.arithmetic_tokens_per_s == pytest.approx(batch / arithmetic_s)
    assert limit.bound is bound
    assert limit.tokens_per_s == pytest.approx(batch / max(memory_s, arithmetic_s))


def test_a_mixed_run_is_bounded_part_by_part() -> None:
    limit = LIMITS.mixed(2)
    prefill_s = (2 * CONTEXT_TOKENS * 1e8 + 2 * 1e7) / 1e11
    memory_s, _ = decode_s(2)
    assert limit.tokens_per_s == pytest.approx(128 / (prefill_s + 63 * memory_s))
    assert limit.tokens_per_s < min(limit.memory_tokens_per_s, limit.arithmetic_tokens_per_s)


def test_each_round_has_the_limits_of_its_own_moment() -> None:
    half = replace(
        CEILINGS, reads=tuple(ReadRate(r.num_bytes, r.bytes_per_s / 2) for r in CEILINGS.reads)
    )
    limit = LIMITS.decode(1).tokens_per_s
    rounds = {("decode", 1): [limit * 0.8, limit * 0.4, limit * 0.5]}
    allowed = {("decode", 1): [CEILINGS, half, CEILINGS]}
    report = limits_report(WORK, CEILINGS, MeasureConfig(prompt=512, gen=64), rounds, allowed)
    shares = report["shares"]
    assert isinstance(shares, dict)
    entry = shares["decode"]["1"]
    assert (entry["share"], entry["best_share"]) == (pytest.approx(0.8), pytest.approx(0.8))
    assert entry["tokens_per_s"] == pytest.approx(limit)
