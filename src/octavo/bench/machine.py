"""What a figure was measured on."""

from __future__ import annotations

import os
from pathlib import Path


def cpu_facts(root: Path = Path("/")) -> dict[str, object]:
    """Model of the CPU, and how many of its threads this process may use. `root` is where /proc is found."""
    try:
        text = (root / "proc/cpuinfo").read_text(errors="replace")
    except OSError:
        text = ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if _names_cpu(line)]
    return {"cpu": names[0] if names else "unknown", "num_cores": _num_cores()}


def _names_cpu(line: str) -> bool:
    return line.partition(":")[0].strip() in ("model name", "Model")


def _num_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
