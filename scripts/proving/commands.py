"""`octavo` as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

OCTAVO = (sys.executable, "-m", "octavo")


def octavo_json(*arguments: str | Path) -> dict[str, Any]:
    """The report of a command with --json, run as a process of its own."""
    done = subprocess.run(
        [*OCTAVO, *map(str, arguments), "--json"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"octavo {' '.join(map(str, arguments))}: {done.stderr[-2000:]}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report
