"""What a figure was measured on, when, and by what."""

from __future__ import annotations

import os
import subprocess
from datetime import datetime
from pathlib import Path

import octavo


def cpu_facts(root: Path = Path("/")) -> dict[str, object]:
    """Model of the CPU, and how many of its threads this process may use. `root` is where /proc is found."""
    try:
        text = (root / "proc/cpuinfo").read_text(errors="replace")
    except OSError:
        text = ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if _names_cpu(line)]
    return {"cpu": names[0] if names else "unknown", "num_cores": _num_cores()}


def run_facts(command: str) -> dict[str, object]:
    """Date, version, git commit and command of a run. The commit is None unless octavo runs from a checkout."""
    return {
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "octavo_version": octavo.__version__,
        "commit": checkout_commit(Path(octavo.__file__).parents[2]),
        "command": command,
    }


def checkout_commit(root: Path) -> str | None:
    """The commit of the checkout whose root this is, with "+" if files differ from it; None if it is none."""
    if not (root / ".git").exists() or not (root / "src" / "octavo").is_dir():
        return None
    commit = _git(root, "rev-parse", "HEAD")
    if not commit:
        return None
    return commit + ("+" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")


def _git(root: Path, *args: str) -> str | None:
    """What a git command says, None if it fails or there is no git."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *args], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _names_cpu(line: str) -> bool:
    return line.partition(":")[0].strip() in ("model name", "Model")


def _num_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
