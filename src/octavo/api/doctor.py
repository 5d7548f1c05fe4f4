"""What `octavo doctor` finds: the machine, what will be used of it, and what to do where something is wrong."""

from __future__ import annotations

import errno
import os
import platform
import re
import shutil
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from octavo import __version__
from octavo.config import format_size
from octavo.engine.machine import MachineLimits, read_machine_limits
from octavo.errors import StoreError
from octavo.store.manifest import list_models, stored_path
from octavo.store.name import ModelName

_MIB: Final = 2**20
_LEAST_MEMORY: Final = 256 * _MIB
_LITTLE_MEMORY: Final = 1024 * _MIB
_LITTLE_DISK: Final = 1024 * _MIB
_HUGE_PAGES: Final = Path("sys/kernel/mm/transparent_hugepage/enabled")


class Verdict(Enum):
    """OK; WARN: works, but slower or less than it could; FAIL: something will not work."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. `advice` says what to do unless the verdict is OK, where it is empty."""

    name: str
    verdict: Verdict
    found: str
    advice: str = ""

    def to_dict(self) -> dict[str, str]:
        """The check as JSON types."""
        return {**asdict(self), "verdict": self.verdict.value}


def examine(
    home: Path,
    *,
    cpu: str,
    tables: Sequence[str],
    features: Sequence[str],
    forced: str | None,
    address: tuple[str, int],
) -> list[Check]:
    """Every check. `home` is the store, `forced` the kernel table that OCTAVO_ISA names, `address` a server's default.

    Without `tables`, because the native module does not load, the checks of CPU and kernels are left out.
    """
    limits = read_machine_limits()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    kernels = [check_cpu(cpu, features), check_kernels(tables, forced)] if tables else []
    return [
        check_version(),
        *kernels,
        check_cores(limits, load),
        check_memory(limits),
        check_huge_pages(),
        check_store(home),
        check_models(home),
        check_port(*address),
    ]


def check_version() -> Check:
    """This program and the interpreter it runs in."""
    return _ok("octavo", f"{__version__}, Python {platform.python_version()}, {platform.machine()}")


def check_cpu(model: str, features: Sequence[str]) -> Check:
    """The CPU's name and features."""
    found = f"{model}; {' '.join(features) or 'no features that kernels ask for'}"
    if features:
        return _ok("cpu", found)
    advice = "no AVX2: the plain C++ kernels work, several times slower; use another machine"
    return Check("cpu", Verdict.WARN, found, advice)


def check_kernels(tables: Sequence[str], forced: str | None) -> Check:
    """The kernel table in use, `forced` or the best, and those this machine runs."""
    listed = ", ".join(tables)
    if forced is None or forced == tables[0]:
        return _ok("kernels", f"{tables[0]} in use; available: {listed}")
    if forced in tables:
        advice = f"unset OCTAVO_ISA to use {tables[0]}"
        return Check(
            "kernels",
            Verdict.WARN,
            f"{forced} in use, as OCTAVO_ISA says; available: {listed}",
            advice,
        )
    advice = f"unset OCTAVO_ISA, or set it to one of {listed}"
    return Check("kernels", Verdict.FAIL, f"OCTAVO_ISA is {forced!r}: no such kernels here", advice)


def check_cores(limits: MachineLimits, load: float | None) -> Check:
    """Cores granted by affinity and cgroup quota, and whether others use them. `load`: the mean of the last minute."""
    num_cores, total = limits.num_cores, os.cpu_count() or 1
    found = f"{num_cores} granted of {total}"
    if load is not None:
        found += f", load {load:.1f}"
    if load is not None and load > num_cores + 0.5:
        advice = "other work wants the same cores: stop it, or start with a lower --num-threads"
        return Check("cores", Verdict.WARN, found, advice)
    return _ok("cores", found)


def check_memory(limits: MachineLimits) -> Check:
    """Memory this process may take now."""
    room, source = limits.least
    found = f"{format_size(room)} may be used ({source})"
    if room >= _LITTLE_MEMORY:
        return _ok("memory", found)
    advice = f"free memory or raise the limit: small models want {format_size(_LITTLE_MEMORY)}"
    verdict = Verdict.WARN if room >= _LEAST_MEMORY else Verdict.FAIL
    return Check("memory", verdict, found, advice)


def check_huge_pages(root: Path = Path("/")) -> Check:
    """Whether large memory may lie in huge pages. `root` is where /sys is found."""
    try:
        text = (root / _HUGE_PAGES).read_text()
    except OSError:
        advice = "weights are read slower from small pages; a kernel with transparent huge pages avoids it"
        return Check("huge pages", Verdict.WARN, "this kernel has none", advice)
    chosen = re.search(r"\[(\w+)\]", text)
    mode = chosen[1] if chosen else text.strip()
    if mode in ("always", "madvise"):
        return _ok("huge pages", f"{mode}: weights and KV cache lie in them")
    advice = (
        f"weights are read up to twice as fast from them: echo madvise | sudo tee /{_HUGE_PAGES}"
    )
    return Check("huge pages", Verdict.WARN, f"{mode}: not used", advice)


def check_store(home: Path) -> Check:
    """Whether models can be stored in `home`. Nothing is written."""
    folder = next((path for path in (home, *home.parents) if path.exists()), Path("/"))
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        advice = "make it writable, or set OCTAVO_HOME to a folder that is"
        return Check("store", Verdict.FAIL, f"{home}: cannot be written", advice)
    free = shutil.disk_usage(folder).free
    found = f"{home}: writable, {format_size(free)} free"
    if free >= _LITTLE_DISK:
        return _ok("store", found)
    advice = "models may not fit: free some space, `octavo rm` models, or set OCTAVO_HOME"
    return Check("store", Verdict.WARN, found, advice)


def check_models(home: Path) -> Check:
    """The models in the store."""
    names = [manifest.name for manifest in list_models(home)]
    broken = [name for name in names if _is_broken(home, name)]
    if broken:
        advice = f"octavo pull {broken[0]}"
        return Check(
            "models", Verdict.WARN, f"the files of {', '.join(broken)} are not whole", advice
        )
    return _ok("models", ", ".join(names) or "none stored yet; `octavo pull smollm2` fetches one")


def check_port(host: str, port: int) -> Check:
    """Whether `octavo serve` can listen there by default."""
    where = f"{host}:{port}"
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
            sock.listen(1)
    except OSError as error:
        reason = "in use" if error.errno == errno.EADDRINUSE else str(error.strerror)
        advice = "stop the server that has it, or serve with another --port"
        return Check("port", Verdict.WARN, f"{where}: {reason}", advice)
    return _ok("port", f"{where} is free")


def _is_broken(home: Path, name: str) -> bool:
    try:
        return stored_path(home, ModelName.parse(name)) is None
    except StoreError:  # a digest that is none
        return True


def _ok(name: str, found: str) -> Check:
    return Check(name, Verdict.OK, found)
