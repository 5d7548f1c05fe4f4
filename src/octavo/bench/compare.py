"""`bench compare`: two reports, figure by figure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from octavo.errors import InvalidRequest

_LOWER_IS_BETTER: Final = (
    "_ms.",
    "client_cpu_s",
    "num_failed",
    "num_unfinished",
    "outside the model",
)
_RUN_FIGURES: Final = (
    "requests_per_s", "output_tokens_per_s", "total_tokens_per_s", "ttft_ms", "tpot_ms", "itl_ms", "e2e_ms",
    "client_cpu_s", "num_failed", "num_unfinished",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ratio:
    """One figure of two reports; a side that does not have it is None."""

    figure: str
    a: float | None
    b: float | None

    @property
    def ratio(self) -> float | None:
        """A / B, None if it says nothing."""
        return None if self.a is None or not self.b else self.a / self.b

    @property
    def is_lower_better(self) -> bool:
        """Whether the figure is a time or a count of failures."""
        return any(part in self.figure for part in _LOWER_IS_BETTER)

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "figure": self.figure,
            "a": self.a,
            "b": self.b,
            "ratio": self.ratio,
            "lower_is_better": self.is_lower_better,
        }


def read_report(path: Path) -> dict[str, object]:
    """The report in a file: the whole of it, or its last line that is a JSON object. Raises: InvalidRequest, OSError."""
    text = path.read_text(encoding="utf-8", errors="replace")
    for part in (text, *reversed(text.splitlines())):
        try:
            value = json.loads(part)
        except ValueError:
            continue
        if isinstance(value, dict) and dict(_figures(value)):
            return value
    raise InvalidRequest(f"{path} holds no report of a benchmark; --json writes one")


def compare_reports(a: Mapping[str, object], b: Mapping[str, object]) -> list[Ratio]:
    """Every figure that either has, in the order of A. Raises: InvalidRequest if they have none in common."""
    ours, theirs = dict(_figures(a)), dict(_figures(b))
    if not ours.keys() & theirs.keys():
        raise InvalidRequest("the two reports have no figure in common")
    return [
        Ratio(name, ours.get(name), theirs.get(name)) for name in dict.fromkeys([*ours, *theirs])
    ]


def _figures(report: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    """(name, value) of every figure: tokens per second of an engine, or what clients of a server saw."""
    for name in ("prefill", "decode", "mixed", "median"):
        yield from _leaves(name, report.get(name))
    yield from _leaves("outside the model", report.get("outside_model"))
    yield from _shares(report.get("limits"))
    runs = report.get("runs")
    for run in runs if isinstance(runs, list) else ():
        if isinstance(run, dict):
            for name in _RUN_FIGURES:
                yield from _leaves(f"{run.get('level')}: {name}", run.get(name))
            goodput = run.get("goodput")
            if isinstance(goodput, dict):
                yield from _leaves(f"{run.get('level')}: goodput", goodput.get("requests_per_s"))


def _shares(limits: object) -> Iterator[tuple[str, float]]:
    """Shares of the machine's limits. Peers have none, nor have reports of old versions or made with --no-limits."""
    shares = limits.get("shares") if isinstance(limits, dict) else None
    for kind, entry in shares.items() if isinstance(shares, dict) else ():
        entries = {"": entry} if "share" in entry else {f".{b}": e for b, e in entry.items()}
        for batch, each in entries.items():
            yield from _leaves(f"share of limit: {kind}{batch}", each.get("share"))


def _leaves(name: str, value: object) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(f"{name}.{key}", inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, float(value)
