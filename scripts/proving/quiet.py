"""Whether the cores are this machine's own just now.

The cores of a virtual machine are shared with others, who slow them by up to a half for seconds or minutes, seen neither
in the load nor in the CPU time. What tells is how fast the cores multiply, by their own CPU time.
"""

from __future__ import annotations

import os
import time

from octavo.ops.native import _native
from octavo.ops.native.backend import supported_isas

QUIET = 0.95
"""Cores at this part of their full speed, on average, are quiet."""

_READ_S = 0.4
_FULL = 0.9
"""The quantile of all readings that is full speed: single ones may be too high."""


class CoreProbe:
    """Reads the speed of all cores together; keeps all readings, to know what full speed is."""

    def __init__(self) -> None:
        self._readings: list[float] = []

    def read(self) -> float:
        """Multiply-accumulates per second on average over some hundreds of milliseconds."""
        readings = self._read()
        self._readings += readings
        return sum(readings) / len(readings)

    def speed(self, rate: float) -> float:
        """A rate as a part of full speed, by what is known of it now."""
        return rate / sorted(self._readings)[int(_FULL * (len(self._readings) - 1))]

    def _read(self) -> list[float]:
        """Readings of some milliseconds each."""
        runtime = _native.Runtime(len(os.sched_getaffinity(0)), supported_isas()[0])
        readings: list[float] = []
        end = time.monotonic() + _READ_S
        while time.monotonic() < end:
            readings.append(_native.measure_macs(runtime, "int8", 0.0) or 0.0)
        return readings
