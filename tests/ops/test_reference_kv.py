"""What each KV type stores, on numbers one can check by hand; the bytes of the native core are tested in C++."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.dtypes import KVCode, KVDType
from octavo.kv_layout import BLOCK_SIZE, KVLayout
from octavo.ops.reference_kv import ReferenceKV, rotated, stored


@pytest.mark.parametrize("code", [c for c in KVCode if c.has_scale])
def test_a_token_is_rounded_from_its_own_values_alone(code: KVCode) -> None:
    x = np.random.default_rng(0).normal(size=(5, 2, 80)).astype(np.float32)
    x[3] *= 1000
    whole = stored(x, code)
    for token in range(5):
        np.testing.assert_array_equal(stored(x[token : token + 1], code)[0], whole[token])
    # 64 channels share a scale: the others are rounded as if they were alone.
    np.testing.assert_array_equal(stored(x[..., 64:], code), whole[..., 64:])


def test_int8_steps_are_a_127th_of_the_greatest() -> None:
    x = np.float32([[127, 1.5, 2.5, -126.6, 0.4]])  # scale 128: steps of 1
    assert stored(x, KVCode.INT8).tolist() == [[127, 2, 2, -127, 0]]


def test_int4_steps_count_from_the_minimum() -> None:
    x = np.float32([[-5, 10, -4.6, 0.4, 9.4]])
    assert stored(x, KVCode.UINT4).tolist() == [[-5, 10, -5, 0, 9]]


def test_8_bit_floats_keep_three_or_two_bits() -> None:
    x = np.float32([[1.75, 1.0625, 1.1875, 2.0**-13, -0.3]])
    assert stored(x, KVCode.FP8_E4M3).tolist() == [[1.75, 1.0, 1.25, 2.0**-13, -0.3125]]
    assert stored(x, KVCode.FP8_E5M2).tolist() == [[1.75, 1.0, 1.25, 2.0**-13, -0.3125]]
    assert stored(np.float32([[1.75, 2.0**-18]]), KVCode.FP8_E4M3).tolist() == [[1.75, 0.0]]
    assert stored(np.float32([[1.75, 2.0**-18]]), KVCode.FP8_E5M2).tolist() == [[1.75, 2.0**-18]]


def test_bf16_rounds_to_nearest_even() -> None:
    x = np.float32([[1 + 2.0**-8, 1 + 3 * 2.0**-8, -1 - 2.0**-8 - 2.0**-20, np.inf]])
    assert stored(x, KVCode.BF16).tolist() == [[1.0, 1 + 2.0**-6, -1 - 2.0**-7, np.inf]]


@pytest.mark.parametrize("code", [c for c in KVCode if c.has_scale])
def test_extremes(code: KVCode) -> None:
    zeros = np.zeros((1, 64), np.float32)
    np.testing.assert_array_equal(stored(zeros, code), zeros)
    huge = zeros + np.float32(1e30)
    assert np.isfinite(stored(huge, code)).all()
    assert (stored(huge, code) > 6e4).all()
    for odd in (np.nan, np.inf):
        x = np.ones((2, 128), np.float32)
        x[0, 70] = odd
        out = stored(x, code)
        assert np.isnan(out[0, 64:]).all()
        np.testing.assert_allclose(out[0, :64], 1.0, rtol=1e-2)
        np.testing.assert_allclose(out[1], 1.0, rtol=1e-2)


@pytest.mark.parametrize("size", [1, 7, 40, 64, 80, 256])
def test_rotation_keeps_products_and_spreads_an_outlier(size: int) -> None:
    a, b = np.random.default_rng(1).normal(size=(2, 3, size)).astype(np.float32)
    products = (rotated(a) * rotated(b)).sum(-1)
    np.testing.assert_allclose(products, (a * b).sum(-1), atol=2e-5)
    alone = np.zeros((1, size), np.float32)
    alone[0, 0] = 8.0
    power = 1 << (size.bit_length() - 1)
    np.testing.assert_allclose(rotated(alone)[0, :power], 8.0 / power**0.5, rtol=1e-6)


@pytest.mark.parametrize("dtype", list(KVDType))
def test_memory_holds_what_the_types_say(dtype: KVDType) -> None:
    kv = ReferenceKV(KVLayout(2, 1, 64, dtype), 3)
    kv.fill(float("nan"))
    x = np.random.default_rng(2).normal(size=(2, 20, 1, 64)).astype(np.float32)
    slots = np.arange(20, dtype=np.int32) + BLOCK_SIZE
    kv.write(1, slots, x[0], x[1])
    keys, values = kv.read(1, np.int32([1, 2]), 20)
    error = {KVCode.F32: 0.0, KVCode.F16: 1e-3, KVCode.BF16: 1e-2, KVCode.UINT4: 0.25}
    wanted = rotated(x[0]) if kv.has_rotated_keys else x[0]
    np.testing.assert_allclose(keys, wanted, atol=error.get(dtype.keys, 0.25))
    np.testing.assert_allclose(values, x[1], atol=error.get(dtype.values, 0.25))
    kv.copy_block(1, 0)
    again, _ = kv.read(1, np.int32([0, 2]), 20)
    np.testing.assert_array_equal(again, keys)


def test_bytes_at_head_size_64() -> None:
    full = KVLayout(30, 3, 64).token_bytes
    assert full == 2 * 30 * 3 * 64 * 2
    least = {
        KVDType.BF16: 1.0,
        KVDType.F32: 0.5,
        KVDType.INT8: 1.9,
        KVDType.FP8_E4M3: 1.9,
        KVDType.FP8_E5M2: 1.9,
        KVDType.INT8_INT4: 2.4,
        KVDType.INT4: 3.5,
    }
    for dtype, gain in least.items():
        layout = KVLayout(30, 3, 64, dtype)
        assert full / layout.token_bytes >= gain
        assert layout.token_bytes * BLOCK_SIZE == layout.block_bytes
        assert layout.layer_bytes % 64 == 0
