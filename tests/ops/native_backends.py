"""Native backends for tests: one per kernel table this machine runs."""

from __future__ import annotations

from octavo.config import ActivationPrecision
from octavo.ops.native import NativeBackend, supported_isas

ISAS = supported_isas()


def native(
    isa: str,
    num_threads: int = 2,
    activation_precision: ActivationPrecision = ActivationPrecision.INT8,
) -> NativeBackend:
    """A backend with this kernel table."""
    return NativeBackend(num_threads, isa, activation_precision)
