"""Reports as lines of plain text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from octavo.bench.compare import Ratio


def engine_table(report: Mapping[str, Any]) -> Iterator[str]:
    """Best and median of each figure."""
    yield from _head(report)
    yield f"prompt {report['prompt']}, {report['gen']} generated, {report['repeat']} rounds; tokens/s"
    limits = report.get("limits")  # reports of old versions have none
    outside = ("outside the model",) if "outside_model" in report else ()
    heads = ("", "best", "median", *outside, *(("limit", "share", "limited by") if limits else ()))
    yield from _columns(heads, _engine_rows(report))
    if limits:
        yield from limits_table([limits["ceilings"]])


def _head(report: Mapping[str, Any]) -> Iterator[str]:
    """What was measured, on what, when and how."""
    machine = report["machine"]
    yield (
        f"{report['model']}, {report['threads']} threads, kernels {machine['kernel_table']}, {machine['cpu']}; "
        f"octavo {report['version']}"
    )
    yield from run_lines(report)


def run_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """When and how a report was made, if it says."""
    if "command" in report:
        commit = report["commit"]
        yield f"{report['date']}, commit {commit[:12] + commit[40:] if commit else 'unknown'}: {report['command']}"


def _engine_rows(report: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    median = report["median"]
    limits = report.get("limits")
    shares = limits["shares"] if limits else {}
    outside = report.get("outside_model")
    yield (
        "prefill",
        _number(report["prefill"]),
        _number(median["prefill"]),
        *_percent_cells(outside and outside["prefill"]),
        *_share_cells(shares.get("prefill")),
    )
    for kind in ("decode", "mixed"):
        for batch, best in report[kind].items():
            share = _share_cells(shares[kind][batch] if shares else None)
            spent = _percent_cells(outside and outside[kind][batch])
            yield f"{kind} {batch}", _number(best), _number(median[kind][batch]), *spent, *share


def _percent_cells(share: float | None) -> tuple[str, ...]:
    """None where the report does not say."""
    return () if share is None else (f"{share:.1%}",)


def _share_cells(entry: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The limit of a figure, the median's share of it, what sets it."""
    if entry is None:
        return ()
    return _number(entry["tokens_per_s"]), f"{entry['share']:.0%}", entry["bound"]


def ops_table(report: Mapping[str, Any]) -> Iterator[str]:
    """A table for each phase: what its steps spend their time on."""
    yield from _head(report)
    for phase in report["phases"]:
        yield ""
        yield f"{phase['phase']}: {phase['num_steps']} steps of {_number(phase['step_ms'])} ms"
        heads = ("", "ms", "share", "runs", "GMAC/s", "of peak", "GB/s", "of bandwidth")
        yield from _columns(heads, (_op_row(row) for row in phase["rows"]))
    if report["limits"]:
        yield ""
        yield from limits_table([report["limits"]["ceilings"]])


def _op_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    runs = f"{row['calls']:.4g}" if "calls" in row else "-"
    rates = (
        _giga(row.get("macs_per_s")),
        _percent(row.get("peak_share")),
        _giga(row.get("bytes_per_s")),
        _percent(row.get("bandwidth_share")),
    )
    return row["name"], f"{row['ms']:.3f}", f"{row['share']:.1%}", runs, *rates


def claims_table(report: Mapping[str, Any]) -> Iterator[str]:
    """A paragraph for each claim."""
    yield from _head(report)
    for row in report["claims"]:
        yield ""
        yield f"{row['key']}: {row['claim']}"
        yield f"  claimed  {row['claimed']}"
        yield f"  ours     {row['ours']}"
        yield f"  repeat   {row['command']}"


def limits_table(ceilings: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What the machine allows each kernel table and number of threads."""
    yield "limits: multiply-accumulates in G/s, reading a buffer of this size in GB/s"
    sizes = [read["num_bytes"] for read in ceilings[0]["reads"]]
    heads = (
        "kernels",
        "threads",
        "int8",
        "bf16",
        "f32",
        *(f"read {_size(size)}" for size in sizes),
        "int8 is",
    )
    yield from _columns(heads, (_limits_row(each) for each in ceilings))


def _limits_row(each: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        each["kernel_table"],
        str(each["num_threads"]),
        *(_giga(each[f"{kind}_macs_per_s"]) for kind in ("int8", "bf16", "f32")),
        *(_giga(read["bytes_per_s"]) for read in each["reads"]),
        each["int8_instructions"],
    )


def serve_table(report: Mapping[str, Any]) -> Iterator[str]:
    """Throughput, latencies and goodput of each level."""
    workload = report["workload"]
    yield f"{report['model']} at {report['url']}; workload {workload['workload']}, seed {workload['seed']}"
    yield from run_lines(report)
    yield "latencies in ms as p50 / p90 / p99"
    heads = (
        "",
        "done",
        "failed",
        "req/s",
        "tok/s",
        "TTFT",
        "TPOT",
        "ITL",
        "E2E",
        "good",
        "client CPU s",
    )
    yield from _columns(heads, (_serve_row(run) for run in report["runs"]))
    for run in report["runs"]:
        if run["is_cut"]:
            yield f"{run['level']}: cut short at the timeout, {run['num_unfinished']} requests unfinished"
        if (share := run.get("predicted_ttft_share")) is not None:
            yield f"{run['level']}: the server predicted {share:.0%} of the times to the first token within 30 %"
        for error, count in run["errors"].items():
            yield f"{run['level']}: {count} x {error}"
    if report.get("limits"):
        yield from limits_table(report["limits"]["ceilings"])


def _serve_row(run: Mapping[str, Any]) -> tuple[str, ...]:
    goodput = run.get("goodput")
    return (
        run["level"],
        str(run["num_completed"]),
        str(run["num_failed"] + run["num_unfinished"]),
        _number(run["requests_per_s"]),
        _number(run["output_tokens_per_s"]),
        *(_latency(run[name]) for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")),
        "-" if goodput is None else f"{goodput['share']:.0%}",
        f"{run['client_cpu_s']:.2f}",
    )


def compare_table(ratios: Sequence[Ratio], names: tuple[str, str]) -> Iterator[str]:
    """A, B and A / B of each figure; times and failures are marked, as less of them is better."""
    yield f"A = {names[0]}, B = {names[1]}"
    rows = (
        (
            ratio.figure,
            _number(ratio.a),
            _number(ratio.b),
            "-" if ratio.ratio is None else f"{ratio.ratio:.3f}",
            "less is better" if ratio.is_lower_better else "",
        )
        for ratio in ratios
    )
    yield from _columns(("", "A", "B", "A/B", ""), rows)


def _latency(summary: Mapping[str, float] | None) -> str:
    if summary is None:
        return "-"
    return " / ".join(_number(summary[name]) for name in ("p50", "p90", "p99"))


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _giga(value: float | None) -> str:
    return "-" if value is None else f"{value / 1e9:.1f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.0f} MiB" if num_bytes < 2**30 else f"{num_bytes / 2**30:.3g} GiB"


def _columns(heads: Sequence[str], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    """Columns of equal width: the first to the left, numbers to the right."""
    lines = [tuple(heads), *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    for first, *rest in lines:
        cells = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
        yield "  ".join((first.ljust(widths[0]), *cells)).rstrip()
