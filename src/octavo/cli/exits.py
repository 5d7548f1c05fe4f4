"""Exit codes of the command line, and the line that says why."""

from __future__ import annotations

import sys
from typing import Final

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_MEMORY: Final = 4
EXIT_INTERRUPTED: Final = 130


def fail(message: str, code: int) -> int:
    """Write an error to standard error; returns `code`."""
    print(f"octavo: {message}", file=sys.stderr)
    return code
