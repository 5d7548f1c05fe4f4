"""Starts under limits of memory, from too small to ample: each answers, or refuses with what would fit."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from scripts.proving.rows import Paths, Row
from tests.e2e.limited import (
    MIB,
    Outcome,
    ask,
    fake_cgroup,
    run_in_address_space,
    run_in_cgroup,
)

from octavo.config import parse_size

_ADDRESS_STEPS = (60, 100, 200, 300, 400, 500, 600, 700, 1000, 2000, 4000)
_CGROUP_STEPS = (40, 100, 200, 230, 260, 400, 1000, 4000)
_BAR = "all end so, never killed"


def memory_limits(paths: Paths) -> Iterator[Row]:
    """Steps of RLIMIT_AS and of a fake cgroup root; what is advised is followed, and must answer."""
    model = paths["smollm2"]
    outcomes = [_address_space(model, mib) for mib in _ADDRESS_STEPS]
    yield _row("starts under steps of RLIMIT_AS", _ADDRESS_STEPS, outcomes)
    for version in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            outcomes = [_cgroup(model, Path(folder), mib, version) for mib in _CGROUP_STEPS]
        yield _row(f"starts under steps of a cgroup v{version} limit", _CGROUP_STEPS, outcomes)


def _address_space(model: Path, mib: int) -> str:
    outcome = run_in_address_space(ask(model), mib * MIB)

    def follow() -> Outcome | None:
        limit = outcome.advised_limit
        return None if limit is None else run_in_address_space(ask(model), limit)

    return _verdict(outcome, follow)


def _cgroup(model: Path, root: Path, mib: int, version: int) -> str:
    outcome = run_in_cgroup(ask(model), fake_cgroup(root, mib * MIB, version=version))

    def follow() -> Outcome | None:
        more = outcome.advised_raise
        if more is None:
            return None
        fake_cgroup(root, mib * MIB + parse_size(more), version=version)
        return run_in_cgroup(ask(model), root)

    if outcome.has_answered and outcome.anonymous_bytes > mib * MIB:
        return "took more than granted"
    return _verdict(outcome, follow)


def _verdict(outcome: Outcome, follow: Callable[[], Outcome | None]) -> str:
    if outcome.has_answered:
        return "answered"
    if not outcome.has_refused:
        return f"ended with {outcome.code}"
    followed = follow()
    if followed is None:
        return "refused without advice"
    return "refused" if followed.has_answered else "refused with wrong advice"


def _row(what: str, steps: tuple[int, ...], outcomes: list[str]) -> Row:
    counts = Counter(outcomes)
    measured = ", ".join(f"{number} {name}" for name, number in counts.items())
    is_met = set(outcomes) == {"answered", "refused"}
    answered = [float(mib) for mib, got in zip(steps, outcomes, strict=True) if got == "answered"]
    return Row(
        f"{what}, {steps[0]} to {steps[-1]} MiB", measured, _BAR, is_met, {"answered_mib": answered}
    )
