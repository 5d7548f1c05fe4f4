"""Random tensors in any weight format, made block by block: the bytes are random, the scales are not wild."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from octavo.dtypes import QuantFormat

Bytes = npt.NDArray[np.uint8]


class _Scales(NamedTuple):
    """Where a block keeps its float16 scale and minimum, and what they must be for elements of mean 0 and deviation 1.

    With random codes and small scales the elements have deviation `unit` times the scale; the minimum is `minimum`
    times the scale. Both follow from the formats, and a test measures them. Codes that reach one further down than up
    need scales of both signs, as real files have them too.
    """

    at: int
    unit: float
    minimum_at: int | None = None
    minimum: float = 0.0
    has_both_signs: bool = False


_SCALES: Final = MappingProxyType[QuantFormat, _Scales](
    {
        QuantFormat.Q4_0: _Scales(0, 4.6, has_both_signs=True),
        QuantFormat.Q4_1: _Scales(0, 4.6, 2, -7.5),
        QuantFormat.Q5_0: _Scales(0, 9.2, has_both_signs=True),
        QuantFormat.Q5_1: _Scales(0, 9.2, 2, -15.5),
        QuantFormat.Q8_0: _Scales(0, 74.0),
        QuantFormat.Q4_K: _Scales(0, 260.0, 2, 7.5),
        QuantFormat.Q5_K: _Scales(0, 530.0, 2, 15.5),
        QuantFormat.Q6_K: _Scales(208, 1365.0),
    }
)
_SLAB_ELEMENTS: Final = 1 << 20
"""Floats are made so many at a time: their temporaries are larger than the tensor."""


def _keep() -> None:
    """Nothing to release: the bytes go with their last reference."""


@dataclass(frozen=True, slots=True)
class RandomTensor:
    """A tensor whose bytes are made when they are asked for, the same each time. See weights.writer.WritableTensor.

    Elements have mean `mean` and standard deviation `std`; a quantised tensor has mean 0.
    """

    name: str
    shape: tuple[int, ...]
    format: QuantFormat
    seed: tuple[int, ...]
    std: float
    mean: float = 0.0
    release: Callable[[], None] = _keep

    @property
    def num_bytes(self) -> int:
        """Bytes of the data."""
        return self.format.num_bytes(prod(self.shape))

    @property
    def data(self) -> memoryview:
        """The bytes as they lie in a file."""
        rng = np.random.Generator(np.random.SFC64(self.seed))
        if self.format in _SCALES:
            return _random_blocks(self.num_bytes, self.format, rng, self.std).reshape(-1).data
        return self._random_floats(rng).view(np.uint8).data

    def _random_floats(self, rng: np.random.Generator) -> np.ndarray:
        count = prod(self.shape)
        dtype = np.uint16 if self.format is QuantFormat.BF16 else np.float16
        out = np.empty(count, np.float32 if self.format is QuantFormat.F32 else dtype)
        for start in range(0, count, _SLAB_ELEMENTS):
            part = out[start : start + _SLAB_ELEMENTS]
            values = rng.standard_normal(len(part), np.float32) * np.float32(self.std)
            values += np.float32(self.mean)
            is_bf16 = self.format is QuantFormat.BF16  # its bits are the upper half of a float32
            part[:] = values.view(np.uint32) >> np.uint32(16) if is_bf16 else values
        return out


def _random_blocks(
    num_bytes: int, format_: QuantFormat, rng: np.random.Generator, std: float
) -> Bytes:
    """Blocks [n, block_bytes] of random bits, with scales that vary a little around what `std` needs."""
    scales = _SCALES[format_]
    blocks = rng.integers(0, 256, num_bytes, np.uint8).reshape(-1, format_.block_bytes)
    scale = rng.uniform(0.7, 1.3, len(blocks)) * (std / scales.unit)
    if scales.has_both_signs:
        scale *= rng.choice((-1.0, 1.0), len(blocks))
    blocks[:, scales.at : scales.at + 2] = _halves(scale)
    if scales.minimum_at is not None:
        minimum = _halves(scale * scales.minimum)
        blocks[:, scales.minimum_at : scales.minimum_at + 2] = minimum
    return blocks


def _halves(values: np.ndarray) -> Bytes:
    return values.astype("<f2").view(np.uint8).reshape(-1, 2)
