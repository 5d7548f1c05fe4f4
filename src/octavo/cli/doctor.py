"""`octavo doctor`: what this machine has, what will be used, what to fix."""

from __future__ import annotations

import json as json_
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import Parameter

from octavo import __version__
from octavo.api.doctor import Check, Verdict, examine
from octavo.bench.machine import cpu_facts
from octavo.bench.tables import limits_table
from octavo.cli.exits import EXIT_FAILED, EXIT_OK, fail
from octavo.config import from_env
from octavo.server.config import ServerConfig
from octavo.store.manifest import list_models

_MAX_MODELS: Final = 3
"""Stored models whose size is read as a buffer: each takes time."""


def doctor(
    *,
    limits: Annotated[
        bool,
        Parameter(
            help="measure what memory and arithmetic allow, a few seconds",
            negative=(),
            show_default=False,
        ),
    ] = False,
    json: Annotated[
        bool, Parameter(help="print one JSON object", negative=(), show_default=False)
    ] = False,
) -> int:
    """Check this machine: what it has, what will be used, and what to do about it.

    A line for each check: ok, warn (slower or less than could be) or fail. --limits adds
    read bandwidth and multiply-accumulates per second of each kernel table and number of
    threads, the ceilings of every speed. Exit codes: 0 no check failed, 1 one did.

    Example: octavo doctor --limits
    """
    env = from_env()
    server = ServerConfig()
    tables, features, broken = _kernels()
    checks = examine(
        env.home,
        cpu=str(cpu_facts()["cpu"]),
        tables=tables,
        features=features,
        forced=env.isa,
        address=(server.host, server.port),
    )
    checks += [] if broken is None else [broken]
    ceilings = _ceilings(env.home) if limits and broken is None else []
    _write(checks, ceilings, as_json=json)
    failed = [check.name for check in checks if check.verdict is Verdict.FAIL]
    return fail(f"failed: {', '.join(failed)}", EXIT_FAILED) if failed else EXIT_OK


def _kernels() -> tuple[Sequence[str], Sequence[str], Check | None]:
    """Kernel tables and CPU features, or why there are none."""
    try:
        from octavo.api.limits import (
            kernel_facts,
        )  # the native module may not load: that is a finding
    except ImportError as error:
        advice = "install again: pip install --force-reinstall octavo"
        return (
            (),
            (),
            Check("native", Verdict.FAIL, f"the native module does not load: {error}", advice),
        )
    facts = kernel_facts()
    return facts.tables, facts.features, None


def _ceilings(home: Path) -> list[dict[str, Any]]:
    from octavo.api.limits import machine_ceilings

    sizes = sorted({manifest.size_bytes for manifest in list_models(home)})
    return [asdict(each) for each in machine_ceilings(sizes[:_MAX_MODELS])]


def _write(
    checks: Sequence[Check], ceilings: Sequence[Mapping[str, Any]], *, as_json: bool
) -> None:
    if as_json:
        report = {
            "version": __version__,
            "checks": [check.to_dict() for check in checks],
            "limits": list(ceilings) or None,
        }
        sys.stdout.write(json_.dumps(report, ensure_ascii=False) + "\n")
        return
    for check in checks:
        advice = f" -> {check.advice}" if check.advice else ""
        sys.stdout.write(f"{check.verdict.value:<6}{check.name:<12}{check.found}{advice}\n")
    if ceilings:
        sys.stdout.write("\n")
        for line in limits_table(ceilings):
            sys.stdout.write(line + "\n")
