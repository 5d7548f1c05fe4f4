"""Packed weights outside the runtime: in a file that a later start reads, or on their way into one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np
import numpy.typing as npt

from octavo.dtypes import HostTensor, QuantFormat
from octavo.ops.native import _native
from octavo.ops.native.ops import NativeOps, matrix_shape, vector_values
from octavo.ops.native.program import PackedTensor, Vector, Weight

PACKED_LAYOUT: Final = _native.PACKED_LAYOUT
"""Version of how formats are packed. Weights packed by another version are of no use."""

FILE_BLOCK: Final = _native.FILE_BLOCK
"""Bytes of packed weights that share a checksum."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedPart:
    """The packed weights in an open file: where they start, how many bytes they are, a checksum for each FILE_BLOCK."""

    fd: int
    offset: int
    num_bytes: int
    checksums: npt.NDArray[np.uint64]
    tensors: Mapping[str, PackedTensor]


def held_bytes(shape: tuple[int, ...], format_: QuantFormat) -> int:
    """Bytes of a tensor as it is held: a packed matrix, or a vector in its own format."""
    if len(shape) != 2:
        return format_.num_bytes(prod(shape))
    return _native.packed_bytes(format_.type_id, *shape)


Sink = Callable[[HostTensor, QuantFormat, npt.NDArray[np.uint8]], None]
"""Takes a tensor of the model file, the format it is held in, and its bytes as the runtime holds them."""


class PackingOps(NativeOps):
    """Packs weights and hands them on, one at a time, instead of keeping them. Runs nothing."""

    def __init__(self, runtime: _native.Runtime, sink: Sink) -> None:
        super().__init__(runtime)
        self._sink = sink

    def weight(self, tensor: HostTensor) -> Weight:
        """Pack a matrix. The handle stands for nothing."""
        rows, cols = matrix_shape(tensor)
        data = np.frombuffer(tensor.data, dtype=np.uint8)
        packed = self._runtime.pack(tensor.format.type_id, rows, cols, data)
        tensor.release()
        self._sink(tensor, tensor.format, packed)
        return Weight(-1, rows, cols)

    def vector(self, tensor: HostTensor) -> Vector:
        """Widen a vector. The handle stands for nothing."""
        values = vector_values(tensor)
        self._sink(tensor, QuantFormat.F32, values.view(np.uint8))
        return Vector(-1, tensor.shape[0])
