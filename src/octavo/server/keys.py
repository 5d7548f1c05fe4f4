"""API keys: who a caller is, and what the key allows.

Only the SHA-256 of a key is kept. A slow, salted hash protects passwords, which people choose and others can guess; a
key of 128 random bits cannot be guessed whatever the hash, and a slow one would let anybody burn our time.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from math import ceil
from pathlib import Path
from typing import Final

import msgspec
from starlette.types import Scope

from octavo.api.processor import RequestOptions
from octavo.errors import InvalidRequest
from octavo.params import SamplingParams
from octavo.server.errors import ApiError

MIN_KEY_CHARACTERS: Final = 16
_NAME: Final = re.compile(r"[\w.@-]{1,64}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_CALLER: Final = "octavo.caller"


class KeyEntry(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """One `[[keys]]` table of a keys file: `key` or `sha256`, whose it is, and its limits."""

    name: str
    key: str | None = None
    sha256: str | None = None
    tenant: str | None = None
    """Those who share a cache and a share of the machine; the key's name by default."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent_requests: int | None = None
    max_tokens: int | None = None
    priority_floor: int | None = None
    """The most urgent priority that a request may have: lower is more urgent."""
    is_admin: bool = False


class _KeysFile(msgspec.Struct, forbid_unknown_fields=True):
    keys: list[KeyEntry] = []


class Bucket:
    """An allowance per minute that fills all the time. What is used may overdraw it: then one waits for longer."""

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self._capacity = float(per_minute)
        self._per_s = per_minute / 60
        self._level = self._capacity
        self._clock = clock
        self._filled_s = clock()

    def wait_s(self, wanted: float) -> float:
        """Seconds until `wanted` is there; 0 if it is."""
        now = self._clock()
        self._level = min(self._capacity, self._level + (now - self._filled_s) * self._per_s)
        self._filled_s = now
        return max(0.0, (min(wanted, self._capacity) - self._level) / self._per_s)

    def take(self, amount: float) -> None:
        """Use some."""
        self._level -= amount


@dataclass(slots=True, eq=False)
class Caller:
    """A key's owner. Its counters change with each request; one event loop uses it."""

    entry: KeyEntry
    clock: Callable[[], float] = time.monotonic
    is_isolated: bool = False
    num_running: int = 0
    _requests: Bucket | None = field(init=False)
    _tokens: Bucket | None = field(init=False)

    def __post_init__(self) -> None:
        requests, tokens = self.entry.requests_per_minute, self.entry.tokens_per_minute
        self._requests = None if requests is None else Bucket(requests, self.clock)
        self._tokens = None if tokens is None else Bucket(tokens, self.clock)

    @property
    def tenant(self) -> str:
        """Whose requests these are."""
        return self.entry.name if self.entry.tenant is None else self.entry.tenant

    def admit(self) -> None:
        """Count a request that begins; `leave` ends it. Raises: ApiError 429."""
        most = self.entry.max_concurrent_requests
        if most is not None and self.num_running >= most:
            raise _over("concurrent_requests", f"{most} requests of this key run already", 1.0)
        if self._requests is not None:
            wait_s = self._requests.wait_s(1)
            if wait_s > 0:
                raise _over(
                    "requests_per_minute",
                    f"this key may send {self.entry.requests_per_minute} requests a minute",
                    wait_s,
                )
        if self._tokens is not None:
            wait_s = self._tokens.wait_s(1)
            if wait_s > 0:
                raise _over(
                    "tokens_per_minute",
                    f"this key may use {self.entry.tokens_per_minute} tokens a minute",
                    wait_s,
                )
        if self._requests is not None:
            self._requests.take(1)
        self.num_running += 1

    def leave(self) -> None:
        """Count the end of a request that was admitted."""
        self.num_running -= 1

    def charge(self, num_tokens: int) -> None:
        """Count tokens: those of a prompt when it starts, those of an answer when it ends."""
        if self._tokens is not None:
            self._tokens.take(num_tokens)

    def options(self, asked: RequestOptions, params: SamplingParams) -> RequestOptions:
        """What a request asks, within what the key allows. Raises: InvalidRequest for too high a max_tokens."""
        most, floor = self.entry.max_tokens, self.entry.priority_floor
        default = asked.default_max_tokens
        if most is not None:
            if params.max_tokens is not None and params.max_tokens > most:
                raise InvalidRequest(
                    f"max_tokens: this key allows {most}, got {params.max_tokens}",
                    param="max_tokens",
                )
            default = most if default is None else min(most, default)
        return replace(
            asked,
            default_max_tokens=default,
            priority=asked.priority if floor is None else max(floor, asked.priority),
            cache_salt=self._salt(asked.cache_salt),
            tenant=self.tenant,
        )

    def warnings(self, priority: int | None) -> list[str]:
        """What a client should know of what `options` changes; `priority` as the request gave it, if it did."""
        floor = self.entry.priority_floor
        if floor is None or priority is None or priority >= floor:
            return []
        return [f"priority {priority} became {floor}, the most urgent that this key allows"]

    def _salt(self, asked: str | None) -> str | None:
        # A tenant's name has no such character: no two pairs of tenant and salt give the same.
        return f"{self.tenant}\x1f{asked or ''}" if self.is_isolated else asked


