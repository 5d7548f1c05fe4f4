"""The chat of `octavo run` on a terminal: read a line, answer it, until the user leaves."""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from typing import Final

from octavo.cli.exits import EXIT_FAILED, EXIT_OK, fail
from octavo.cli.session import Session
from octavo.errors import ContextLengthExceeded, InvalidRequest

_PROMPT: Final = ">>> "
_LEAVE: Final = frozenset({"/exit", "/quit", "/bye"})
_HELP: Final = """/help            this text
/clear           forget the conversation
/system TEXT     set the system message (empty: none) and start anew
/exit            leave (or Ctrl-D); Ctrl-C stops an answer"""


def chat_loop(session: Session) -> int:
    """Read, answer, repeat until /exit or end of input. A question that cannot be answered does not end it."""
    with suppress(ImportError):  # line editing, where Python was built with it
        importlib.import_module("readline")
    _say("Chat. /help lists the commands.")
    while True:
        try:
            line = _read_line().strip()
        except EOFError:
            _say("")
            return EXIT_OK
        except KeyboardInterrupt:
            _say("\n(/exit or Ctrl-D leaves)")
            continue
        if line in _LEAVE:
            return EXIT_OK
        if line.startswith("/"):
            _command(session, line)
        elif line:
            _answer(session, line)


def _answer(session: Session, line: str) -> None:
    try:
        session.answer(line)
    except ContextLengthExceeded as error:
        fail(f"{error} (/clear forgets the conversation)", EXIT_FAILED)
    except InvalidRequest as error:
        fail(str(error), EXIT_FAILED)


def _command(session: Session, line: str) -> None:
    name, _, argument = line.partition(" ")
    if name == "/clear":
        session.restart(session.system)
    elif name == "/system" and session.is_raw:
        _say("raw text has no system message")
    elif name == "/system":
        session.restart(argument.strip() or None)
    elif name == "/help":
        _say(_HELP)
    else:
        _say(f"unknown command {name}\n{_HELP}")


def _read_line() -> str:
    if sys.stdout.isatty():
        return input(_PROMPT)
    print(_PROMPT, end="", file=sys.stderr, flush=True)  # standard output holds answers only
    return input()


def _say(text: str) -> None:
    print(text, file=sys.stderr)
