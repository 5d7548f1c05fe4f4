"""Alternating runs of several things: A B A B, so that what else the machine does falls on all alike."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scripts.proving.quiet import QUIET, CoreProbe

NUM_PAIRS = int(os.environ.get("PAIRS", "5"))
"""Timed rounds, after one in which all are run and nothing counts."""

Rates = Mapping[str, float]
"""Figures of one run, by name."""
Readings = dict[str, dict[str, list[float]]]
"""By run and figure."""

_MAX_TRIES = 3
"""Rounds run for each that counts, at most."""
_PROBE = CoreProbe()
"""One for all: it learns what full speed is."""


@dataclass(frozen=True)
class Paired:
    """Readings of alternating runs, in rounds that count: those on quiet cores, or all if there were too few."""

    readings: Readings
    speeds: list[float]
    """Of the cores in every round, those that do not count included: the lowest before, between and after its runs."""
    are_quiet: bool

    @property
    def how(self) -> str:
        """Which rounds count, in words."""
        if self.are_quiet:
            return f"on quiet cores (of {len(self.speeds)})"
        return f"on cores at {min(self.speeds):.0%} to {max(self.speeds):.0%}"


def alternate(runs: Mapping[str, Callable[[], Rates]], num_rounds: int = NUM_PAIRS) -> Readings:
    """Run each once untimed, then all in turn `num_rounds` times; readings by run and figure."""
    for run in runs.values():
        run()
    return _readings([{name: run() for name, run in runs.items()} for _ in range(num_rounds)])


def alternate_on_quiet_cores(
    runs: Mapping[str, Callable[[], Rates]], num_rounds: int = NUM_PAIRS, probe: CoreProbe = _PROBE
) -> Paired:
    """As `alternate`, but until `num_rounds` rounds had quiet cores before, between and after their runs.

    After thrice as many it ends, and all count.

    What others do on the same cores slows a program the more, the better it uses them: a ratio taken meanwhile says
    little of a machine that is one's own. The cores alone decide which rounds count, not what was measured.
    """
    for run in runs.values():
        run()
    rounds: list[dict[str, Rates]] = []
    cores: list[float] = []
    while True:
        rates: dict[str, Rates] = {}
        lowest = probe.read()
        for name, run in runs.items():
            rates[name] = run()
            lowest = min(lowest, probe.read())
        rounds.append(rates)
        cores.append(lowest)
        speeds = [probe.speed(each) for each in cores]
        quiet = [one for one, speed in zip(rounds, speeds, strict=True) if speed >= QUIET]
        if len(quiet) >= num_rounds:
            return Paired(_readings(quiet), speeds, True)
        if len(rounds) >= _MAX_TRIES * num_rounds:
            return Paired(_readings(rounds), speeds, False)


def _readings(rounds: Sequence[Mapping[str, Rates]]) -> Readings:
    readings: Readings = {name: {} for name in rounds[0]}
    for rates in rounds:
        for name, figures in rates.items():
            for figure, rate in figures.items():
                readings[name].setdefault(figure, []).append(rate)
    return readings


def ratio_of_medians(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Median over median."""
    return statistics.median(ours) / statistics.median(theirs)


def compared(ours: Sequence[float], theirs: Sequence[float], name: str) -> str:
    """Both medians, their ratio and the number of pairs, in words."""
    mine, other = statistics.median(ours), statistics.median(theirs)
    return f"{mine:,.0f} : {other:,.0f} {name} = {mine / other:.2f}x, {len(ours)} pairs"
