"""When requests arrive in an open loop."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from octavo.errors import InvalidRequest


def poisson_arrivals(rate: float, count: int, rng: np.random.Generator) -> list[float]:
    """Seconds from the start at which `count` requests arrive, `rate` a second on average, each alone by chance.

    The first arrives at 0, as a run without load in front of it measures nothing.
    """
    gaps = rng.exponential(1 / rate, max(0, count - 1))
    return [0.0, *np.cumsum(gaps).tolist()][:count]


def read_trace(path: Path) -> list[float]:
    """Arrival times in seconds, one a line, ascending; the first becomes 0. Empty lines and `#` comments are skipped.

    Raises: InvalidRequest naming the line, OSError if the file cannot be read.
    """
    times: list[float] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            at = float(text)
        except ValueError:
            at = math.nan
        if not math.isfinite(at) or (times and at < times[-1]):
            raise InvalidRequest(
                f"trace {path}, line {number}: {text!r} is not a time in seconds at or after the line before",
                param="trace",
            )
        times.append(at)
    if not times:
        raise InvalidRequest(f"trace {path} has no arrival times", param="trace")
    return [at - times[0] for at in times]
