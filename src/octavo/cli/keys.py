"""`octavo keys`: the file of API keys of a server."""

from __future__ import annotations

import json as json_
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from cyclopts import App, Parameter

from octavo.cli.flags import with_flags
from octavo.server.key_file import KeyConfig, add_key, list_keys, remove_key
from octavo.server.keys import KeyEntry

_ABOUT: Final = """Look after the file of --api-keys-file: make a key, list those that are
there, take one out. A server reads the file when it starts.

Example: octavo keys add --file keys.toml --tenant research"""

_HASH_CHARS: Final = 12

_File = Annotated[Path, Parameter(help="the TOML file of keys")]

app = App(name="keys", help=_ABOUT, help_format="plaintext")


@app.command
@with_flags(options=KeyConfig)
def add(
    *,
    file: _File,
    tenant: Annotated[
        str, Parameter(help="whose key it is: keys of a tenant share its cache and its share")
    ],
    options: KeyConfig,
) -> None:
    """Make a key, print it, and note its hash in FILE. It is shown this once.

    Example: octavo keys add --file keys.toml --tenant research --requests-per-minute 60
    """  # fmt: skip
    name, key = add_key(file.expanduser(), tenant, options)
    sys.stdout.write(key + "\n")
    print(f"{file} has key {name!r} now. Keep what is printed: only its hash is", file=sys.stderr)


@app.command
def ls(
    *,
    file: _File,
    json: Annotated[
        bool, Parameter(help="print one JSON object", negative=(), show_default=False)
    ] = False,
) -> None:
    """List the keys of FILE, their tenants and limits.

    Example: octavo keys ls --file keys.toml
    """
    entries = list_keys(file.expanduser())
    if json:
        report = {"keys": [_facts(entry) for entry in entries]}
        sys.stdout.write(json_.dumps(report, ensure_ascii=False) + "\n")
        return
    for entry in entries:
        facts = _facts(entry)
        name, tenant, digest = (facts.pop(field) for field in ("name", "tenant", "sha256"))
        limits = ", ".join(k if v is True else f"{k} {v}" for k, v in facts.items())
        sys.stdout.write(f"{name:<20}  {tenant:<20}  {digest[:_HASH_CHARS]}  {limits}".rstrip() + "\n")  # fmt: skip


@app.command
def rm(name: str, /, *, file: _File) -> None:
    """Take the key NAME out of FILE.

    Example: octavo keys rm research --file keys.toml

    Parameters
    ----------
    name
        As `octavo keys ls` shows it.
    """
    if not remove_key(file.expanduser(), name):
        print("no key is left: a server does not start with this file", file=sys.stderr)


def _facts(entry: KeyEntry) -> dict[str, Any]:
    """What is said of a key, without what is not."""
    facts = msgspec.to_builtins(entry)
    if facts["tenant"] is None:
        facts["tenant"] = entry.name
    return {k: v for k, v in facts.items() if v is not None and v is not False}
