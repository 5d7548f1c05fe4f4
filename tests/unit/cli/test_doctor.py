"""`octavo doctor` as users and scripts see it."""

from __future__ import annotations

import json
import sys

import pytest

from tests.unit.cli.conftest import Octavo

CHECKS = ["octavo", "cpu", "kernels", "cores", "memory", "huge pages", "store", "models", "port"]


@pytest.fixture(autouse=True)
def no_forced_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OCTAVO_ISA", raising=False)


def test_a_line_for_each_check(octavo: Octavo) -> None:
    code, out, err = octavo("doctor")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [line[6:18].strip() for line in lines] == CHECKS
    assert all(line.startswith(("ok", "warn")) for line in lines)
    assert all((" -> " in line) == line.startswith("warn") for line in lines)


def test_scripts_get_one_object(octavo: Octavo) -> None:
    report = json.loads(octavo("doctor", "--json").out)
    assert [check["name"] for check in report["checks"]] == CHECKS
    assert {check["verdict"] for check in report["checks"]} <= {"ok", "warn"}
    assert report["limits"] is None


def test_a_failed_check_ends_with_1(octavo: Octavo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_ISA", "sse9")
    code, out, err = octavo("doctor")
    assert (code, err) == (1, "octavo: failed: kernels\n")
    assert "fail  kernels     OCTAVO_ISA is 'sse9'" in out


def test_a_native_module_that_does_not_load_is_a_finding(
    octavo: Octavo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "octavo.api.limits", None)
    code, out, err = octavo("doctor", "--limits")
    assert (code, err) == (1, "octavo: failed: native\n")
    assert "fail  native      the native module does not load: " in out
