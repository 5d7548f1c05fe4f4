"""Percentiles, throughput, goodput."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bench.stats import RequestRecord, Slo, percentile, summarise, summary_ms


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.integers(0, 100))
def test_percentiles_are_numpys(values: list[float], percent: int) -> None:
    assert percentile(values, percent) == pytest.approx(
        float(np.percentile(values, percent)), rel=1e-9, abs=1e-6
    )


def test_of_nothing_there_are_no_percentiles() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)
    assert summary_ms([None]) is None
    assert summary_ms([0.001, None, 0.003]) == pytest.approx(
        {"mean": 2.0, "p50": 2.0, "p90": 2.8, "p99": 2.98}
    )


def record(
    ttft: float, tokens: int = 11, tpot: float = 0.01, error: str | None = None
) -> RequestRecord:
    """A request that started at 100 s."""
    first = 100 + ttft
    last = first + (tokens - 1) * tpot
    return RequestRecord(
        100.0, first, last, last, [tpot] * (tokens - 1), tokens, 7, tokens, has_usage=True, error=error
    )  # fmt: skip


def test_the_figures_of_a_run() -> None:
    records = [record(0.1), record(0.3), record(0.2, error="HTTP 500: x")]
    report = summarise(records, num_requests=4, duration_s=2.0, slo=None)
    assert (report["num_completed"], report["num_failed"], report["num_unfinished"]) == (2, 1, 1)
    assert report["errors"] == {"HTTP 500: x": 1}
    assert (report["requests_per_s"], report["output_tokens_per_s"]) == (1.0, 11.0)
    assert report["total_tokens_per_s"] == 18.0
    assert report["ttft_ms"] == pytest.approx({"mean": 200, "p50": 200, "p90": 280, "p99": 298})
    assert report["tpot_ms"]["p50"] == pytest.approx(10)  # type: ignore[index]
    assert report["e2e_ms"]["p50"] == pytest.approx(300)  # type: ignore[index]
    assert "goodput" not in report


def test_goodput_counts_what_kept_both_limits() -> None:
    records = [
        record(0.1),
        record(0.6),
        record(0.1, tpot=0.2),
        record(0.1, tokens=1),
        record(0.1, error="x"),
    ]
    slo = Slo(ttft_ms=500, tpot_ms=100)
    report = summarise(records, num_requests=8, duration_s=2.0, slo=slo)
    assert report["goodput"] == {
        "slo_ttft_ms": 500,
        "slo_tpot_ms": 100,
        "num_good": 2,
        "share": 0.25,
        "requests_per_s": 1.0,
    }
    assert Slo(tpot_ms=100).is_met_by(record(9.0))
    assert not Slo(ttft_ms=1).is_met_by(RequestRecord(0.0))


def test_a_run_that_answered_nothing_has_a_report() -> None:
    report = summarise([], num_requests=3, duration_s=0.0, slo=Slo(1, 1))
    assert (report["num_unfinished"], report["ttft_ms"], report["requests_per_s"]) == (3, None, 0)
