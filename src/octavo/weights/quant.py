"""Weights as numbers: dequantisation of every format to float32.

Bit-equal to ggml's own: products and sums are float32, in ggml's order, one rounding each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from octavo.dtypes import HostTensor, QuantFormat
from octavo.weights import quant_32, quant_k

Floats = npt.NDArray[np.float32]

# Elements worked on at once: the temporaries of a slab stay in the cache and small beside the result.
_SLAB_ELEMENTS = 1 << 17


def _f32(blocks: np.ndarray, out: Floats) -> None:
    out[:, 0] = blocks


def _bf16(blocks: np.ndarray, out: Floats) -> None:
    out[:, 0] = (blocks.astype(np.uint32) << np.uint32(16)).view(np.float32)


# How a block lies in memory and the function that writes blocks [n] to numbers [n, block_len].
_DECODERS: Final = MappingProxyType[
    QuantFormat, tuple[np.dtype[np.generic], Callable[[np.ndarray, Floats], None]]
](
    {
        QuantFormat.F32: (np.dtype("<f4"), _f32),
        QuantFormat.F16: (np.dtype("<f2"), _f32),
        QuantFormat.BF16: (np.dtype("<u2"), _bf16),
        QuantFormat.Q4_0: (quant_32.Q4_0, quant_32.decode_q4_0),
        QuantFormat.Q4_1: (quant_32.Q4_1, quant_32.decode_q4_1),
        QuantFormat.Q5_0: (quant_32.Q5_0, quant_32.decode_q5_0),
        QuantFormat.Q5_1: (quant_32.Q5_1, quant_32.decode_q5_1),
        QuantFormat.Q8_0: (quant_32.Q8_0, quant_32.decode_q8_0),
        QuantFormat.IQ4_NL: (quant_32.IQ4_NL, quant_32.decode_iq4_nl),
        QuantFormat.Q2_K: (quant_k.Q2_K, quant_k.decode_q2_k),
        QuantFormat.Q3_K: (quant_k.Q3_K, quant_k.decode_q3_k),
        QuantFormat.Q4_K: (quant_k.Q4_K, quant_k.decode_q4_k),
        QuantFormat.Q5_K: (quant_k.Q5_K, quant_k.decode_q5_k),
        QuantFormat.Q6_K: (quant_k.Q6_K, quant_k.decode_q6_k),
        QuantFormat.IQ4_XS: (quant_k.IQ4_XS, quant_k.decode_iq4_xs),
    }
)


def dequantize(tensor: HostTensor) -> Floats:
    """All numbers of a tensor.

    Shapes: returns float32 of the tensor's shape, memory of its own.
    Raises: ValueError if the bytes do not match the shape.
    """
    return dequantize_rows(tensor, 0, _num_rows(tensor)).reshape(tensor.shape)


def dequantize_rows(tensor: HostTensor, start: int, stop: int) -> Floats:
    """The numbers of rows `start` .. `stop` - 1; a tensor of more dimensions is taken as [rows, last dimension].

    Shapes: returns float32 [stop - start, last dimension].
    Raises: ValueError if the rows do not exist or the bytes do not match the shape.
    """
    num_rows, num_cols = _num_rows(tensor), tensor.shape[-1]
    row_bytes = tensor.format.num_bytes(num_cols)
    if tensor.data.nbytes != num_rows * row_bytes:
        raise ValueError(
            f"{tensor.name}: {tensor.data.nbytes} bytes, {num_rows * row_bytes} expected for"
            f" {tensor.format.name} of shape {tensor.shape}"
        )
    if not 0 <= start <= stop <= num_rows:
        raise ValueError(f"{tensor.name}: rows {start} to {stop} of {num_rows} do not exist")
    dtype, decode = _DECODERS[tensor.format]
    num_blocks = (stop - start) * (num_cols // tensor.format.block_len)
    out = np.empty((num_blocks, tensor.format.block_len), np.float32)
    if num_blocks:
        blocks = np.frombuffer(tensor.data, dtype, num_blocks, start * row_bytes)
        with np.errstate(
            invalid="ignore"
        ):  # scales of a broken file may be NaN or infinite: so are its weights
            for part in _slabs(num_blocks, tensor.format.block_len):
                decode(blocks[part], out[part])
    return out.reshape(stop - start, num_cols)


def _num_rows(tensor: HostTensor) -> int:
    return prod(tensor.shape[:-1])


def _slabs(num_blocks: int, block_len: int) -> Iterator[slice]:
    step = _SLAB_ELEMENTS // block_len
    for start in range(0, num_blocks, step):
        yield slice(start, start + step)
