"""Rows of a proof: what was promised, what was measured, whether it holds. Printed as they come, kept as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from octavo.api.models import resolve_model
from octavo.bench.machine import cpu_facts, run_facts

ROOT = Path(__file__).resolve().parents[2]
SMALL = os.environ.get("SMALL", "") not in ("", "0")
"""A short version for a machine that others use too: what needs a quiet one is shown without a verdict."""

_MODELS = ("smollm2", "gemma3:270m")

_MARKS = {True: "ok", False: "FAILED", None: "skipped"}


@dataclass(frozen=True)
class Row:
    """One promise: what, what was measured, the bar, whether it holds (None: could not be measured here).

    `values` are the single readings behind the figure, by name.
    """

    what: str
    measured: str
    bar: str
    ok: bool | None
    values: Mapping[str, Sequence[float]] = field(default_factory=dict)


Paths = Mapping[str, Path]
"""Model files by catalog name."""
Section = Callable[[Paths], Iterator[Row]]


def skipped(what: str, why: str, bar: str = "") -> Row:
    """A promise that cannot be measured here."""
    return Row(what, f"not measured here: {why}", bar, None)


def on_quiet(is_met: bool) -> bool | None:
    """The verdict on a figure that other work on the machine falsifies: none in the short version."""
    return None if SMALL else is_met


def quiet_bar(bar: str) -> str:
    """The bar of such a figure."""
    return f"{bar} (on a quiet machine)" if SMALL else bar


def run_sections(sections: Sequence[Section], names: Sequence[str]) -> int:
    """Print the rows of the sections of these names, or of all; the exit code, 2 for a name that is none."""
    by_name = {section.__name__: section for section in sections}
    unknown = set(names) - by_name.keys()
    if unknown:
        print(f"no section {', '.join(sorted(unknown))}: {' '.join(by_name)}", file=sys.stderr)
        return 2
    chosen = [by_name[name] for name in names] if names else list(sections)
    record = os.environ.get("PROVE_JSON")
    paths = {name: resolve_model(name) for name in _MODELS}
    return print_rows(chosen, paths, Path(record) if record else None)


def print_rows(sections: Sequence[Section], paths: Paths, record: Path | None = None) -> int:
    """Print the rows of all sections as they come, and keep them in `record`; the exit code: 1 if a row is not ok."""
    rows: list[Row] = []
    for section in sections:
        for row in section(paths):
            rows.append(row)
            print(
                f"{row.what:<62} | {row.measured:<44} | {row.bar:<34} | {_MARKS[row.ok]}",
                flush=True,
            )
            if record is not None:
                keep(record, section.__name__, row)
    num_failed = sum(row.ok is False for row in rows)
    print(f"{sum(row.ok is True for row in rows)} passed, {num_failed} failed")
    return 1 if num_failed else 0


def keep(record: Path, section: str, row: Row) -> None:
    """Put a row into a JSON file, in the place of an older one of the same name: sections may be measured one by one."""
    report = json.loads(record.read_text()) if record.exists() else {}
    report |= run_facts(" ".join([Path(sys.argv[0]).name, *sys.argv[1:]])) | {
        "benchmark": "prove",
        "machine": cpu_facts(),
    }
    rows = [old for old in report.get("rows", []) if old["what"] != row.what]
    report["rows"] = [*rows, {"section": section, **asdict(row)}]
    whole = record.with_name(record.name + ".new")
    whole.write_text(json.dumps(report, indent=1) + "\n")
    whole.replace(record)


def suite_row(what: str, bar: str, *arguments: str) -> Row:
    """A promise that whole files of tests hold; the short version leaves them to the suite, which is run before it."""
    if SMALL:
        return skipped(what, "the suite has these tests", bar)
    return pytest_row(what, bar, *arguments)


def pytest_row(what: str, bar: str, *arguments: str) -> Row:
    """A promise that tests hold."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    if done.returncode:
        print(done.stdout[-3000:], file=sys.stderr)
    return Row(what, lines[-1].strip("= ") if lines else "no output", bar, done.returncode == 0)
