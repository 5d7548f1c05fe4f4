"""The command line under limits of memory: used by the tests of this folder and by scripts/prove_*.py."""

from __future__ import annotations

import re
import resource
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MIB = 2**20
GIB = 2**30

# Reads its limits below a folder of the test's own, and tells the memory that it touched.
_UNDER_ROOT = """
import sys
from pathlib import Path
import octavo.engine.machine as machine
real, root = machine.read_machine_limits, Path(sys.argv.pop(1))
machine.read_machine_limits = lambda: real(root)
from octavo.cli.main import main
try:
    main()
finally:
    print("".join(line for line in open("/proc/self/status") if line.startswith("RssAnon")), file=sys.stderr)
"""


@dataclass(frozen=True)
class Outcome:
    """How a command ended: with an answer, or with a refusal that has numbers and says what would fit."""

    code: int
    answer: str
    errors: str

    @property
    def has_answered(self) -> bool:
        """Whether it did what it was asked for."""
        return self.code == 0 and bool(self.answer.strip())

    @property
    def has_refused(self) -> bool:
        """Whether it ended as documented: exit code 4, sizes needed and available, no traceback."""
        has_numbers = re.search(r"\d+[KMG]iB are available|\d+[KMG]iB available", self.errors)
        return self.code == 4 and bool(has_numbers) and "Traceback" not in self.errors

    @property
    def anonymous_bytes(self) -> int:
        """Memory that the process held at its end, files aside; only under `run_in_cgroup`."""
        found = re.search(r"RssAnon:\s+(\d+) kB", self.errors)
        assert found, self.errors
        return int(found[1]) * 1024

    @property
    def advised_limit(self) -> int | None:
        """Bytes of the `ulimit -v` in the refusal."""
        found = re.search(r"ulimit -v (\d+)", self.errors)
        return int(found[1]) * 1024 if found else None

    @property
    def advised_raise(self) -> str | None:
        """The size by which a limit is to be raised."""
        found = re.search(r"Raise the limit by (\d+[KMG]iB)", self.errors)
        return found[1] if found else None

    @property
    def advised_command(self) -> list[str] | None:
        """Arguments of the command in the refusal, without "octavo"."""
        found = re.search(r"^Try: octavo (.+)$", self.errors, re.MULTILINE)
        return shlex.split(found[1]) if found else None


def ask(model: Path, *flags: str) -> list[str]:
    """Arguments of a command that loads a model and answers."""
    return ["run", str(model), "Count to three.", "--max-tokens", "4", "--temperature", "0", *flags]


def run_in_address_space(arguments: Sequence[str], num_bytes: int) -> Outcome:
    """Run `octavo ARGUMENTS` under RLIMIT_AS."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))

    return _outcome([sys.executable, "-m", "octavo", *arguments], limit)


def run_python(code: str, num_bytes: int) -> Outcome:
    """Run Python code under RLIMIT_AS."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))

    return _outcome([sys.executable, "-c", code], limit)


def run_in_cgroup(arguments: Sequence[str], root: Path) -> Outcome:
    """Run `octavo ARGUMENTS` with /proc and /sys as they are below `root`."""
    return _outcome([sys.executable, "-c", _UNDER_ROOT, str(root), *arguments], None)


def fake_cgroup(root: Path, num_bytes: int, *, version: int) -> Path:
    """A /proc and /sys in which the outer one of two nested groups has this limit, and the inner none."""
    files = {"proc/meminfo": f"MemAvailable: {64 * GIB // 1024} kB\n"}
    files["proc/self/status"] = "Cpus_allowed_list:\t0-1\n"
    if version == 1:
        group, names = "sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        files["proc/self/cgroup"] = "4:memory:/outer/inner\n"
    else:
        group, names = "sys/fs/cgroup", ("memory.max", "memory.current")
        files["proc/self/cgroup"] = "0::/outer/inner\n"
    for level, limit in (("outer", str(num_bytes)), ("outer/inner", "max" if version == 2 else "9223372036854771712")):  # fmt: skip
        files[f"{group}/{level}/{names[0]}"] = f"{limit}\n"
        files[f"{group}/{level}/{names[1]}"] = "0\n"
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def _outcome(command: Sequence[str], preexec: object) -> Outcome:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, preexec_fn=preexec, check=False  # type: ignore[call-overload]
    )  # fmt: skip
    return Outcome(done.returncode, done.stdout, done.stderr)
