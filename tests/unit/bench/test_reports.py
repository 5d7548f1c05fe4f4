"""Reports: compared, as tables, as pictures; and `bench engine` on a tiny model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from octavo.bench.compare import compare_reports, read_report
from octavo.bench.engine import bench_engine
from octavo.bench.machine import cpu_facts
from octavo.bench.options import MeasureConfig
from octavo.bench.tables import compare_table, engine_table, serve_table
from octavo.cli.main import main
from octavo.config import BackendName, ComputeConfig, EngineConfig, ModelConfig
from octavo.errors import InvalidRequest
from tests.unit.bench.conftest import engine_report, serve_report

PEER = {"engine": "llama.cpp", "prefill": 50.0, "decode": {"1": 5.0}, "mixed": {"1": 4.0}}


def test_every_common_figure_has_a_ratio() -> None:
    ratios = {ratio.figure: ratio for ratio in compare_reports(engine_report(), PEER)}
    assert ratios["prefill"].ratio == 2.0
    assert (ratios["decode.1"].ratio, ratios["mixed.1"].ratio) == (2.0, 2.0)
    assert (ratios["decode.8"].b, ratios["decode.8"].ratio) == (None, None)
    assert not ratios["prefill"].is_lower_better


def test_of_a_server_latencies_are_better_when_lower() -> None:
    ratios = {ratio.figure: ratio for ratio in compare_reports(serve_report(), serve_report())}
    assert ratios["concurrency 8: ttft_ms.p99"].is_lower_better
    assert not ratios["concurrency 8: output_tokens_per_s"].is_lower_better
    assert ratios["concurrency 1: requests_per_s"].ratio == 1.0
    assert ratios["concurrency 1: num_failed"].ratio is None


def test_reports_of_two_kinds_have_nothing_in_common() -> None:
    with pytest.raises(InvalidRequest, match="no figure in common"):
        compare_reports(engine_report(), serve_report())


def test_a_report_is_found_after_other_output(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("loading {\n[1, 2]\n" + json.dumps(PEER) + "\n")
    assert read_report(path) == PEER
    path.write_text(json.dumps(PEER, indent=2))
    assert read_report(path) == PEER
    path.write_text('{"x": 1}')
    with pytest.raises(InvalidRequest, match="holds no report"):
        read_report(path)


def test_tables_line_up() -> None:
    lines = list(engine_table(engine_report(100)))
    assert lines[2].split() == ["best", "median"]
    assert lines[-1].split() == ["mixed", "8", "3,000", "3,000"]
    assert len({len(line) for line in lines[2:]}) == 1
    lines = list(serve_table(serve_report()))
    assert "concurrency 8" in lines[-1]
    assert "10 / 20 / 30" in lines[-1]
    lines = list(compare_table(compare_reports(engine_report(2), PEER), ("a", "b")))
    assert lines[2].split() == ["prefill", "200", "50", "4.000"]


def test_the_command_compares_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, report in (("a", engine_report()), ("b", PEER)):
        (tmp_path / name).write_text(json.dumps(report))
    with pytest.raises(SystemExit) as end:
        main(["bench", "compare", str(tmp_path / "a"), str(tmp_path / "b"), "--json"])
    assert not end.value.code
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert figures[0] == {
        "figure": "prefill", "a": 100.0, "b": 50.0, "ratio": 2.0, "lower_is_better": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("engine", "m", "--batch", "1,x"), "--batch '1,x'"),
        (("engine", "m", "--gen", "1"), "--gen must be at least 2"),
        (("serve", "--rate", "1", "--concurrency", "2"), "--rate, trace and concurrency"),
        (("serve", "--url", "ftp://x"), "'ftp://x'"),
        (("make-model", "x.gguf", "--size", "9b"), "9b"),
        (("nothing",), "nothing"),
    ],
)
def test_wrong_usage_ends_with_2(
    args: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["bench", *args])
    assert end.value.code == 2
    assert expected in capsys.readouterr().err


def test_a_picture_without_matplotlib_is_wrong_usage_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delitem(sys.modules, "octavo.bench.plot", raising=False)
    with pytest.raises(SystemExit) as end:
        main(["bench", "engine", "nowhere.gguf", "--plot", "x.png"])
    assert end.value.code == 2
    assert "octavo[plot]" in capsys.readouterr().err


def test_pictures_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    plot = pytest.importorskip("octavo.bench.plot")
    plot.plot_engine(engine_report(), tmp_path / "engine.png")
    plot.plot_serve(serve_report(), tmp_path / "serve.png")
    assert all((tmp_path / name).stat().st_size > 1000 for name in ("engine.png", "serve.png"))


def test_the_cpu_is_named(tmp_path: Path) -> None:
    assert cpu_facts(tmp_path)["cpu"] == "unknown"
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: A CPU @ 2 GHz\n")
    assert cpu_facts(tmp_path)["cpu"] == "A CPU @ 2 GHz"


def test_the_engine_is_measured_in_rounds(tiny: Path) -> None:
    config = EngineConfig(
        model=ModelConfig(model=str(tiny)), compute=ComputeConfig(backend=BackendName.REFERENCE)
    )
    said: list[str] = []
    run = MeasureConfig(prompt=16, gen=3, batch="1,3", repeat=2)
    report = bench_engine(config, run, on_figure=said.append)
    assert said[:3] == ["prefill 1 (warm-up)", "decode 1 (warm-up)", "mixed 1 (warm-up)"]
    assert len(said) == 3 * 5
    assert {"engine", "version", "model", "threads", "prompt", "gen"} <= report.keys()
    for table in (report, report["median"]):
        assert table["prefill"] > 0  # type: ignore[index]
        assert table["decode"].keys() == table["mixed"].keys() == {"1", "3"}  # type: ignore[index]
    assert report["model"] == "tiny.gguf"
    assert report["prefill"] >= report["median"]["prefill"]  # type: ignore[index]
