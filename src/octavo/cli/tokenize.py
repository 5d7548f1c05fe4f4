"""`octavo tokenize`: the token ids of a text."""

from __future__ import annotations

import json as json_
import sys
from collections.abc import Iterable
from typing import Annotated

from cyclopts import CycloptsError, Parameter

from octavo.api.tokenize import open_tokenizer
from octavo.cli.fetch import model_file
from octavo.errors import InvalidRequest


def tokenize(
    model: str,
    text: str | None = None,
    /,
    *,
    json: Annotated[
        bool, Parameter(help="print a JSON list of ids", negative=(), show_default=False)
    ] = False,
    jsonl: Annotated[
        bool,
        Parameter(
            help="read one JSON string per line, print one list per line",
            negative=(),
            show_default=False,
        ),
    ] = False,
    no_special: Annotated[
        bool, Parameter(help="add no BOS or EOS", negative=(), show_default=False)
    ] = False,
    parse_special: Annotated[
        bool, Parameter(help="parse control tokens in the text", negative=(), show_default=False)
    ] = False,
) -> None:
    """Print the token ids of TEXT, or of standard input; without --json one token a line.

    Example: octavo tokenize smollm2 "Hello world" --json

    Parameters
    ----------
    model
        Catalog name or path of a .gguf file; a file with a vocabulary and no weights
        will do.
    text
        Text to tokenise; default: standard input.
    """
    if jsonl and (json or text is not None):
        raise CycloptsError(msg="--jsonl reads standard input: no TEXT and no --json with it")
    path, _ = model_file(model)
    tokenizer = open_tokenizer(str(path))
    if jsonl:
        for line in _strings(sys.stdin.buffer):
            ids = tokenizer.encode(line, add_special=not no_special, parse_special=parse_special)
            sys.stdout.write(json_.dumps(ids) + "\n")
        return
    whole = sys.stdin.buffer.read().decode("utf-8", "surrogateescape") if text is None else text
    ids = tokenizer.encode(whole, add_special=not no_special, parse_special=parse_special)
    if json:
        sys.stdout.write(json_.dumps(ids) + "\n")
        return
    for token_id in ids:
        piece = tokenizer.token_bytes(token_id).decode("utf-8", "backslashreplace")
        sys.stdout.write(f"{token_id}\t{piece!r}\n")


def _strings(lines: Iterable[bytes]) -> Iterable[str]:
    for number, line in enumerate(lines, 1):
        try:
            value = json_.loads(line)
        except ValueError as error:
            raise InvalidRequest(f"line {number} is not JSON: {error}") from None
        if not isinstance(value, str):
            raise InvalidRequest(f"line {number} is not a JSON string")
        yield value
