"""What is refused before any library is loaded, and what is said where memory gives out later."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from octavo.engine.machine import MachineLimits
from octavo.engine.start import check_start, within_limits
from octavo.errors import CapacityError

MIB = 2**20


def test_ample_memory_starts() -> None:
    check_start(MachineLimits(2, 4096 * MIB, "the test"))


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (MachineLimits(2, 50 * MIB, "cgroup memory limit"), r"50MiB are available \(cgroup.*Raise the limit by 814MiB"),
        (MachineLimits(2, 50 * MIB, "memory available on the machine"), "Free 814MiB"),
        (MachineLimits(2, 4096 * MIB, "the test", 100 * MIB, 120 * MIB), r"100MiB.*RLIMIT_AS.*ulimit -v 1101824"),
        (MachineLimits(2, 4096 * MIB, "the test", data_bytes=100 * MIB), "takes 288MiB.*100MiB.*RLIMIT_DATA"),
    ],
)  # fmt: skip
def test_too_little_for_the_libraries_is_refused(limits: MachineLimits, message: str) -> None:
    with pytest.raises(CapacityError, match=message):
        check_start(limits)


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOMEM, "no")])
def test_memory_that_gives_out_is_told_with_numbers(tmp_path: Path, error: Exception) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"x" * 2048)
    with pytest.raises(CapacityError, match=r"the file has 2KiB.*are available"):  # noqa: SIM117
        with within_limits(model):
            raise error


def test_other_errors_pass(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), within_limits(tmp_path):
        raise PermissionError(errno.EACCES, "no")
