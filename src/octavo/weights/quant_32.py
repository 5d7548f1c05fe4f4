"""Formats with blocks of 32 weights and one scale, packed as in ggml.

Each dtype is the block as it lies in the file: `d` scale, `m` minimum, `qs` codes, `qh` their high bits. Nibbles hold
weights 0-15 in the low halves of the 16 bytes and 16-31 in the high halves. `decode_*` write blocks [n] to numbers
[n, 32]. Source: ggml's block definitions.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

_SCALE: Final = ("d", "<f2")
_MINIMUM: Final = ("m", "<f2")
_NIBBLES: Final = ("qs", "u1", (16,))
_HIGH_BITS: Final = ("qh", "u1", (4,))

Q4_0: Final = np.dtype([_SCALE, _NIBBLES])
Q4_1: Final = np.dtype([_SCALE, _MINIMUM, _NIBBLES])
Q5_0: Final = np.dtype([_SCALE, _HIGH_BITS, _NIBBLES])
Q5_1: Final = np.dtype([_SCALE, _MINIMUM, _HIGH_BITS, _NIBBLES])
Q8_0: Final = np.dtype([_SCALE, ("qs", "i1", (32,))])
IQ4_NL: Final = np.dtype([_SCALE, _NIBBLES])

IQ4_LEVELS: Final = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""What the 16 codes of IQ4_NL and IQ4_XS stand for, in units of the scale."""


def nibbles(packed: Bytes, group: int) -> Bytes:
    """Split bytes [n, k] into codes [n, 2 * k]: of each `group` bytes first the low halves, then the high ones."""
    grouped = packed.reshape(len(packed), -1, 1, group)
    halves = np.concatenate([grouped & np.uint8(15), grouped >> np.uint8(4)], axis=2)
    return halves.reshape(len(packed), -1)


def decode_q4_0(blocks: np.ndarray, out: Floats) -> None:
    """d * (q - 8)."""
    codes = nibbles(blocks["qs"], 16).astype(np.int8) - np.int8(8)
    np.multiply(_column(blocks["d"]), codes, out=out, dtype=np.float32)


def decode_q4_1(blocks: np.ndarray, out: Floats) -> None:
    """d * q + m."""
    np.multiply(_column(blocks["d"]), nibbles(blocks["qs"], 16), out=out, dtype=np.float32)
    out += _column(blocks["m"])


def decode_q5_0(blocks: np.ndarray, out: Floats) -> None:
    """d * (q - 16)."""
    codes = _five_bits(blocks).astype(np.int8) - np.int8(16)
    np.multiply(_column(blocks["d"]), codes, out=out, dtype=np.float32)


def decode_q5_1(blocks: np.ndarray, out: Floats) -> None:
    """d * q + m."""
    np.multiply(_column(blocks["d"]), _five_bits(blocks), out=out, dtype=np.float32)
    out += _column(blocks["m"])


def decode_q8_0(blocks: np.ndarray, out: Floats) -> None:
    """d * q."""
    np.multiply(_column(blocks["d"]), blocks["qs"], out=out, dtype=np.float32)


def decode_iq4_nl(blocks: np.ndarray, out: Floats) -> None:
    """d * level[q]."""
    levels = np.array(IQ4_LEVELS, np.float32)[nibbles(blocks["qs"], 16)]
    np.multiply(_column(blocks["d"]), levels, out=out)


def _column(scales: np.ndarray) -> Floats:
    """Scales [n] as float32 [n, 1]."""
    return scales.astype(np.float32)[:, None]


def _five_bits(blocks: np.ndarray) -> Bytes:
    """Codes 0-31 of Q5_0 and Q5_1: bit i of `qh` is the fifth bit of weight i."""
    high = np.unpackbits(np.ascontiguousarray(blocks["qh"]), axis=1, bitorder="little")
    return nibbles(blocks["qs"], 16) | (high << np.uint8(4))
