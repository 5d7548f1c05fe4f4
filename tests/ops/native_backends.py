"""Native backends for tests: one per kernel table this machine runs."""

from __future__ import annotations

from octavo.config import ActivationPrecision
from octavo.dtypes import HostTensor, QuantFormat
from octavo.ops.native import NativeBackend, supported_isas
from octavo.weights.quant import dequantize, quantize_q8_0

ISAS = supported_isas()


def to_q8_0(tensor: HostTensor) -> HostTensor:
    """The tensor as Q8_0."""
    data = memoryview(quantize_q8_0(dequantize(tensor)))
    return HostTensor(tensor.name, tensor.shape, QuantFormat.Q8_0, data, tensor.release)


def native(
    isa: str,
    num_threads: int = 2,
    activation_precision: ActivationPrecision = ActivationPrecision.INT8,
) -> NativeBackend:
    """A backend that rewrites formats without kernels."""
    return NativeBackend(num_threads, isa, to_q8_0, activation_precision)
