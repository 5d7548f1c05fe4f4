"""Turns reports into a page of tables.

    python scripts/perf_tables.py REPORT.json ... > docs/perf/2026-12-01.md

A report is what `octavo bench engine|ops|claims --json` prints, or what `make prove-B` keeps where PROVE_JSON says.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Report = Mapping[str, Any]

_VERDICTS = {True: "yes", False: "**no**", None: "-"}


def main(names: Sequence[str]) -> int:
    """Print the page of the reports in these files."""
    if not names:
        print(__doc__, file=sys.stderr)
        return 2
    reports = [json.loads(Path(name).read_text()) for name in names]
    print("\n".join(page(reports)))
    return 0


def page(reports: Sequence[Report]) -> Iterator[str]:
    """The lines of a page: a head with the date, then a part for each report."""
    yield f"# Measured on {reports[0]['date'][:10]}"
    for report in reports:
        yield ""
        yield from _PARTS[report["benchmark"]](report)


def engine_part(report: Report) -> Iterator[str]:
    """Figures of one model with their limits."""
    yield f"## {report['model']}, {report['threads']} threads"
    yield from _facts(report)
    yield f"Prompt {report['prompt']}, {report['gen']} generated, {report['repeat']} rounds; tokens/s."
    yield ""
    limits = report.get("limits")
    shares = limits["shares"] if limits else {}
    yield from _table_head("figure", "median", "best", "limit", "share of limit", "limited by")
    yield _figure("prefill", report["median"]["prefill"], report["prefill"], shares.get("prefill"))
    for kind in ("decode", "mixed"):
        for batch, best in report[kind].items():
            entry = shares[kind][batch] if shares else None
            yield _figure(f"{kind} {batch}", report["median"][kind][batch], best, entry)
    if limits:
        yield ""
        yield _ceilings(limits["ceilings"])


def prove_part(report: Report) -> Iterator[str]:
    """What was promised, and what was measured."""
    yield "## What was promised"
    yield from _facts(report)
    yield from _table_head("promise", "measured", "bar", "holds")
    for row in report["rows"]:
        yield _row(row["what"], row["measured"], row["bar"], _VERDICTS[row["ok"]])
    readings = [row for row in report["rows"] if any(len(v) > 1 for v in row["values"].values())]
    if readings:
        yield ""
        yield "Readings behind the medians:"
        yield ""
        yield from _table_head("promise", "of", "median", "least", "most", "readings")
        for row in readings:
            for name, values in row["values"].items():
                spread = (statistics.median(values), min(values), max(values))
                yield _row(row["what"], name, *map(number, spread), str(len(values)))


def ops_part(report: Report) -> Iterator[str]:
    """What the steps of one model spend their time on."""
    yield f"## Where a step's time goes: {report['model']}, {report['threads']} threads"
    yield from _facts(report)
    for index, phase in enumerate(report["phases"]):
        if index:
            yield ""
        yield f"{phase['phase']}: {phase['num_steps']} steps of {number(phase['step_ms'])} ms."
        yield ""
        yield from _table_head(
            "operation", "ms", "share", "GMAC/s", "of peak", "GB/s", "of bandwidth"
        )
        for row in phase["rows"]:
            yield _row(
                row["name"],
                f"{row['ms']:.3f}",
                f"{row['share']:.1%}",
                _giga(row.get("macs_per_s")),
                _percent(row.get("peak_share")),
                _giga(row.get("bytes_per_s")),
                _percent(row.get("bandwidth_share")),
            )
    if report["limits"]:
        yield ""
        yield _ceilings(report["limits"]["ceilings"])


def claims_part(report: Report) -> Iterator[str]:
    """What is claimed of such engines, and what was measured."""
    yield f"## Claims: {report['model']}, {report['threads']} threads"
    yield from _facts(report)
    yield from _table_head("claim", "claimed", "ours")
    for row in report["claims"]:
        yield _row(row["claim"], row["claimed"], row["ours"])


_PARTS: Mapping[str, Callable[[Report], Iterator[str]]] = {
    "engine": engine_part,
    "ops": ops_part,
    "claims": claims_part,
    "prove": prove_part,
}


def _giga(value: float | None) -> str:
    return "-" if value is None else f"{value / 1e9:.1f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def number(value: float) -> str:
    """Four digits, or all before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _facts(report: Report) -> Iterator[str]:
    machine, commit = report["machine"], report.get("commit") or "unknown"
    yield ""
    table = f", kernels {machine['kernel_table']}" if "kernel_table" in machine else ""
    yield (
        f"{machine['cpu']}, {machine['num_cores']} cores{table}; octavo {report['octavo_version']}, "
        f"commit {commit[:12]}{commit[40:]}, {report['date']}:"
    )
    yield from ("", "```sh", report["command"], "```", "")


def _figure(name: str, median: float, best: float, entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return _row(name, number(median), number(best), "-", "-", "-")
    limit = number(entry["tokens_per_s"])
    return _row(name, number(median), number(best), limit, f"{entry['share']:.0%}", entry["bound"])


def _ceilings(each: Mapping[str, Any]) -> str:
    reads = ", ".join(
        f"{read['num_bytes'] / 1e6:,.0f} MB read at {read['bytes_per_s'] / 1e9:.1f} GB/s"
        for read in each["reads"]
    )
    return (
        f"Limits: {reads}; {each['int8_instructions']} {each['int8_macs_per_s'] / 1e9:.0f} GMAC/s, "
        f"f32 {each['f32_macs_per_s'] / 1e9:.0f} GMAC/s."
    )


def _table_head(*names: str) -> Iterator[str]:
    yield _row(*names)
    yield _row(*("---" for _ in names))


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
