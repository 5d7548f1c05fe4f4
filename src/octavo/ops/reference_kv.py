"""The KV memory of the reference backend: the definition of what each KV type stores of a number.

A group of at most KV_GROUP channels of a head has factors, float16; what is stored of its numbers x is

    code * (scale * unit) + minimum    scale = float16(extent / (largest * unit)), code = x less minimum, in these steps

where `extent` is the greatest magnitude, or max(x) - minimum where there is one, `minimum` = float16(min(x)). Integer
codes are rounded to nearest even and end at the largest; 8-bit floats likewise, subnormal codes included. A group with a
NaN or an infinity reads as NaN. Nothing depends on other tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from octavo.dtypes import KVCode
from octavo.kv_layout import BLOCK_SIZE, KV_GROUP, KVLayout

_Floats = npt.NDArray[np.float32]
_Int32s = npt.NDArray[np.int32]
_Bytes = npt.NDArray[np.uint8]

_LARGEST_HALF: Final = np.float32(65504.0)


@dataclass(frozen=True, slots=True)
class _Scaling:
    """Codes in steps of scale * unit; `mantissa_bits` of those that are floats, normal from 2**-14 on."""

    largest: float
    unit: float
    mantissa_bits: int | None = None


_SCALING_BY_CODE: Final[Mapping[KVCode, _Scaling]] = {
    KVCode.INT8: _Scaling(127.0, 2.0**-7),
    KVCode.FP8_E4M3: _Scaling(448 * 2.0**-8, 1.0, 3),
    KVCode.FP8_E5M2: _Scaling(57344.0, 2.0**-15, 2),
    KVCode.UINT4: _Scaling(15.0, 2.0**-4),
}


class ReferenceKV:
    """Keys and values of every slot, each the number that its stored form stands for.

    Shapes: keys, values [num_layers, num_blocks * BLOCK_SIZE, num_kv_heads, head_dim]. Unlike KVLayout a token's
    channels are innermost: indexing by slot is easier to follow, and no result depends on it. Keys of 4 bits are
    rotated: whoever reads them rotates the queries too.
    """

    def __init__(self, layout: KVLayout, num_blocks: int) -> None:
        shape = (layout.num_layers, num_blocks * BLOCK_SIZE, layout.num_kv_heads, layout.head_dim)
        self._dtype = layout.dtype
        self.keys = np.zeros(shape, _numpy_dtype(layout.dtype.keys))
        self.values = np.zeros(shape, _numpy_dtype(layout.dtype.values))

    @property
    def has_rotated_keys(self) -> bool:
        """Whether keys are stored as `rotated` gives them."""
        return self._dtype.keys is KVCode.UINT4

    def write(self, layer: int, slots: _Int32s, keys: _Floats, values: _Floats) -> None:
        """Store one layer's keys and values [n, kv_heads, head_dim] at these slots, rounded to the stored type."""
        if self.has_rotated_keys:
            keys = rotated(keys)
        # A value beyond the range of float16 is stored as infinity, like a hardware conversion does.
        with np.errstate(over="ignore"):
            self.keys[layer, slots] = stored(keys, self._dtype.keys)
            self.values[layer, slots] = stored(values, self._dtype.values)

    def read(self, layer: int, block_table: _Int32s, num_tokens: int) -> tuple[_Floats, _Floats]:
        """Keys and values of a sequence's tokens in order, each float32 [num_tokens, kv_heads, head_dim]."""
        positions = np.arange(num_tokens)
        slots = block_table[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        keys, values = self.keys[layer, slots], self.values[layer, slots]
        return keys.astype(np.float32), values.astype(np.float32)

    def copy_block(self, source: int, destination: int) -> None:
        """Copy all layers of one block."""
        for blocks in self._blocks():
            blocks[:, destination] = blocks[:, source]

    def read_block(self, block_id: int) -> _Bytes:
        """The bytes of one block as they are kept here: keys of all layers, then values."""
        parts = [blocks[:, block_id].tobytes() for blocks in self._blocks()]
        return np.frombuffer(b"".join(parts), np.uint8)

    def write_block(self, block_id: int, data: _Bytes) -> None:
        """Overwrite one block with bytes of `read_block`."""
        keys, values = self._blocks()
        split = keys[:, block_id].nbytes
        for blocks, part in ((keys, data[:split]), (values, data[split:])):
            blocks[:, block_id] = part.view(blocks.dtype).reshape(blocks[:, block_id].shape)

    def _blocks(self) -> list[npt.NDArray[Any]]:
        """Keys and values, each [num_layers, num_blocks, BLOCK_SIZE, num_kv_heads, head_dim]."""
        stores: tuple[npt.NDArray[Any], ...] = (self.keys, self.values)
        return [store.reshape(store.shape[0], -1, BLOCK_SIZE, *store.shape[2:]) for store in stores]

    def fill(self, value: float) -> None:
        """Overwrite everything."""
        self.keys.fill(value)
        self.values.fill(value)


def stored(x: _Floats, code: KVCode) -> _Floats:
    """The numbers that are stored of x [..., head_dim] -> float32, like x (float16 rounds when it is kept)."""
    if code is KVCode.BF16:
        return _bf16(x)
    if code not in _SCALING_BY_CODE:
        return x
    starts = range(0, x.shape[-1], KV_GROUP)
    groups = [_stored_group(x[..., i : i + KV_GROUP], code) for i in starts]
    return np.concatenate(groups, axis=-1)


def rotated(x: _Floats) -> _Floats:
    """Heads x [..., head_dim] times the Hadamard matrix of the largest power of two that fits, the rest by smaller."""
    size = 1 << (x.shape[-1].bit_length() - 1)
    half = min(size, 16)
    runs = x[..., :size].reshape(*x.shape[:-1], -1, half)
    signs = [[(-1.0) ** (i & j).bit_count() for j in range(half)] for i in range(half)]
    rows = np.array(signs, np.float32)
    out = np.zeros_like(runs)
    for i in range(half):  # sums in order: every backend has the same bits
        out = out + runs[..., i : i + 1] * rows[i]
    out = out.reshape(*x.shape[:-1], size)
    while half < size:
        pairs = out.reshape(*x.shape[:-1], -1, 2, half)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        out = np.stack([a + b, a - b], axis=-2).reshape(*x.shape[:-1], size)
        half *= 2
    out = out * (np.float32(1.0) / np.sqrt(np.float32(size)))
    rest = x[..., size:]
    return np.concatenate([out, rotated(rest)], axis=-1) if rest.shape[-1] else out


def _numpy_dtype(code: KVCode) -> type[np.float16] | type[np.float32]:
    return np.float16 if code is KVCode.F16 else np.float32


def _bf16(x: _Floats) -> _Floats:
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    kept = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), x, kept.view(np.float32))


