"""Number formats: how weights are stored in files and KV in memory. All size arithmetic starts here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from math import prod


class QuantFormat(Enum):
    """A weight format of GGUF. Value: (ggml type number, elements per block, bytes per block).

    Source: ggml's type table; the numbers are part of the GGUF file format.
    """

    F32 = (0, 1, 4)
    F16 = (1, 1, 2)
    Q4_0 = (2, 32, 18)
    Q4_1 = (3, 32, 20)
    Q5_0 = (6, 32, 22)
    Q5_1 = (7, 32, 24)
    Q8_0 = (8, 32, 34)
    Q2_K = (10, 256, 84)
    Q3_K = (11, 256, 110)
    Q4_K = (12, 256, 144)
    Q5_K = (13, 256, 176)
    Q6_K = (14, 256, 210)
    IQ4_NL = (20, 32, 18)
    IQ4_XS = (23, 256, 136)
    BF16 = (30, 1, 2)

    @property
    def type_id(self) -> int:
        """ggml's number of the type."""
        return self.value[0]

    @property
    def block_len(self) -> int:
        """Elements per block, along the innermost dimension."""
        return self.value[1]

    @property
    def block_bytes(self) -> int:
        """Bytes per block."""
        return self.value[2]

    def num_bytes(self, num_elements: int) -> int:
        """Bytes of `num_elements` elements; they must fill whole blocks."""
        if num_elements % self.block_len:
            raise ValueError(f"{num_elements} elements are not whole blocks of {self.name}")
        return num_elements // self.block_len * self.block_bytes


FORMAT_BY_TYPE_ID: dict[int, QuantFormat] = {f.type_id: f for f in QuantFormat}


class KVDType(Enum):
    """How keys and values are stored in the KV cache. Value: bytes per element."""

    F16 = 2
    F32 = 4


def _keep() -> None:
    """Release nothing: the memory has another owner."""


@dataclass(frozen=True, slots=True)
class HostTensor:
    """One tensor as it lies in a weight file: bytes in the file's own format.

    Shapes: `shape` is row-major, outermost dimension first ([out, in] for a matrix), the reverse of GGUF's order.
    `release` tells the owner that the bytes will not be read again soon (pages may be dropped).
    """

    name: str
    shape: tuple[int, ...]
    format: QuantFormat
    data: memoryview
    release: Callable[[], None] = field(default=_keep, compare=False, repr=False)

    @property
    def num_elements(self) -> int:
        """Product of the shape."""
        return prod(self.shape)
