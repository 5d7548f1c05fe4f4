"""The `octavo` command: errors become one line and an exit code.

The verbs and the library that parses them are imported inside, so that Ctrl-C in that time is no traceback either.
"""

from __future__ import annotations

import errno
import io
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from typing import Final, NoReturn, TextIO

from octavo.cli.exits import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_MEMORY, fail
from octavo.errors import CapacityError, OctavoError

_ALIASES: Final = {"--max-model-len": "--ctx"}


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0 ok, 1 failed, 2 wrong usage, 4 not enough memory, 130 interrupted."""
    _speak_utf8(sys.stdout, "replace")
    _speak_utf8(sys.stderr, "backslashreplace")
    try:
        code = _run(sys.argv[1:] if argv is None else argv)
        if code == EXIT_INTERRUPTED:
            _leave()
    except KeyboardInterrupt:  # the second one
        _leave()
    sys.exit(code)


def _run(argv: Sequence[str]) -> int:
    try:
        from octavo.cli.verbs import dispatch

        code = dispatch(argv)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except CapacityError as error:
        return fail(f"{error}{_fitting_command(argv, error.flags)}", EXIT_MEMORY)
    except OctavoError as error:
        return fail(str(error), EXIT_FAILED)
    except BrokenPipeError:  # the reader of a pipe left: nothing more to say, and nothing to flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except OSError as error:
        code = EXIT_MEMORY if error.errno == errno.ENOMEM else EXIT_FAILED
        return fail(f"{error.strerror or error}: {error.filename or ''}".rstrip(": "), code)
    except MemoryError:
        return fail("not enough memory", EXIT_MEMORY)
    except Exception as error:
        return _unexpected(error)


def _fitting_command(argv: Sequence[str], flags: Sequence[str]) -> str:
    """A line with the command as it was given, but for the flags that make it fit the memory."""
    if not flags:
        return ""
    pairs = [flag.split(" ") for flag in flags]
    dropped = {name for name, _ in pairs} | {_ALIASES[n] for n, _ in pairs if n in _ALIASES}
    dropped.add("--strict-memory")
    kept: list[str] = []
    tokens = iter(argv)
    for token in tokens:
        name, equals, _ = token.partition("=")
        if name not in dropped:
            kept.append(token)
        elif not equals and name != "--strict-memory":
            next(tokens, None)
    return "\nTry: " + shlex.join(["octavo", *kept, *(part for pair in pairs for part in pair)])


def _unexpected(error: Exception) -> int:
    import logging

    logging.getLogger(__name__).debug("unexpected error", exc_info=True)
    return fail(f"{type(error).__name__}: {error} (--log-level DEBUG shows where)", EXIT_FAILED)


def _speak_utf8(stream: TextIO, errors: str) -> None:
    """Whatever the locale: a model answers in any script."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8", errors=errors)


def _leave() -> NoReturn:
    """End now: a second Ctrl-C in the interpreter's own end would print a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            continue
    os._exit(EXIT_INTERRUPTED)
