"""Measures what this machine allows the native kernels: read bandwidth, and multiply-accumulates per second."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from octavo.kv_layout import BLOCK_SIZE, KVLayout
from octavo.observability.limits import MachineCeilings, MatrixWork, ModelWork, ReadRate
from octavo.ops.native import _native

_KINDS: Final = ("int8", "bf16", "f32")
_MAX_WEIGHT_BYTES: Final = 2**30
"""Of a larger model the first part is read: it is past any cache already."""


def cpu_features() -> tuple[str, ...]:
    """Names of the CPU's features that kernels ask for, as /proc/cpuinfo spells them."""
    return tuple(_native.cpu_features())


def measure_ceilings(
    settings: Sequence[tuple[str, int]], read_bytes: Sequence[int], *, seconds: float, fill_s: float
) -> list[MachineCeilings]:
    """Ceilings of each setting (kernel table, number of threads), in their order.

    `read_bytes` are the sizes of the buffers to read, 512 or more; the memory of the largest is held meanwhile. What
    the system does not give within `fill_s` seconds is left out: the results say what was read.
    Takes about `seconds` beside that; where a single reading is slow, up to four times as long.
    Raises: CapacityError if there is no such memory, ValueError for an unknown table.
    """
    if not settings:
        return []
    filler = _native.Runtime(max(threads for _, threads in settings), settings[0][0])
    buffer = _native.ReadBuffer(filler, max(read_bytes), fill_s)
    del filler
    sizes = sorted({min(size, buffer.num_bytes) for size in read_bytes})
    share_s = seconds / (len(settings) * (len(_KINDS) + len(sizes)))
    return [_measure(table, threads, buffer, sizes, share_s) for table, threads in settings]


def _measure(
    table: str, num_threads: int, buffer: _native.ReadBuffer, sizes: Sequence[int], share_s: float
) -> MachineCeilings:
    runtime = _native.Runtime(num_threads, table)
    peaks = {kind: _native.measure_macs(runtime, kind, share_s) for kind in _KINDS}
    return MachineCeilings(
        kernel_table=table,
        num_threads=num_threads,
        int8_instructions=_native.int8_instructions(runtime),
        int8_macs_per_s=peaks["int8"] or 0.0,
        bf16_macs_per_s=peaks["bf16"],
        f32_macs_per_s=peaks["f32"] or 0.0,
        reads=tuple(
            ReadRate(size, _native.measure_buffer(runtime, buffer, size, share_s)) for size in sizes
        ),
    )


def measure_in_place(runtime: _native.Runtime, seconds: float) -> MachineCeilings | None:
    """Ceilings of a runtime that holds weights, reading those: takes no memory. None if it holds no matrix.

    Takes about `seconds`, of which most are for reading. bf16 is left out. No request may run meanwhile.
    """
    rate = _native.measure_weights(runtime, _MAX_WEIGHT_BYTES, seconds * 0.8)
    if rate <= 0:
        return None
    return MachineCeilings(
        kernel_table=runtime.table,
        num_threads=runtime.num_threads,
        int8_instructions=_native.int8_instructions(runtime),
        int8_macs_per_s=_native.measure_macs(runtime, "int8", seconds * 0.1) or 0.0,
        bf16_macs_per_s=None,
        f32_macs_per_s=_native.measure_macs(runtime, "f32", seconds * 0.1) or 0.0,
        reads=(ReadRate(min(runtime.weight_bytes, _MAX_WEIGHT_BYTES), rate),),
    )


def work_of(program: _native.Program, layout: KVLayout) -> ModelWork:
    """What a step of a recorded program needs at least, with keys and values stored as `layout` says."""
    work = program.work
    return ModelWork(
        body=_matrix_work(work.body),
        head=_matrix_work(work.head),
        kv_bytes=(layout.layer_bytes // BLOCK_SIZE,) * len(work.windows),
        windows=tuple(work.windows),
    )


def _matrix_work(work: _native.MatrixWork) -> MatrixWork:
    return MatrixWork(work.int8_macs, work.float_macs, work.num_bytes)
