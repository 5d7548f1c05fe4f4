"""`bench ops`: a step taken apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.bench.ops import Phase, bench_ops, phase_report
from octavo.bench.options import OpsConfig
from octavo.bench.stepping import Span
from octavo.bench.tables import ops_table
from octavo.cli.main import main
from octavo.config import BackendName, ComputeConfig, EngineConfig, ModelConfig
from octavo.errors import OctavoError
from octavo.observability.limits import MatrixWork, ModelWork
from octavo.observability.op_costs import OpCost
from tests.unit.bench.conftest import CEILINGS

WORK = ModelWork(MatrixWork(10**8, 0, 10**8), MatrixWork(10**7, 0, 10**7), (1000,), (0,))
COSTS = [
    OpCost(name="rope", calls=8, rows=8, seconds=0.1, wait_seconds=0.1),
    OpCost(
        name="multiply Q4_1 8x8", calls=8, rows=8, seconds=0.4, wait_seconds=0.1,
        macs=2 * 10**10, weight_bytes=44 * 10**7,
    ),
    OpCost(name="multiply F16 8x8", calls=4, rows=4, seconds=0.2, wait_seconds=0.0, macs=10**9, is_float=True),
    OpCost(name="softcap", calls=0, rows=0, seconds=0.0, wait_seconds=0.0),
]  # fmt: skip


def test_rows_sum_to_the_wall_time_and_the_dearest_comes_first() -> None:
    report = phase_report(Phase("decode 1", Span(1.25, 1.0, 4), COSTS, CEILINGS), WORK)
    rows = report["rows"]
    assert isinstance(rows, list)
    assert [row["name"] for row in rows] == [
        "multiply Q4_1 8x8", "multiply F16 8x8", "rope", "waiting", "between operations", "outside the model",
    ]  # fmt: skip
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert sum(row["ms"] for row in rows) == pytest.approx(report["step_ms"])
    assert [row["ms"] for row in rows] == pytest.approx([100, 50, 25, 50, 25, 62.5])
    assert (rows[0]["calls"], rows[0]["peak_share"], rows[0]["bandwidth_share"]) == (2, 0.5, 0.5)
    assert rows[1]["peak_share"] == pytest.approx(0.5)  # of the f32 peak
    assert (rows[2]["macs_per_s"], rows[2]["peak_share"]) == (None, None)


def test_a_model_is_taken_apart(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--prompt", "16", "--context", "4", "--gen", "3", "--batch", "1,3", "--threads", "1")
    with pytest.raises(SystemExit) as end:
        main(["bench", "ops", str(tiny), *flags, "--json"])
    assert not end.value.code
    report = json.loads(capsys.readouterr().out)
    assert [phase["phase"] for phase in report["phases"]] == ["prefill 16", "decode 1", "decode 3"]
    for phase in report["phases"]:
        assert sum(row["ms"] for row in phase["rows"]) == pytest.approx(phase["step_ms"])
        assert all(row["ms"] >= 0 for row in phase["rows"])
        names = [row["name"] for row in phase["rows"]]
        assert {"attend", "sample"} < set(names)
        assert names[-3:] == ["waiting", "between operations", "outside the model"]
        [attend] = [row for row in phase["rows"] if row["name"] == "attend"]
        assert attend["calls"] == 2  # one a layer and step: nothing else was counted
    lines = list(ops_table(report))
    assert "of peak" in lines[4]
    assert lines[-1].startswith(report["limits"]["ceilings"]["kernel_table"])


def test_a_backend_that_counts_nothing_is_refused(tiny: Path) -> None:
    config = EngineConfig(
        model=ModelConfig(model=str(tiny)), compute=ComputeConfig(backend=BackendName.REFERENCE)
    )
    with pytest.raises(OctavoError, match="counts no operations"):
        bench_ops(config, OpsConfig(prompt=4, context=4, gen=2, batch="1"))
