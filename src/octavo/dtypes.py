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


class KVCode(Enum):
    """What is stored of one channel of a key or value. Value: (name, bits, has a scale, has a minimum).

    Scales and minima are float16, one for each token, head and KV_GROUP channels.
    """

    F16 = ("f16", 16, False, False)
    BF16 = ("bf16", 16, False, False)
    F32 = ("f32", 32, False, False)
    INT8 = ("int8", 8, True, False)
    FP8_E4M3 = ("fp8_e4m3", 8, True, False)
    FP8_E5M2 = ("fp8_e5m2", 8, True, False)
    UINT4 = ("uint4", 4, True, True)

    @property
    def bits(self) -> int:
        """Bits of a channel, factors not counted."""
        return self.value[1]

    @property
    def has_scale(self) -> bool:
        """Whether codes are multiples of a scale."""
        return self.value[2]

    @property
    def has_minimum(self) -> bool:
        """Whether codes count from a minimum."""
        return self.value[3]


class KVDType(Enum):
    """How keys and values are stored in the KV cache. Value: the spelling users see."""

    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"
    INT8 = "int8"
    FP8_E4M3 = "fp8_e4m3"
    FP8_E5M2 = "fp8_e5m2"
    INT8_INT4 = "int8/int4"
    INT4 = "int4"

    @property
    def keys(self) -> KVCode:
        """What is stored of keys; those of 4 bits are rotated by a Hadamard matrix first."""
        return _CODES_BY_KV_DTYPE[self][0]

    @property
    def values(self) -> KVCode:
        """What is stored of values."""
        return _CODES_BY_KV_DTYPE[self][1]

    @property
    def number(self) -> int:
        """Its place in this class: the native core's number."""
        return list(KVDType).index(self)


_CODES_BY_KV_DTYPE: dict[KVDType, tuple[KVCode, KVCode]] = {
    KVDType.F16: (KVCode.F16, KVCode.F16),
    KVDType.BF16: (KVCode.BF16, KVCode.BF16),
    KVDType.F32: (KVCode.F32, KVCode.F32),
    KVDType.INT8: (KVCode.INT8, KVCode.INT8),
    KVDType.FP8_E4M3: (KVCode.FP8_E4M3, KVCode.FP8_E4M3),
    KVDType.FP8_E5M2: (KVCode.FP8_E5M2, KVCode.FP8_E5M2),
    KVDType.INT8_INT4: (KVCode.INT8, KVCode.UINT4),
    KVDType.INT4: (KVCode.UINT4, KVCode.UINT4),
}

KV_DTYPE_BY_NAME: dict[str, KVDType] = {
    **{dtype.value: dtype for dtype in KVDType},
    "fp16": KVDType.F16,
    "float16": KVDType.F16,
    "half": KVDType.F16,
    "bfloat16": KVDType.BF16,
    "fp32": KVDType.F32,
    "float32": KVDType.F32,
    "float": KVDType.F32,
    "fp8": KVDType.FP8_E4M3,
    "int8-int4": KVDType.INT8_INT4,
}
"""Every spelling that is understood, vLLM's among them."""


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
