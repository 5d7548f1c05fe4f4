"""Reports: compared, as tables, as pictures; and `bench engine` on a tiny model."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from octavo.bench.compare import compare_reports, read_report
from octavo.bench.engine import bench_engine
from octavo.bench.machine import checkout_commit, cpu_facts, run_facts
from octavo.bench.options import MeasureConfig
from octavo.bench.tables import compare_table, engine_table, limits_table, serve_table
from octavo.cli.main import main
from octavo.config import BackendName, ComputeConfig, EngineConfig, ModelConfig
from octavo.errors import InvalidRequest
from tests.unit.bench.conftest import CEILINGS, engine_report, limited_report, serve_report

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
    lines = list(engine_table(limited_report(1)))
    assert lines[1] == "2026-11-29T12:00:00+00:00, commit 0123456789ab+: octavo bench engine m.gguf"
    assert lines[3].split("  ")[-4:] == ["outside the model", "limit", "share", "limited by"]
    assert lines[5].split() == ["decode", "1", "10", "10", "3.4%", "19.98", "50%", "memory"]
    assert lines[-1].split()[:6] == ["avx2", "2", "100.0", "-", "10.0", "2.2"]
    lines = list(serve_table(serve_report()))
    assert "concurrency 8" in lines[-1]
    assert "10 / 20 / 30" in lines[-1]
    lines = list(compare_table(compare_reports(engine_report(2), PEER), ("a", "b")))
    assert lines[2].split() == ["prefill", "200", "50", "4.000"]


def test_the_ceilings_are_a_table() -> None:
    lines = list(limits_table([asdict(CEILINGS)]))
    assert lines[1].split()[:5] == ["kernels", "threads", "int8", "bf16", "f32"]
    assert "read 105 MiB  read 1 GiB" in lines[1]
    assert lines[2].split()[:7] == ["avx2", "2", "100.0", "-", "10.0", "2.2", "2.0"]
    lines = list(serve_table(serve_report() | {"limits": {"ceilings": [asdict(CEILINGS)]}}))
    assert lines[-1].startswith("avx2")


def test_reports_without_limits_are_compared_too() -> None:
    ours, old = limited_report(), engine_report()
    ratios = {ratio.figure: ratio for ratio in compare_reports(ours, old | {"limits": None})}
    assert ratios["decode.1"].ratio == 1.0
    assert ratios["share of limit: decode.1"].b is None
    ratios = {ratio.figure: ratio for ratio in compare_reports(ours, limited_report(2))}
    assert ratios["share of limit: prefill"].ratio == 0.5
    assert ratios["outside the model.mixed.8"].ratio == 1.0
    assert ratios["outside the model.mixed.8"].is_lower_better
    assert ratios["share of limit: mixed.8"].ratio == 0.5
    assert not ratios["share of limit: mixed.8"].is_lower_better


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
    plot.plot_engine(limited_report(), tmp_path / "limits.png")
    plot.plot_serve(serve_report(), tmp_path / "serve.png")
    assert all(
        (tmp_path / name).stat().st_size > 1000
        for name in ("engine.png", "limits.png", "serve.png")
    )


def test_the_cpu_is_named(tmp_path: Path) -> None:
    assert cpu_facts(tmp_path)["cpu"] == "unknown"
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: A CPU @ 2 GHz\n")
    assert cpu_facts(tmp_path)["cpu"] == "A CPU @ 2 GHz"


def test_a_run_says_when_and_how_it_was_made(tmp_path: Path) -> None:
    facts = run_facts("octavo bench engine m")
    assert facts["command"] == "octavo bench engine m"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}[+-]\d\d:\d\d", str(facts["date"]))
    assert checkout_commit(tmp_path) is None
    (tmp_path / "src/octavo").mkdir(parents=True)
    (tmp_path / ".git").write_text("broken")
    assert checkout_commit(tmp_path) is None


def test_the_commit_is_that_of_the_checkout(tmp_path: Path) -> None:
    def git(*args: str) -> str:
        who = ("-c", "user.name=n", "-c", "user.email=e@example.org")
        done = subprocess.run(
            ["git", "-C", str(tmp_path), *who, *args], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    path = tmp_path / "src/octavo/a.py"
    path.parent.mkdir(parents=True)
    path.write_text("1")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    assert checkout_commit(tmp_path) == git("rev-parse", "HEAD")
    path.write_text("2")
    assert checkout_commit(tmp_path) == git("rev-parse", "HEAD") + "+"


def test_the_engine_is_measured_against_its_limits(tiny: Path) -> None:
    config = EngineConfig(model=ModelConfig(model=str(tiny)), compute=ComputeConfig(num_threads=1))
    said: list[str] = []
    run = MeasureConfig(prompt=16, gen=3, batch="1,3", repeat=1)
    report = bench_engine(config, run, on_figure=said.append)
    assert (said[0], said[-1]) == ("limits", "mixed 3")
    limits = report["limits"]
    assert isinstance(limits, dict)
    assert limits["ceilings"]["num_threads"] == 1
    assert limits["work"]["body"]["num_bytes"] > 0
    assert limits["shares"]["decode"].keys() == limits["shares"]["mixed"].keys() == {"1", "3"}
    outside = report["outside_model"]
    assert isinstance(outside, dict)
    assert all(0 < outside[kind][b] < 1 for kind in ("decode", "mixed") for b in ("1", "3"))
    for entry in (limits["shares"]["prefill"], *limits["shares"]["decode"].values()):
        assert 0 < entry["share"] <= entry["best_share"]
        assert entry["bound"] in ("memory", "arithmetic")
    json.dumps(report)
    skipped = bench_engine(
        config, MeasureConfig(prompt=16, gen=3, batch="1", repeat=1, limits=False)
    )
    assert skipped["limits"] is None


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
    assert report["limits"] is None  # nothing is known of this backend's work
