"""Logging set-up, called once by the command line; the library itself only makes loggers."""

from __future__ import annotations

import logging
import sys

from octavo.errors import InvalidRequest

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def setup_logging(level: str) -> None:
    """Send Octavo's log to stderr at `level`. Raises InvalidRequest for an unknown level."""
    name = level.upper()
    if name not in _LEVELS:
        raise InvalidRequest(f"log level {level!r} is not one of {', '.join(_LEVELS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger("octavo")
    root.handlers[:] = [handler]
    root.setLevel(name)
    root.propagate = False
