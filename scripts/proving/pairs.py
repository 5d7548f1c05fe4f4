"""Alternating runs of several things: A B A B, so that what else the machine does falls on all alike."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence

NUM_PAIRS = int(os.environ.get("PAIRS", "5"))
"""Timed rounds, after one in which all are run and nothing counts."""

Rates = Mapping[str, float]
"""Figures of one run, by name."""


def alternate(
    runs: Mapping[str, Callable[[], Rates]], num_rounds: int = NUM_PAIRS
) -> dict[str, dict[str, list[float]]]:
    """Run each once untimed, then all in turn `num_rounds` times; readings by run and figure."""
    for run in runs.values():
        run()
    readings: dict[str, dict[str, list[float]]] = {name: {} for name in runs}
    for _ in range(num_rounds):
        for name, run in runs.items():
            for figure, rate in run().items():
                readings[name].setdefault(figure, []).append(rate)
    return readings


def ratio_of_medians(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Median over median."""
    return statistics.median(ours) / statistics.median(theirs)


def compared(ours: Sequence[float], theirs: Sequence[float], name: str) -> str:
    """Both medians, their ratio and the number of pairs, in words."""
    mine, other = statistics.median(ours), statistics.median(theirs)
    return f"{mine:,.0f} : {other:,.0f} {name} = {mine / other:.2f}x, {len(ours)} pairs"
