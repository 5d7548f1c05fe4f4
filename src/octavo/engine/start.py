"""Whether there is room to start at all: asked before the libraries are loaded, which end the process where there is none."""

from __future__ import annotations

import ctypes
import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from octavo.config import format_size, one_blas_thread
from octavo.engine.machine import ON_MACHINE, RLIMIT_AS, MachineLimits, read_machine_limits
from octavo.errors import CapacityError

_MIB: Final = 2**20
_LIBRARIES_SPACE: Final = 288 * _MIB
"""Address space of the libraries and the threads beside the engine's, with a reserve: a server maps 240 MiB."""
_LIBRARIES_MEMORY: Final = 96 * _MIB
"""What they touch."""
_ENGINE_SPACE: Final = 768 * _MIB
"""Beside the weights, of any small model: libraries, activations, KV cache."""

_STACK_BYTES: Final = 2 * _MIB
_M_ARENA_MAX: Final = -8
"""From malloc.h."""


def check_start(limits: MachineLimits | None = None) -> None:
    """Raise CapacityError if not even the libraries fit what this process was granted.

    Under a limit that counts what is reserved, less is: numpy's library starts no threads (40 MiB each), threads of
    Python have small stacks, and none has an arena of its own (64 MiB) to allocate from.
    """
    limits = read_machine_limits() if limits is None else limits
    wanted = [(limits.memory_bytes, limits.memory_source, _LIBRARIES_MEMORY)]
    wanted += [(room, source, _LIBRARIES_SPACE) for room, source in limits.reserving]
    for room, source, needed in wanted:
        if room < needed:
            raise CapacityError(_refusal(limits, room, source, needed))
    if any(limits.reserving):
        one_blas_thread()
        threading.stack_size(_STACK_BYTES)
        with suppress(AttributeError, OSError):  # another C library than glibc
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


@contextmanager
def within_limits(model: Path) -> Iterator[None]:
    """Around what opens and loads a model: memory that gives out there is a CapacityError with the numbers."""
    try:
        yield
    except MemoryError as error:
        raise CapacityError(_gave_out(model, str(error) or "memory gave out")) from error
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        raise CapacityError(_gave_out(model, "its file cannot be mapped")) from error


def _gave_out(model: Path, what: str) -> str:
    """What to say where no plan could: it is made from the header, which needs the file mapped."""
    limits = read_machine_limits()
    room, source = limits.least
    size = model.stat().st_size
    needed = 2 * size + _ENGINE_SPACE  # mapped, and packed
    message = (
        f"{model}: {what}: the file has {format_size(size)}, about {format_size(needed)} are needed in all, "
        f"{format_size(room)} are available ({source})"
    )
    return f"{message}. {_advice(limits, room, source, needed)}"


def _refusal(limits: MachineLimits, room: int, source: str, needed: int) -> str:
    needs = f"to start takes {format_size(needed)} before any model"
    advice = _advice(limits, room, source, needed + _ENGINE_SPACE)
    return f"{needs}, {format_size(room)} are available ({source}). For a small model: {advice}"


def _advice(limits: MachineLimits, room: int, source: str, needed: int) -> str:
    short = format_size(needed - room)
    if source == RLIMIT_AS and limits.address_space_limit is not None:
        return f"Raise the limit, with: ulimit -v {-(-(limits.address_space_limit - room + needed) // 1024)}"
    return f"Free {short}" if source == ON_MACHINE else f"Raise the limit by {short}"
