"""Whether the cores were this machine's own while something ran.

The cores of a virtual machine are shared with others, who slow them by up to a half for seconds or minutes, seen neither
in the load nor in the CPU time. `CoreWatch` looks at them meanwhile: a process beside what is measured, whatever that is,
that times a few milliseconds of multiplying twice a second on each core in turn, by its own CPU time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from scripts.proving.rows import ROOT

from octavo.ops.native import _native
from octavo.ops.native.backend import supported_isas

QUIET = 0.95
"""Cores at this part of their full speed, on average, are quiet."""

_PAUSE_S = 0.25
_FULL = 0.9
"""The quantile of all readings that is full speed."""


class CoreWatch:
    """Reads the speed of the cores while it is entered; keeps all readings, to know what full speed is."""

    def __init__(self) -> None:
        self._rates: list[float] = []
        self._process: subprocess.Popen[str] | None = None
        self.last: tuple[float, ...] = ()
        """Readings of the last time it was entered, multiply-accumulates per second of one core."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process is not None
        told, _ = self._process.communicate()
        self.last = tuple(json.loads(told))
        self._rates += self.last

    def speed(self, rates: Sequence[float]) -> float:
        """The mean of readings, as a part of full speed."""
        return sum(rates) / len(rates) / full_speed(self._rates)


def full_speed(rates: Sequence[float]) -> float:
    """A high quantile: single readings may be too high."""
    return sorted(rates)[int(_FULL * (len(rates) - 1))]


def watch_cores() -> None:
    """Time each core in turn until standard input ends; then write the readings as JSON."""
    is_over = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        is_over.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    runtime = _native.Runtime(1, supported_isas()[0])
    rates: list[float] = []
    while not rates or not is_over.is_set():
        for core in sorted(os.sched_getaffinity(os.getppid())):
            os.sched_setaffinity(0, {core})
            rates.append(_native.measure_macs(runtime, "int8", 0.0) or 0.0)
            is_over.wait(_PAUSE_S)
    json.dump(rates, sys.stdout)


if __name__ == "__main__":
    watch_cores()
