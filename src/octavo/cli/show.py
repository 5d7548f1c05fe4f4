"""`octavo show`: what a model file holds."""

from __future__ import annotations

import json as json_
import sys
from typing import Annotated

from cyclopts import Parameter

from octavo.cli.fetch import model_file
from octavo.config import from_env
from octavo.store.builds import build_path
from octavo.weights.facts import describe
from octavo.weights.source import open_weights


def show(
    model: str,
    /,
    *,
    json: Annotated[
        bool, Parameter(help="print one JSON object", negative=(), show_default=False)
    ] = False,
) -> None:
    """Print header facts, tensors by type and the model's build, without loading the model.

    Example: octavo show smollm2 --json

    Parameters
    ----------
    model
        Catalog name or path of a .gguf file.
    """
    path, _ = model_file(model)
    home = from_env().home
    with open_weights(path) as source:
        build = build_path(home, source.path)
        found = str(build) if build.is_file() else None
        facts = describe(source).to_dict() | {"build": found}
    if json:
        sys.stdout.write(json_.dumps(facts, ensure_ascii=False) + "\n")
        return
    for key, value in facts.items():
        sys.stdout.write(f"{key:<20}{_text(value)}\n")


def _text(value: object) -> str:
    """A fact for a terminal: control characters of a strange file are spelled out."""
    if isinstance(value, dict):
        return "; ".join(f"{_text(key)} {_text_of_share(share)}" for key, share in value.items())
    text = "-" if value is None else str(value)
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _text_of_share(share: dict[str, int]) -> str:
    return f"{share['num_tensors']} tensors, {share['num_bytes']} bytes"
