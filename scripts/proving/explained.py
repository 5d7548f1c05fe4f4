"""What explanations of requests promise: causes that were injected are named, and no time is left over."""

from __future__ import annotations

from collections.abc import Iterator

from scripts.proving.rows import Paths, Row, pytest_row
from tests.e2e.explained import real_runs

_MAX_OTHER = 0.01
_CAUSES = {
    "queue": "tests/engine/test_timeline.py::test_queued_for_a_slot_behind_whom",
    "memory": "tests/engine/test_timeline.py::test_queued_for_memory",
    "preemption": "tests/engine/test_timeline.py::test_preempted",
    "cold prefill": "tests/engine/test_timeline.py::test_cold_prefill_and_why",
    "slow client": "tests/server/test_explain.py::test_a_client_that_reads_slowly_is_named",
}


def explain_rows(paths: Paths) -> Iterator[Row]:
    """Five injected causes by name; then real requests of smollm2, each with its time in parts."""
    for cause, test in _CAUSES.items():
        yield pytest_row(f"explain: injected {cause}", "named as such", test)
    runs = list(real_runs(paths["smollm2"]))
    others = [run.other_share for run in runs]
    yield Row(
        "explain: time of a request that no part accounts for",
        f"{max(others):.3%} at most of {len(runs)} requests",
        f"<= {_MAX_OTHER:.0%}",
        max(others) <= _MAX_OTHER,
        {"other_share": others},
    )
    gaps = [run.wall_gap_s / run.wall_s for run in runs if run.wall_s]
    yield Row(
        "explain: total against the asker's own clock",
        f"{sorted(gaps)[len(gaps) // 2]:.1%} off (median of {len(gaps)})",
        "<= 5%",
        sorted(gaps)[len(gaps) // 2] <= 0.05,
        {"gap": gaps},
    )