class KeyRing:
    """All keys of a server."""

    def __init__(self, callers: Sequence[tuple[bytes, Caller]]) -> None:
        """`callers`: the SHA-256 of each key, and whose it is."""
        self._callers = tuple(callers)

    def find(self, key: str) -> Caller | None:
        """Whose key this is. All are compared, in constant time: the time tells nothing of any."""
        digest = hash_key(key)
        found = None
        for known, caller in self._callers:
            if hmac.compare_digest(known, digest):
                found = caller
        return found


def hash_key(key: str) -> bytes:
    """SHA-256 of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def single_key(key: str, *, is_isolated: bool = False) -> tuple[bytes, Caller]:
    """The key of the environment: no limits, tenant ""."""
    return hash_key(key), Caller(
        KeyEntry(name="env", tenant="", is_admin=True), is_isolated=is_isolated
    )


def read_keys(path: Path, *, is_isolated: bool = False) -> list[tuple[bytes, Caller]]:
    """The keys of a TOML file. Raises: InvalidRequest (param "api_keys_file") without any key's text."""
    found = read_entries(path)
    if not found:
        raise _unusable(f"{path}: there is no [[keys]] table")
    return [(digest, Caller(entry, is_isolated=is_isolated)) for digest, entry in found]


def read_entries(path: Path) -> list[tuple[bytes, KeyEntry]]:
    """The hashes and entries of a TOML file, keys replaced by their hashes. Raises: as `read_keys`."""
    try:
        parsed = tomllib.loads(path.read_text("utf-8"))
        entries = msgspec.convert(parsed, _KeysFile).keys
    except OSError as error:
        raise _unusable(f"{path}: {error.strerror}") from None
    except msgspec.ValidationError as error:
        raise _unusable(f"{path}: {str(error).replace('`', '')}") from None
    except ValueError as error:  # of TOML or UTF-8: its text may hold a part of a line
        where = re.search(r"line \d+", str(error))
        raise _unusable(f"{path}: not TOML{f', {where[0]}' if where else ''}") from None
    digests = [digest_of(entry, path) for entry in entries]
    if len(set(digests)) < len(digests):
        raise _unusable(f"{path}: two keys are the same")
    return [
        (digest, _hashed(entry, digest)) for digest, entry in zip(digests, entries, strict=True)
    ]


def _hashed(entry: KeyEntry, digest: bytes) -> KeyEntry:
    """The entry without the text of its key: what is not kept cannot be logged."""
    return msgspec.structs.replace(entry, key=None, sha256=digest.hex())


def caller_of(scope: Scope) -> Caller | None:
    """Whose request this is; None where no keys are needed."""
    caller: Caller | None = scope.get(_CALLER)
    return caller


def note_caller(scope: Scope, caller: Caller) -> None:
    """Note whose request this is."""
    scope[_CALLER] = caller


def digest_of(entry: KeyEntry, path: Path) -> bytes:
    """The hash of an entry of a file. Raises: InvalidRequest if anything is wrong with the entry."""
    if not _NAME.fullmatch(entry.name) or not (
        entry.tenant is None or entry.tenant == "" or _NAME.fullmatch(entry.tenant)
    ):
        raise _unusable(
            f"{path}: a name or tenant has 1 to 64 letters, digits or . _ @ -, not {entry.name!r}"
        )
    where = f"{path}: key {entry.name!r}"
    for name in (
        "requests_per_minute",
        "tokens_per_minute",
        "max_concurrent_requests",
        "max_tokens",
    ):
        value = getattr(entry, name)
        if value is not None and value < 1:
            raise _unusable(f"{where}: {name} must be at least 1, got {value}")
    if (entry.key is None) == (entry.sha256 is None):
        raise _unusable(f"{where}: give either key or sha256")
    if entry.key is not None:
        if len(entry.key) < MIN_KEY_CHARACTERS or entry.key.strip() != entry.key:
            raise _unusable(
                f"{where}: a key has at least {MIN_KEY_CHARACTERS} characters and no space around"
            )
        return hash_key(entry.key)
    digest = (entry.sha256 or "").lower()
    if not _SHA256.fullmatch(digest):
        raise _unusable(f"{where}: sha256 must be 64 hex digits")
    return bytes.fromhex(digest)


def _unusable(message: str) -> InvalidRequest:
    return InvalidRequest(message, param="api_keys_file")


def _over(code: str, message: str, wait_s: float) -> ApiError:
    seconds = max(1, ceil(wait_s))
    return ApiError(
        HTTPStatus.TOO_MANY_REQUESTS,
        f"{message}: try again in {seconds} s",
        code=code,
        headers={"Retry-After": str(seconds)},
    )
