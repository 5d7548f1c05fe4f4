"""The checks of `octavo doctor`: what they find, and what they say to do."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from octavo.api.doctor import (
    Check,
    Verdict,
    check_cores,
    check_cpu,
    check_huge_pages,
    check_kernels,
    check_memory,
    check_models,
    check_port,
    check_store,
)
from octavo.api.limits import thread_counts
from octavo.engine.machine import MachineLimits

TABLES = ("avx512_vnni", "avx2", "scalar")


def verdict(check: Check) -> Verdict:
    """The verdict; what is not ok says what to do, the rest nothing."""
    assert bool(check.advice) == (check.verdict is not Verdict.OK)
    assert check.found
    return check.verdict


@pytest.mark.parametrize(
    ("forced", "expected", "text"),
    [
        (None, Verdict.OK, "avx512_vnni in use; available: avx512_vnni, avx2, scalar"),
        ("avx512_vnni", Verdict.OK, "avx512_vnni in use"),
        ("avx2", Verdict.WARN, "avx2 in use, as OCTAVO_ISA says"),
        ("neon", Verdict.FAIL, "'neon'"),
    ],
)
def test_the_kernel_table_in_use(forced: str | None, expected: Verdict, text: str) -> None:
    check = check_kernels(TABLES, forced)
    assert verdict(check) is expected
    assert text in check.found


def test_a_cpu_without_vectors_works_slowly() -> None:
    assert verdict(check_cpu("A CPU", ("avx2", "fma"))) is Verdict.OK
    assert verdict(check_cpu("A CPU", ())) is Verdict.WARN


def test_cores_that_others_use() -> None:
    limits = MachineLimits(2, 2**34, "the test")
    assert verdict(check_cores(limits, None)) is Verdict.OK
    assert verdict(check_cores(limits, 2.1)) is Verdict.OK
    assert verdict(check_cores(limits, 3.0)) is Verdict.WARN
    assert "2 granted" in check_cores(limits, 3.0).found


@pytest.mark.parametrize(
    ("num_bytes", "expected"),
    [(2**31, Verdict.OK), (2**29, Verdict.WARN), (2**26, Verdict.FAIL)],
)
def test_memory_granted(num_bytes: int, expected: Verdict) -> None:
    check = check_memory(MachineLimits(2, num_bytes, "cgroup memory limit"))
    assert verdict(check) is expected
    assert "cgroup memory limit" in check.found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("always [madvise] never\n", Verdict.OK),
        ("[always] madvise never\n", Verdict.OK),
        ("always madvise [never]\n", Verdict.WARN),
        (None, Verdict.WARN),
    ],
)
def test_huge_pages(tmp_path: Path, text: str | None, expected: Verdict) -> None:
    if text is not None:
        folder = tmp_path / "sys/kernel/mm/transparent_hugepage"
        folder.mkdir(parents=True)
        (folder / "enabled").write_text(text)
    assert verdict(check_huge_pages(tmp_path)) is expected


def test_a_store_is_not_made_by_looking(tmp_path: Path) -> None:
    home = tmp_path / "not" / "yet"
    assert "writable" in check_store(home).found
    assert not home.parent.exists()
    (tmp_path / "file").write_text("")
    assert verdict(check_store(tmp_path / "file" / "home")) is Verdict.FAIL


def test_models_whose_file_is_not_whole(tmp_path: Path) -> None:
    assert "none stored" in check_models(tmp_path).found
    path = tmp_path / "manifests" / "tiny" / "latest"
    path.parent.mkdir(parents=True)
    path.write_text(
        f'{{"name": "tiny", "sha256": "{"0" * 64}", "size_bytes": 3, "source": "here"}}'
    )
    check = check_models(tmp_path)
    assert verdict(check) is Verdict.WARN
    assert check.advice == "octavo pull tiny"
    path.write_text('{"name": "tiny", "sha256": "x", "size_bytes": 3, "source": "here"}')
    assert verdict(check_models(tmp_path)) is Verdict.WARN


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        check = check_port("127.0.0.1", port)
        assert verdict(check) is Verdict.WARN
        assert check.found == f"127.0.0.1:{port}: in use"
    assert verdict(check_port("127.0.0.1", port)) is Verdict.OK


def test_thread_counts_that_are_measured() -> None:
    assert thread_counts(1) == [1]
    assert thread_counts(3) == [1, 2, 3]
    assert thread_counts(24) == [1, 2, 3, 4, 5, 6, 7, 8, 16, 24]