def _stored_group(x: _Floats, code: KVCode) -> _Floats:
    scaling = _SCALING_BY_CODE[code]
    is_finite = np.isfinite(x).all(axis=-1, keepdims=True)
    x = np.where(is_finite, x, np.float32(0.0))
    minimum: _Floats
    if code.has_minimum:
        lowest = np.clip(x.min(axis=-1, keepdims=True), -_LARGEST_HALF, _LARGEST_HALF)
        minimum = _half(lowest)
        extent = np.maximum(x.max(axis=-1, keepdims=True) - minimum, np.float32(0.0))
        bottom = np.float32(0.0)
    else:
        minimum = np.zeros_like(x[..., :1])
        extent = np.abs(x).max(axis=-1, keepdims=True)
        bottom = np.float32(-scaling.largest)
    widest = np.float32(scaling.largest * scaling.unit)
    step = _half(np.minimum(extent / widest, _LARGEST_HALF)) * np.float32(scaling.unit)
    steps = (x - minimum) / np.where(step > 0, step, np.float32(1.0))
    within = np.clip(steps, bottom, np.float32(scaling.largest)).astype(np.float32)
    codes = _nearest(within, scaling.mantissa_bits)
    return np.where(is_finite, codes * step + minimum, np.float32(np.nan))


def _half(x: _Floats) -> _Floats:
    half: _Floats = x.astype(np.float16).astype(np.float32)
    return half


def _nearest(x: _Floats, mantissa_bits: int | None) -> _Floats:
    if mantissa_bits is None:
        whole: _Floats = np.rint(x)
        return whole
    _, exponents = np.frexp(x)  # x = fraction * 2**exponent, fraction in [0.5, 1)
    quantum = np.ldexp(np.float32(1.0), np.maximum(exponents - 1, -14) - mantissa_bits)
    rounded: _Floats = np.rint(x / quantum) * quantum
    return rounded
