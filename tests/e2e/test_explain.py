"""Explanations of a real model's requests leave nothing unexplained."""

from __future__ import annotations

from pathlib import Path

from octavo.observability.request_record import Cause
from tests.e2e.explained import real_runs


def test_no_time_is_left_over_and_causes_fit(smollm2_path: Path) -> None:
    runs = list(real_runs(smollm2_path))
    for run in runs:
        assert run.other_share <= 0.01, run
        assert sum(run.explanation.parts.values()) >= 0.99 * run.explanation.total_s
        # Tokenising comes before; on a busy machine the asker wakes late.
        assert run.wall_s == 0.0 or run.wall_gap_s <= 0.02 + 0.1 * run.wall_s, run
    kinds = {run.what: run.explanation.kind for run in runs}
    assert kinds["cold prompt"] is Cause.COLD_PREFILL
    assert kinds["warm prompt"] is Cause.NOTHING_UNUSUAL
    assert kinds["queued for 2 slots"] is Cause.QUEUE
    assert kinds["short of blocks"] in (Cause.MEMORY, Cause.PREEMPTION)
