"""What this process was really granted: cores and memory, as affinity, cgroups and resource limits say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_UNLIMITED: Final = 2**60
"""cgroup v1 writes "no limit" as a number near 2**63."""


ON_MACHINE: Final = "memory available on the machine"
RLIMIT_AS: Final = "RLIMIT_AS, the address space"
RLIMIT_DATA: Final = "RLIMIT_DATA"


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """Cores and bytes that may still be used. `memory_source` names what sets the memory limit."""

    num_cores: int
    memory_bytes: int
    memory_source: str
    address_space_bytes: int | None = None
    """Room under RLIMIT_AS, mapped files included; None without such a limit."""
    address_space_limit: int | None = None
    """RLIMIT_AS itself."""
    data_bytes: int | None = None
    """Room under RLIMIT_DATA; None without such a limit."""

    @property
    def reserving(self) -> Iterator[tuple[int, str]]:
        """(room, source) of the limits that count what is reserved, whether it is touched or not."""
        if self.address_space_bytes is not None:
            yield self.address_space_bytes, RLIMIT_AS
        if self.data_bytes is not None:
            yield self.data_bytes, RLIMIT_DATA

    @property
    def least(self) -> tuple[int, str]:
        """(room, source) of the tightest limit."""
        return min([(self.memory_bytes, self.memory_source), *self.reserving])


def read_machine_limits(root: Path = Path("/")) -> MachineLimits:
    """Read the limits of this process. `root` is where /proc and /sys are found (tests have their own).

    Cores: the affinity mask, and below it the cgroup's CPU quota, rounded up. Memory: the least of what the kernel
    calls available, and the room left in each enclosing cgroup (reclaimable file pages count as room).
    """
    memory, source = min(_memory_candidates(root), key=lambda found: found[0])
    return MachineLimits(
        _num_cores(root),
        max(0, memory),
        source,
        _room(root, "Max address space", "VmSize"),
        _rlimit(root, "Max address space"),
        _room(root, "Max data size", "VmData"),
    )


def _num_cores(root: Path) -> int:
    allowed = _status_field(root, "Cpus_allowed_list")
    num_cores = _count_list(allowed) if allowed else os.cpu_count() or 1
    for quota in _cpu_quotas(root):
        num_cores = min(num_cores, -(-quota[0] // quota[1]))
    return max(1, num_cores)


def _memory_candidates(root: Path) -> Iterator[tuple[int, str]]:
    available = _kilobytes(_text(root / "proc/meminfo"), "MemAvailable")
    if available is None:
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield available, ON_MACHINE
    yield from ((room, "cgroup memory limit") for room in _cgroup_memory(root))


def _room(root: Path, limit_name: str, used_name: str) -> int | None:
    limit = _rlimit(root, limit_name)
    if limit is None:
        return None
    return max(0, limit - (_kilobytes(_text(root / "proc/self/status"), used_name) or 0))


def _cgroup_memory(root: Path) -> Iterator[int]:
    for folder in _cgroup_folders(root, None):
        limits = [_number(folder / name) for name in ("memory.max", "memory.high")]
        used = _number(folder / "memory.current")
        reclaimable = _keyed(folder / "memory.stat", "inactive_file")
        for limit in limits:
            if limit is not None and limit < _UNLIMITED:
                yield limit - max(0, (used or 0) - reclaimable)
    for folder in _cgroup_folders(root, "memory"):
        limit = _number(folder / "memory.limit_in_bytes")
        used = _number(folder / "memory.usage_in_bytes")
        reclaimable = _keyed(folder / "memory.stat", "total_inactive_file")
        around = _keyed(folder / "memory.stat", "hierarchical_memory_limit")
        if limit is not None and around:  # of groups that a container does not see
            limit = min(limit, around)
        if limit is not None and limit < _UNLIMITED:
            yield limit - max(0, (used or 0) - reclaimable)


def _cpu_quotas(root: Path) -> Iterator[tuple[int, int]]:
    """(microseconds granted, per microseconds)."""
    for folder in _cgroup_folders(root, None):
        parts = _text(folder / "cpu.max").split()
        if len(parts) == 2 and parts[0].isdigit() and parts[1].isdigit() and int(parts[1]) > 0:
            yield int(parts[0]), int(parts[1])
    for folder in _cgroup_folders(root, "cpu"):
        quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if quota is not None and quota > 0 and period:
            yield quota, period


def _cgroup_folders(root: Path, controller: str | None) -> Iterator[Path]:
    """The process's cgroup and those around it; `controller` for version 1, None for version 2.

    In a container the path that /proc/self/cgroup names may exist only outside; the mount itself is then the cgroup.
    """
    path = _cgroup_path(root, controller)
    if path is None:
        return
    mount = root / "sys/fs/cgroup" / (controller or "")
    if controller is None and (mount / "unified").is_dir():  # beside version 1
        mount = mount / "unified"
    folder = mount / ("" if ".." in path else path.strip("/"))
    while folder != mount:
        if folder.is_dir():
            yield folder
        folder = folder.parent
    yield mount


def _cgroup_path(root: Path, controller: str | None) -> str | None:
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller is None and number == "0" and not controllers:
            return path
        if controller is not None and controller in controllers.split(","):
            return path
    return None


def _rlimit(root: Path, name: str) -> int | None:
    for line in _text(root / "proc/self/limits").splitlines():
        if line.startswith(name):
            soft = line[len(name) :].split()[0]
            return int(soft) if soft.isdigit() else None
    return None


def _status_field(root: Path, name: str) -> str | None:
    for line in _text(root / "proc/self/status").splitlines():
        if line.startswith(name + ":"):
            return line.partition(":")[2].strip()
    return None


def _count_list(text: str) -> int:
    """Number of items of "0-3,8"."""
    count = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return count


def _kilobytes(text: str, name: str) -> int | None:
    """Bytes of a "Name:  123 kB" line."""
    for line in text.splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return None


def _keyed(path: Path, name: str) -> int:
    for line in _text(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _text(path: Path) -> str:
    """A small file's text; empty where there is none, as on systems without /proc."""
    try:
        return path.read_text()
    except OSError:
        return ""
