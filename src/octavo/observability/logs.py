"""Logging set-up, called once by the command line; the library itself only makes loggers.

No line holds what a request says: prompts, answers, keys. `log_fields` marks what a line has in figures.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from enum import Enum
from typing import Final

from octavo.errors import InvalidRequest

_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")
_FIELDS: Final = "octavo_fields"


class LogFormat(Enum):
    """How a line of the log is written."""

    TEXT = "text"
    JSON = "json"
    """One object a line: time, level, logger, message, and the line's own fields."""


def setup_logging(level: str, *, is_server: bool, log_format: LogFormat = LogFormat.TEXT) -> None:
    """Send Octavo's log to stderr at `level`, with the time and place of each line for a server or for debugging.

    Raises InvalidRequest for an unknown level.
    """
    name = level.upper()
    if name not in _LEVELS:
        raise InvalidRequest(f"log level {level!r} is not one of {', '.join(_LEVELS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(log_format, is_long=is_server or name == "DEBUG"))
    root = logging.getLogger("octavo")
    root.handlers[:] = [handler]
    root.setLevel(name)
    root.propagate = False


def log_format_in_use() -> LogFormat:
    """What `setup_logging` was told, so that another process may write the same."""
    handlers = logging.getLogger("octavo").handlers
    is_json = any(isinstance(handler.formatter, _JsonFormatter) for handler in handlers)
    return LogFormat.JSON if is_json else LogFormat.TEXT


def log_fields(fields: Mapping[str, object]) -> dict[str, object]:
    """The `extra` of a log call whose line has these fields in JSON. Names of the line itself are not overwritten."""
    return {_FIELDS: fields}


def _formatter(log_format: LogFormat, *, is_long: bool) -> logging.Formatter:
    if log_format is LogFormat.JSON:
        return _JsonFormatter()
    if is_long:
        return logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    return logging.Formatter("octavo: %(levelname)s: %(message)s")


class _JsonFormatter(logging.Formatter):
    """One ASCII line of JSON for each record."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps({**getattr(record, _FIELDS, {}), **line}, default=str)
