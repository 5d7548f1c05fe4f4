"""The file of API keys as the command line changes it: what people wrote there stays as it is."""

from __future__ import annotations

import itertools
import os
import re
import secrets
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from octavo.errors import InvalidRequest
from octavo.server.keys import KeyEntry, digest_of, hash_key, read_entries

_PREFIX: Final = "octavo-"
"""Tells whoever finds a key what it opens; scanners for secrets look for such."""
_RANDOM_BYTES: Final = 32
_TABLE: Final = re.compile(r"\s*\[")
_KEYS_TABLE: Final = re.compile(r"\s*\[\[\s*keys\s*\]\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyConfig:
    """What a new key is called and what it allows."""

    name: str | None = field(
        default=None, metadata={"help": "what the key is called; default: the tenant"}
    )
    requests_per_minute: int | None = field(
        default=None, metadata={"help": "requests that it may send"}
    )
    tokens_per_minute: int | None = field(
        default=None, metadata={"help": "tokens of prompts and answers together"}
    )
    max_concurrent_requests: int | None = field(
        default=None, metadata={"help": "requests that may run at once"}
    )
    max_tokens: int | None = field(default=None, metadata={"help": "tokens of one answer"})
    priority_floor: int | None = field(
        default=None,
        metadata={"help": "most urgent priority of its requests; lower is more urgent"},
    )
    is_admin: bool = field(default=False, metadata={"help": "it may reset the prefix cache"})


def add_key(path: Path, tenant: str, options: KeyConfig) -> tuple[str, str]:
    """Make a key and note its hash in the file, which may be new; returns the key's name and the key.

    Nobody but the caller has the key. Raises: InvalidRequest.
    """
    entries = list_keys(path) if path.exists() else []
    name = options.name or _free_name(tenant, entries)
    if any(entry.name == name for entry in entries):
        raise InvalidRequest(f"name: {path} has a key named {name!r} already", param="name")
    key = _PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    values: dict[str, Any] = {"name": name, "tenant": tenant, "sha256": hash_key(key).hex()}
    limits = {k: v for k, v in asdict(options).items() if k != "name"}
    values |= {k: v for k, v in limits.items() if v is not None and v is not False}
    entry = KeyEntry(**values)
    digest_of(entry, path)
    before = path.read_text("utf-8") if path.exists() else ""
    gap = "" if not before else "\n" if before.endswith("\n") else "\n\n"
    table = "".join(f"{name} = {_toml(value)}\n" for name, value in values.items())
    _replace(path, f"{before}{gap}[[keys]]\n{table}", [*entries, entry])
    return name, key


def list_keys(path: Path) -> list[KeyEntry]:
    """The keys of a file, their hashes in place of texts. Raises: InvalidRequest."""
    return [entry for _, entry in read_entries(path)]


def remove_key(path: Path, name: str) -> int:
    """Take a key out of the file; returns how many are left.

    Raises: InvalidRequest, also if that cannot be done without touching anything else.
    """
    entries = list_keys(path)
    left = [entry for entry in entries if entry.name != name]
    if len(left) == len(entries):
        known = ", ".join(entry.name for entry in entries)
        raise InvalidRequest(f"name: {path} has no key named {name!r}; it has {known}")
    kept: list[str] = []
    for is_key, lines in _tables(path.read_text("utf-8")):
        if not (is_key and _name_of(lines) == name):
            kept += lines
    _replace(path, "".join(kept), left)
    return len(left)


def _free_name(tenant: str, entries: Sequence[KeyEntry]) -> str:
    """The tenant's name, or that and the first number that makes it another."""
    taken = {entry.name for entry in entries}
    names = (f"{tenant}-{i}" if i > 1 else tenant for i in itertools.count(1))
    return next(name for name in names if name not in taken)


def _toml(value: object) -> str:
    """A value as TOML: names have no character that needs more than quotes."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _tables(text: str) -> Iterator[tuple[bool, list[str]]]:
    """The lines of each table, its heading first, and whether it is one of a key. What stands above a heading, as
    comments do, belongs to it up to the last blank line."""
    lines: list[str] = []
    is_key = False
    for line in text.splitlines(keepends=True):
        if _TABLE.match(line):
            above = _trailing_comments(lines)
            yield is_key, lines[: len(lines) - above]
            lines = lines[len(lines) - above :]
            is_key = _KEYS_TABLE.match(line) is not None
        lines.append(line)
    yield is_key, lines


def _trailing_comments(lines: Sequence[str]) -> int:
    count = 0
    for line in reversed(lines):
        if not line.lstrip().startswith("#"):
            break
        count += 1
    return count


def _name_of(lines: Sequence[str]) -> str | None:
    try:
        [table] = tomllib.loads("".join(lines))["keys"]
    except (tomllib.TOMLDecodeError, KeyError, ValueError, TypeError):
        return None
    name = table.get("name")
    return name if isinstance(name, str) else None


def _replace(path: Path, text: str, wanted: Sequence[KeyEntry]) -> None:
    """Put a new text in place of the file, at once, if it says what is wanted. Only its owner may read a new one."""
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    path = path.resolve()
    descriptor, name = tempfile.mkstemp(prefix=path.name, dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, mode)
        if not _says(Path(name), wanted):
            raise InvalidRequest(f"{path} is written in a way that is for its author to change")
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _says(path: Path, wanted: Sequence[KeyEntry]) -> bool:
    try:
        return list_keys(path) == list(wanted)
    except InvalidRequest:
        return False
