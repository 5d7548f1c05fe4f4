"""What this machine allows: for a loaded engine, and for each kernel table it could use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from octavo.engine.limits import KernelFacts, kernel_facts, measure_within_memory
from octavo.engine.machine import read_machine_limits
from octavo.messages import EngineInfo
from octavo.observability.limits import MachineCeilings

__all__ = [
    "MEMORY_BYTES",
    "KernelFacts",
    "best_ceilings",
    "engine_ceilings",
    "kernel_facts",
    "machine_ceilings",
    "thread_counts",
]

MEMORY_BYTES: Final = 2**30
"""Size of the buffer that shows the bandwidth of memory: no cache holds it."""

# Seconds to measure, and to wait at most for the buffer's memory: some virtual machines give it slowly.
_ENGINE_S: Final = 0.6
_ENGINE_FILL_S: Final = 5.0
_MACHINE_S: Final = 1.5
_MACHINE_FILL_S: Final = 1.5
_ALL_COUNTS: Final = 8


def engine_ceilings(info: EngineInfo) -> MachineCeilings | None:
    """Ceilings of an engine's kernel table and threads, for a buffer as large as its weights and one of 1 GiB.

    None where nothing is known of the model's work. No request may run meanwhile. Raises: CapacityError.
    """
    if info.work is None:
        return None
    return _measure_one(info.kernel_table, info.num_threads, [info.work.weight_bytes, MEMORY_BYTES])


def best_ceilings() -> MachineCeilings:
    """Ceilings of the best kernel table on all granted threads, for a buffer of 1 GiB. Raises: CapacityError."""
    num_cores = read_machine_limits().num_cores
    return _measure_one(kernel_facts().tables[0], num_cores, [MEMORY_BYTES])


def machine_ceilings(read_bytes: Sequence[int] = ()) -> list[MachineCeilings]:
    """Ceilings of every kernel table on 1 to all granted threads, for buffers of `read_bytes` and of 1 GiB.

    Above 8 threads only doublings are measured, and all. Raises: CapacityError.
    """
    counts = thread_counts(read_machine_limits().num_cores)
    settings = [(table, count) for table in kernel_facts().tables for count in counts]
    sizes = [*read_bytes, MEMORY_BYTES]
    return measure_within_memory(settings, sizes, seconds=_MACHINE_S, fill_s=_MACHINE_FILL_S)


def _measure_one(table: str, num_threads: int, sizes: Sequence[int]) -> MachineCeilings:
    [found] = measure_within_memory(
        [(table, num_threads)], sizes, seconds=_ENGINE_S, fill_s=_ENGINE_FILL_S
    )
    return found


def thread_counts(num_cores: int) -> list[int]:
    """1 to 8, then 16, 32 ..., up to `num_cores`, which is always there."""
    counts = list(range(1, min(num_cores, _ALL_COUNTS) + 1))
    while counts[-1] < num_cores:
        counts.append(min(2 * counts[-1], num_cores))
    return counts
