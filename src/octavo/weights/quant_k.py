"""Formats with super-blocks of 256 weights, whose sub-blocks of 16 or 32 have small scales of their own.

Each dtype is the block as it lies in the file: `d` and `dmin` scale of the scales and of the minimums, `scales` packed
small scales, `qs` codes, `qh` their high bits. `decode_*` write blocks [n] to numbers [n, 256]: d * scale * code,
less dmin * minimum where the format has one. Source: ggml's block definitions.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from octavo.weights.quant_32 import IQ4_LEVELS, nibbles

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

_SCALE: Final = ("d", "<f2")
_MIN_SCALE: Final = ("dmin", "<f2")

Q2_K: Final = np.dtype([("scales", "u1", (16,)), ("qs", "u1", (64,)), _SCALE, _MIN_SCALE])
Q3_K: Final = np.dtype([("qh", "u1", (32,)), ("qs", "u1", (64,)), ("scales", "u1", (12,)), _SCALE])
Q4_K: Final = np.dtype([_SCALE, _MIN_SCALE, ("scales", "u1", (12,)), ("qs", "u1", (128,))])
Q5_K: Final = np.dtype(
    [_SCALE, _MIN_SCALE, ("scales", "u1", (12,)), ("qh", "u1", (32,)), ("qs", "u1", (128,))]
)
Q6_K: Final = np.dtype([("ql", "u1", (128,)), ("qh", "u1", (64,)), ("scales", "i1", (16,)), _SCALE])
IQ4_XS: Final = np.dtype(
    [_SCALE, ("scales_h", "<u2"), ("scales_l", "u1", (4,)), ("qs", "u1", (128,))]
)


def decode_q2_k(blocks: np.ndarray, out: Floats) -> None:
    """16 sub-blocks of 16, 2-bit codes; a byte of `scales` holds scale (low) and minimum (high nibble)."""
    packed = blocks["scales"]
    codes = _bit_planes(blocks["qs"], 2)
    _scale_and_shift(blocks, packed & np.uint8(15), packed >> np.uint8(4), codes, out)


def decode_q3_k(blocks: np.ndarray, out: Floats) -> None:
    """16 sub-blocks of 16, 3-bit codes less 4, 6-bit scales less 32."""
    codes = _bit_planes(blocks["qs"], 2) | (_bit_planes(blocks["qh"], 1) << np.uint8(2))
    # Bytes 0-7 hold the low nibbles of scales 0-7 and 8-15; bytes 8-11 the high bits of 0-3, 4-7, 8-11, 12-15.
    packed = blocks["scales"]
    high = _bit_planes(packed[:, 8:], 2, group=4)
    scales = (nibbles(packed[:, :8], 8) | (high << np.uint8(4))).astype(np.int8) - np.int8(32)
    _scale(blocks, scales, codes.astype(np.int8) - np.int8(4), out)


def decode_q4_k(blocks: np.ndarray, out: Floats) -> None:
    """8 sub-blocks of 32, 4-bit codes, 6-bit scales and minimums."""
    scales, minimums = _six_bit_pairs(blocks["scales"])
    codes = nibbles(blocks["qs"], 32)
    _scale_and_shift(blocks, scales, minimums, codes, out)


def decode_q5_k(blocks: np.ndarray, out: Floats) -> None:
    """8 sub-blocks of 32, 5-bit codes, 6-bit scales and minimums."""
    scales, minimums = _six_bit_pairs(blocks["scales"])
    codes = nibbles(blocks["qs"], 32) | (_bit_planes(blocks["qh"], 1) << np.uint8(4))
    _scale_and_shift(blocks, scales, minimums, codes, out)


def decode_q6_k(blocks: np.ndarray, out: Floats) -> None:
    """16 sub-blocks of 16, 6-bit codes less 32, 8-bit scales."""
    codes = nibbles(blocks["ql"], 64) | (_bit_planes(blocks["qh"], 2) << np.uint8(4))
    _scale(blocks, blocks["scales"], codes.astype(np.int8) - np.int8(32), out)


def decode_iq4_xs(blocks: np.ndarray, out: Floats) -> None:
    """8 sub-blocks of 32, codes that stand for IQ4_LEVELS, 6-bit scales less 32."""
    shifts = np.arange(0, 16, 2, dtype=np.uint16)
    high = ((blocks["scales_h"][:, None] >> shifts) & np.uint16(3)).astype(np.uint8)
    scales = (nibbles(blocks["scales_l"], 1) | (high << np.uint8(4))).astype(np.int8) - np.int8(32)
    levels = np.array(IQ4_LEVELS, np.int8)[nibbles(blocks["qs"], 16)]
    _scale(blocks, scales, levels, out)


def _bit_planes(packed: Bytes, bits: int, group: int = 32) -> Bytes:
    """Split bytes [n, k] into codes of `bits` bits [n, k * 8 / bits]: of each `group` bytes first the lowest bits."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    planes = packed.reshape(len(packed), -1, 1, group) >> shifts
    planes &= np.uint8((1 << bits) - 1)
    return planes.reshape(len(packed), -1)


def _six_bit_pairs(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Scales and minimums [n, 8] of Q4_K and Q5_K.

    Byte i of 0-3 is scale i, of 4-7 minimum i - 4, in the low six bits; the two bits above belong to scale or
    minimum i + 4, whose four low bits are byte i + 8: low nibble the scale's, high nibble the minimum's.
    """
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    six, two = np.uint8(0x3F), np.uint8(0x30)
    late_scales = (third & np.uint8(15)) | ((first >> np.uint8(2)) & two)
    late_minimums = (third >> np.uint8(4)) | ((second >> np.uint8(2)) & two)
    return (
        np.concatenate([first & six, late_scales], axis=1),
        np.concatenate([second & six, late_minimums], axis=1),
    )


def _scale(blocks: np.ndarray, scales: np.ndarray, codes: np.ndarray, out: Floats) -> None:
    """out = (d * scale) * code, by sub-block. Shapes: scales [n, s], codes and out [n, 256]."""
    steps = _times(blocks["d"], scales)
    by_group = (*steps.shape, -1)
    np.multiply(
        steps[..., None], codes.reshape(by_group), out=out.reshape(by_group), dtype=np.float32
    )


def _scale_and_shift(
    blocks: np.ndarray, scales: Bytes, minimums: Bytes, codes: Bytes, out: Floats
) -> None:
    """out = (d * scale) * code - dmin * minimum, by sub-block. Shapes as in `_scale`, minimums [n, s]."""
    _scale(blocks, scales, codes, out)
    shifts = _times(blocks["dmin"], minimums)
    by_group = out.reshape(*shifts.shape, -1)
    by_group -= shifts[..., None]


def _times(scale: np.ndarray, small: np.ndarray) -> Floats:
    """A block's scale [n] times its small integers [n, s], in float32."""
    return scale.astype(np.float32)[:, None] * small.astype(np.float32)
