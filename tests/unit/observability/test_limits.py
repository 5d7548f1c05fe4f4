"""The formulas: what a step needs at least, and what the machine allows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo.observability.limits import (
    Bound,
    MachineCeilings,
    MatrixWork,
    ModelWork,
    ReadRate,
    decode_limit,
    prefill_limit,
    step_limit,
)

# Layer 0 sees everything, layer 1 a window of 4 tokens.
WORK = ModelWork(MatrixWork(1000, 0, 600), MatrixWork(300, 50, 400), (10, 10), (0, 4))
CEILINGS = MachineCeilings(
    kernel_table="t",
    num_threads=2,
    int8_instructions="i",
    int8_macs_per_s=1000.0,
    bf16_macs_per_s=None,
    f32_macs_per_s=100.0,
    reads=(ReadRate(900, 2000.0), ReadRate(10**6, 500.0)),
)


def test_a_decode_step_reads_weights_and_the_visible_context() -> None:
    assert WORK.weight_bytes == 1000
    assert WORK.context_bytes([3]) == 60
    assert WORK.context_bytes([3, 10]) == 60 + 100 + 40
    limit = decode_limit(WORK, CEILINGS, [3, 10])
    assert limit.memory_s == pytest.approx(1200 / 2000)
    assert limit.arithmetic_s == pytest.approx((2 * 1000 + 2 * 300) / 1000 + 2 * 50 / 100)
    assert (limit.seconds, limit.bound) == (limit.arithmetic_s, Bound.ARITHMETIC)


def test_prefill_needs_the_head_for_the_last_token_only() -> None:
    limit = prefill_limit(WORK, CEILINGS, num_tokens=64, num_seqs=2)
    assert limit.arithmetic_s == pytest.approx((64 * 1000 + 2 * 300) / 1000 + 2 * 50 / 100)
    assert limit.memory_s == pytest.approx(1000 / 2000)


def test_reading_bounds_a_step_of_little_arithmetic() -> None:
    fast = replace(CEILINGS, int8_macs_per_s=1e9, f32_macs_per_s=1e9)
    limit = step_limit(WORK, fast, num_tokens=1, num_rows=1, context_bytes=0)
    assert (limit.bound, limit.seconds) == (Bound.MEMORY, 0.5)


@pytest.mark.parametrize(("size", "rate"), [(1, 2000.0), (20_000, 2000.0), (40_000, 500.0)])
def test_bandwidth_is_that_of_the_buffer_nearest_in_size(size: int, rate: float) -> None:
    assert CEILINGS.read_bytes_per_s(size) == rate


def test_between_two_measurements_their_mean_was_allowed() -> None:
    reads = (ReadRate(900, 1000.0), ReadRate(10**6, 700.0))
    other = replace(CEILINGS, int8_macs_per_s=900.0, f32_macs_per_s=80.0, reads=reads)
    mean = CEILINGS.mean_with(other)
    assert (mean.int8_macs_per_s, mean.f32_macs_per_s) == (950.0, 90.0)
    assert mean.reads == (ReadRate(900, 1500.0), ReadRate(10**6, 600.0))
    assert CEILINGS.mean_with(CEILINGS) == CEILINGS
