"""A Prometheus histogram that one thread fills: an observation costs a search and two additions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

TTFT_BUCKETS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
TOKEN_TIME_BUCKETS: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
REQUEST_TIME_BUCKETS: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
STEP_TOKEN_BUCKETS: Final = (
    1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384,
)  # fmt: skip
CHOICE_BUCKETS: Final = (1, 2, 5, 10, 20)
"""Source of all: vLLM's buckets, so that its dashboards work."""


def token_buckets(max_value: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 ... up to `max_value`, as vLLM has them for counts of tokens."""
    buckets: list[float] = []
    power = 1
    while power <= max_value:
        buckets += [m * power for m in (1, 2, 5) if m * power <= max_value]
        power *= 10
    return tuple(buckets)


class Histogram:
    """Counts values by bucket. `bounds` ascend; a value belongs to the first bound that is not below it."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(float(bound) for bound in bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Count a value, `count` times."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    @property
    def sum(self) -> float:
        """The sum of all values."""
        return self._sum

    @property
    def cumulated(self) -> list[tuple[str, float]]:
        """(bound as Prometheus writes it, values up to it) in ascending order, the last for +Inf."""
        names = [*(repr(bound) for bound in self._bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(self._counts)), strict=True))
