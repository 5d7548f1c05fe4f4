"""Processes that will be engines: they load their libraries, then wait on stdin for the specification."""

from __future__ import annotations

import subprocess
import sys
from types import TracebackType
from typing import Self

from octavo.config import environment_of_engine


def spawn() -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, so that Ctrl-C in a terminal reaches the parent only. Raises: OSError."""
    return subprocess.Popen(
        [sys.executable, "-m", "octavo.engine.process"],
        stdin=subprocess.PIPE,
        stdout=sys.stderr.fileno() if _has_stderr() else subprocess.DEVNULL,
        env=environment_of_engine(),
        start_new_session=True,
    )


class EarlyProcess:
    """A process that is started before it is known what it will load: it gets ready while its parent does.

    Leaving the block ends it unless it was taken.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = spawn()
        return self

    def take(self) -> subprocess.Popen[bytes] | None:
        """The process, which is the caller's then; None if there is none any more."""
        process, self._process = self._process, None
        return process

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        process = self.take()
        if process is not None:
            process.kill()
            process.communicate()


def _has_stderr() -> bool:
    try:
        sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return False
    return True
