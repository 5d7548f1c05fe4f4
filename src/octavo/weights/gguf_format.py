"""Numbers and names of the GGUF file format, shared by reader and writer.

Source: the GGUF specification in ggml's documentation.
"""

from __future__ import annotations

from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final

import numpy as np

MAGIC: Final = b"GGUF"
SUPPORTED_VERSIONS: Final = (2, 3)
WRITTEN_VERSION: Final = 3
DEFAULT_ALIGNMENT: Final = 32
ALIGNMENT_KEY: Final = "general.alignment"
MAX_NAME_BYTES: Final = 65535
"""Longest key (the specification's limit), taken for tensor names too."""
MAX_DIMS: Final = 4
MAX_ARRAY_DEPTH: Final = 4


class ValueType(IntEnum):
    """Type number of a metadata value."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


SCALAR_DTYPES: Final = MappingProxyType[ValueType, np.dtype[Any]](
    {
        ValueType.UINT8: np.dtype("<u1"),
        ValueType.INT8: np.dtype("<i1"),
        ValueType.UINT16: np.dtype("<u2"),
        ValueType.INT16: np.dtype("<i2"),
        ValueType.UINT32: np.dtype("<u4"),
        ValueType.INT32: np.dtype("<i4"),
        ValueType.FLOAT32: np.dtype("<f4"),
        ValueType.BOOL: np.dtype("?"),
        ValueType.UINT64: np.dtype("<u8"),
        ValueType.INT64: np.dtype("<i8"),
        ValueType.FLOAT64: np.dtype("<f8"),
    }
)
"""In-file layout of every type of fixed size."""

OTHER_TENSOR_TYPES: Final = MappingProxyType(
    {
        9: "Q8_1",
        15: "Q8_K",
        16: "IQ2_XXS",
        17: "IQ2_XS",
        18: "IQ3_XXS",
        19: "IQ1_S",
        21: "IQ3_S",
        22: "IQ2_S",
        24: "I8",
        25: "I16",
        26: "I32",
        27: "I64",
        28: "F64",
        29: "IQ1_M",
        34: "TQ1_0",
        35: "TQ2_0",
        39: "MXFP4",
        40: "NVFP4",
        41: "Q1_0",
    }
)
"""Tensor types that ggml defines and Octavo does not read: a file with one is sound but refused."""
