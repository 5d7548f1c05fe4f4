"""Logging set-up, called once by the command line; the library itself only makes loggers."""

from __future__ import annotations

import logging
import sys
from typing import Final

from octavo.errors import InvalidRequest

_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")


def setup_logging(level: str, *, is_server: bool) -> None:
    """Send Octavo's log to stderr at `level`, with the time and place of each line for a server or for debugging.

    Raises InvalidRequest for an unknown level.
    """
    name = level.upper()
    if name not in _LEVELS:
        raise InvalidRequest(f"log level {level!r} is not one of {', '.join(_LEVELS)}")
    is_long = is_server or name == "DEBUG"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
        if is_long
        else logging.Formatter("octavo: %(levelname)s: %(message)s")
    )
    root = logging.getLogger("octavo")
    root.handlers[:] = [handler]
    root.setLevel(name)
    root.propagate = False
