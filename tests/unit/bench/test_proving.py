"""What the proofs do with readings: order of runs, ratios, records, tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts import perf_tables
from scripts.proving.counters import macs_per_s, named, part_of, stages_of
from scripts.proving.loaded import OpCount
from scripts.proving.pairs import alternate, compared, ratio_of_medians
from scripts.proving.peer_runs import rates_of
from scripts.proving.rows import Row, print_rows

from tests.unit.bench.conftest import engine_report, limited_report

Q4_1, Q8_0 = 3, 8
FACTS = {
    "benchmark": "engine",
    "date": "2026-12-01T00:00:00",
    "octavo_version": "1",
    "commit": "c" * 40,
    "command": "x",
}


def test_runs_alternate_after_a_warm_up_of_each() -> None:
    order: list[str] = []

    def run(name: str) -> dict[str, float]:
        order.append(name)
        return {"rate": float(len(order))}

    got = alternate({"a": lambda: run("a"), "b": lambda: run("b")}, 3)
    assert "".join(order) == "ab" * 4
    assert got == {"a": {"rate": [3.0, 5.0, 7.0]}, "b": {"rate": [4.0, 6.0, 8.0]}}


def test_the_ratio_is_of_medians() -> None:
    assert ratio_of_medians([1.0, 9.0, 4.0], [2.0, 2.0, 50.0]) == 2.0
    assert compared([4.0], [2.0], "tok/s") == "4 : 2 tok/s = 2.00x, 1 pairs"


def test_reports_of_both_sides_name_figures_alike() -> None:
    peer = {"prefill": 3.0, "decode": {"32": 2.0}, "mixed": {"32": 1.0}}
    assert rates_of(peer) == {"prefill": 3.0, "decode 32": 2.0, "mixed 32": 1.0}
    assert rates_of({"mixed": {"32": 1.0}}) == {"mixed 32": 1.0}


def test_counters_become_rates() -> None:
    matrices = [(Q4_1, 64, 32, 1280), (Q4_1, 32, 32, 640)]
    counts = [
        OpCount("multiply", matrices, calls=2, rows=64, work_ns=1500, wait_ns=500),
        OpCount("multiply", [(Q8_0, 1000, 32, 34000)], calls=0, rows=0, work_ns=0, wait_ns=0),
        OpCount("add", [], calls=2, rows=64, work_ns=10, wait_ns=0),
    ]
    [(key, stage)] = stages_of(counts, busy=0.5).items()
    assert named(key) == "Q4_1 96x32"
    assert macs_per_s([stage]) == pytest.approx(96 * 32 * 64 / 1e-6)


def test_each_matrix_belongs_to_one_promise() -> None:
    assert part_of((("Q8_0", 1000, 32),), 1000) == "head"
    assert part_of((("Q4_K", 64, 32), ("Q6_K", 64, 32)), 1000) == "Q6_K layer matrices"
    assert part_of((("Q4_1", 64, 32),), 1000) == "layer matrices"
    assert part_of((("F16", 64, 32),), 1000) is None


def test_rows_are_kept_and_replaced_by_name(tmp_path: Path) -> None:
    record = tmp_path / "prove.json"

    def failing(paths: object) -> Iterator[Row]:
        yield Row("speed", "1", ">= 2", False)
        yield Row("peer", "not there", "", None)

    def passing(paths: object) -> Iterator[Row]:
        yield Row("speed", "2", ">= 2", True, {"rate": [1.0, 2.0, 3.0]})

    assert print_rows([failing], {}, record) == 1
    assert print_rows([passing], {}, record) == 0
    rows = json.loads(record.read_text())["rows"]
    assert [(row["what"], row["ok"], row["section"]) for row in rows] == [
        ("peer", None, "failing"),
        ("speed", True, "passing"),
    ]
    page = "\n".join(perf_tables.page([json.loads(record.read_text())]))
    assert "| speed | 2 | >= 2 | yes |" in page
    assert "| speed | rate | 2 | 1 | 3 | 3 |" in page


@pytest.mark.parametrize("report", [engine_report(), limited_report()])
def test_a_report_of_the_engine_becomes_a_table(report: dict[str, object]) -> None:
    machine = {"cpu": "A CPU", "kernel_table": "avx2", "num_cores": 2}
    page = "\n".join(perf_tables.page([report | FACTS | {"machine": machine}]))
    assert page.startswith("# Measured on 2026-12-01\n")
    assert "\n| decode 8 | " in page
    assert ("GMAC/s" in page) == bool(report.get("limits"))
