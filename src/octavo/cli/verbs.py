"""The verbs of `octavo`. Each is imported when it is asked for: the others cost nothing."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError

from octavo import __version__
from octavo.api.start import check_start
from octavo.cli.exits import EXIT_OK, EXIT_USAGE, fail
from octavo.config import from_env
from octavo.observability.logs import LogFormat, setup_logging


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb: where its function is, and one line about it. Only a server logs its life-cycle by default.

    `loads_model`: it is refused at once where memory is too small for the libraries that this takes.
    """

    target: str
    summary: str
    is_server: bool = False
    loads_model: bool = False


VERBS: Final = {
    "run": Verb("octavo.cli.run:run", "Chat with a model, or answer one prompt.", loads_model=True),
    "serve": Verb(
        "octavo.cli.serve:serve",
        "Serve a model over HTTP (OpenAI API).",
        is_server=True,
        loads_model=True,
    ),
    "run-batch": Verb(
        "octavo.cli.run_batch:run_batch",
        "Answer a file of requests (OpenAI batch format).",
        loads_model=True,
    ),
    "pull": Verb("octavo.cli.store:pull", "Fetch a model into the store."),
    "list": Verb("octavo.cli.store:list_", "List stored models and those that can be pulled."),
    "rm": Verb("octavo.cli.store:rm", "Remove a model from the store."),
    "build": Verb(
        "octavo.cli.build:build", "Pack a model once, for faster starts.", loads_model=True
    ),
    "show": Verb("octavo.cli.show:show", "Print what a model file holds."),
    "tokenize": Verb("octavo.cli.tokenize:tokenize", "Print the token ids of a text."),
    "perplexity": Verb(
        "octavo.cli.perplexity:perplexity", "Measure perplexity on a text file.", loads_model=True
    ),
    "doctor": Verb("octavo.cli.doctor:doctor", "Check this machine, and what will be used of it."),
    "keys": Verb("octavo.cli.keys:app", "Make, list and remove the API keys of a server."),
    "cache": Verb("octavo.cli.cache:app", "Look after the prompts that --kv-disk keeps."),
    "bench": Verb(
        "octavo.cli.bench:app", "Measure the speed of the engine or of a server.", loads_model=True
    ),
}

_ABOUT: Final = """LLM inference and serving: one install, fast on a CPU, the same answer
every time. 'octavo VERB --help' has the flags of a verb and an example."""


def dispatch(argv: Sequence[str]) -> int:
    """Run the verb that `argv` names; returns the exit code. Errors of the verb itself are the caller's, and CapacityError."""
    name = next((token for token in argv if token in VERBS), None)
    if name is not None and VERBS[name].loads_model:
        check_start()
    try:
        result = _build(name).meta(
            argv, exit_on_error=False, print_error=False, result_action="return_value"
        )
    except CycloptsError as error:
        command = f"octavo {name}" if name else "octavo"
        return fail(f"{_explain(error)}\nTry '{command} --help'.", EXIT_USAGE)
    return result if isinstance(result, int) else EXIT_OK


def _build(asked: str | None) -> App:
    """The parser. The verb asked for explains itself by its own docstring, the others by their summary."""
    app = App(
        name="octavo",
        version=__version__,
        version_flags=["--version"],
        help=_ABOUT,
        help_format="plaintext",
        suppress_keyboard_interrupt=False,
    )
    app.meta.suppress_keyboard_interrupt = False  # `main` ends the process
    for name, verb in VERBS.items():
        app.command(verb.target, name=name, help=None if name == asked else verb.summary)

    @app.meta.default
    def launch(
        *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        log_level: Annotated[
            str | None,
            Parameter(
                help="DEBUG, INFO, WARNING or ERROR; default: OCTAVO_LOG_LEVEL, else INFO to serve and WARNING "
                "for the other verbs",
                group="Logging",
            ),
        ] = None,
        log_format: Annotated[
            LogFormat, Parameter(help="a line of the log as text or as JSON", group="Logging")
        ] = LogFormat.TEXT,
    ) -> Any:
        verb = _verb_of(tokens)
        is_server = verb is not None and verb.is_server
        _start_logging(log_level, is_server=is_server, log_format=log_format)
        return app(tokens, exit_on_error=False, print_error=False, result_action="return_value")

    return app


def _verb_of(tokens: Sequence[str]) -> Verb | None:
    """The verb of a command line, None where a flag of `octavo` itself stands in its place."""
    if not tokens or tokens[0].startswith("-"):
        return None
    if tokens[0] not in VERBS:
        near = difflib.get_close_matches(tokens[0], VERBS, n=1)
        guess = f"did you mean {near[0]}?" if near else f"there are {', '.join(VERBS)}"
        raise CycloptsError(msg=f"unknown verb {tokens[0]!r}: {guess}")
    return VERBS[tokens[0]]


def _start_logging(asked: str | None, *, is_server: bool, log_format: LogFormat) -> None:
    level = asked or from_env().log_level or ("INFO" if is_server else "WARNING")
    try:
        setup_logging(level, is_server=is_server, log_format=log_format)
    except ValueError as error:
        raise CycloptsError(msg=str(error)) from None


def _explain(error: CycloptsError) -> str:
    """The parser's message, on one line."""
    if isinstance(error, UnusedCliTokensError):
        extra = " ".join(error.unused_tokens or ())
        return f"too many arguments: {extra!r} is left over (a text of several words needs quotes)"
    return re.sub(r"\s+", " ", str(error)).strip()
