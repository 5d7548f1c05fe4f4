"""The limits probe, kept within the memory that this process was granted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from octavo.engine.machine import read_machine_limits
from octavo.observability.limits import MachineCeilings
from octavo.ops.native.backend import supported_isas
from octavo.ops.native.limits import cpu_features, measure_ceilings

_MIB: Final = 2**20
_MEMORY_SHARE: Final = 4
"""A buffer takes at most this part of what is granted: one quarter."""


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """Kernel tables that this machine runs, best first, and the CPU's features that kernels ask for."""

    tables: tuple[str, ...]
    features: tuple[str, ...]


def kernel_facts() -> KernelFacts:
    """What the native module finds."""
    return KernelFacts(supported_isas(), cpu_features())


def measure_within_memory(
    settings: Sequence[tuple[str, int]], read_bytes: Sequence[int], *, seconds: float, fill_s: float
) -> list[MachineCeilings]:
    """Ceilings of each setting (kernel table, number of threads); buffers too large for the memory are made smaller.

    See octavo.ops.native.limits.measure_ceilings. Raises: CapacityError.
    """
    room = read_machine_limits().least[0] // _MEMORY_SHARE // _MIB * _MIB
    sizes = [max(512, min(size, max(_MIB, room))) for size in read_bytes]
    return measure_ceilings(settings, sizes, seconds=seconds, fill_s=fill_s)
