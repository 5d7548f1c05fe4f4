"""Weights in formats that no kernel multiplies, rewritten when a model is loaded."""

from __future__ import annotations

from typing import Final

from octavo.dtypes import HostTensor, QuantFormat
from octavo.weights.quant import dequantize_rows, quantize_q8_0

_SLAB_ELEMENTS: Final = 2**22
"""Decoded at a time: a whole embedding as float32 would be larger than the model file."""


def requantize(tensor: HostTensor) -> HostTensor:
    """The tensor in 8 bit, or as float32 where its rows are not whole blocks of 32. Releases the original.

    Raises: ValueError if its numbers are not finite.
    """
    num_cols = tensor.shape[-1]
    format_ = QuantFormat.F32 if num_cols % QuantFormat.Q8_0.block_len else QuantFormat.Q8_0
    num_rows = tensor.num_elements // num_cols
    rows_per_slab = max(1, _SLAB_ELEMENTS // num_cols)
    data = bytearray()
    for start in range(0, num_rows, rows_per_slab):
        values = dequantize_rows(tensor, start, min(num_rows, start + rows_per_slab))
        data += quantize_q8_0(values) if format_ is QuantFormat.Q8_0 else values.tobytes()
    tensor.release()
    return HostTensor(tensor.name, tensor.shape, format_, memoryview(data))
