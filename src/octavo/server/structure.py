"""What a JSON text would become, judged before it is parsed: a small text must not cost much time or memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from octavo.errors import InvalidRequest

MAX_DEPTH: Final = 128
MAX_CONTAINERS: Final = 100_000
"""Objects and arrays. Each costs its parser 60 to 200 bytes, from two bytes of text."""
MAX_VALUES: Final = 262_144
"""Twice a prompt of 131,072 token ids. A name counts as one too."""
_SLICE_BYTES: Final = 64 * 2**10

_LONG_NUMBER: Final = re.compile(rb"[-+.0-9eE]{1000}")
_NOT_A_BRACKET: Final = bytes(set(range(256)) - set(b"[]{}"))
_BEFORE_A_VALUE: Final = (b",", b":", b"[", b"{")
_STEP: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def check_structure(data: bytes) -> None:
    """Raise InvalidRequest if the text is nested too deeply or has too many parts. It may be no JSON at all."""
    scan = StructureScan()
    for part in slices(data):
        scan.feed(part)


def slices(data: bytes) -> Iterator[bytes]:
    """The text in parts that are read in about a millisecond each."""
    view = memoryview(data)
    for start in range(0, len(data), _SLICE_BYTES):
        yield bytes(view[start : start + _SLICE_BYTES])


class StructureScan:
    """Reads a text part by part, as it comes, and judges what it has seen. Strings are left out."""

    def __init__(self) -> None:
        self._is_in_string = False
        self._is_escaped = False
        self._depth = 0
        self._num_containers = 0
        self._num_values = 0

    def feed(self, data: bytes) -> None:
        """Read the next part. Raises: InvalidRequest if the text so far is nested too deeply or has too many parts."""
        outside = self._without_strings(data)
        if _LONG_NUMBER.search(outside):
            raise InvalidRequest("the body is not valid JSON in UTF-8: a number is too long")
        self._num_values += sum(outside.count(mark) for mark in _BEFORE_A_VALUE)
        if self._num_values > MAX_VALUES:
            raise InvalidRequest(f"the body has more than {MAX_VALUES} values")
        brackets = outside.translate(None, _NOT_A_BRACKET)
        self._num_containers += brackets.count(b"[") + brackets.count(b"{")
        if self._num_containers > MAX_CONTAINERS:
            raise InvalidRequest(f"the body has more than {MAX_CONTAINERS} arrays and objects")
        for bracket in brackets:
            self._depth += _STEP[bracket]
            if self._depth > MAX_DEPTH:
                raise InvalidRequest(f"the body is nested too deeply: {MAX_DEPTH} levels may be")

    def _without_strings(self, data: bytes) -> bytes:
        """What is outside of strings. Up to the first byte that makes it no JSON this is right, and a parser stops there."""
        if self._is_escaped:
            data = data[1:]
        # Pairs of backslashes first: one that is left escapes what follows it.
        data = data.replace(rb"\\", b"").replace(rb"\"", b"")
        self._is_escaped = data.endswith(b"\\")
        parts = data.split(b'"')
        outside = b" ".join(parts[1 if self._is_in_string else 0 :: 2])
        self._is_in_string ^= len(parts) % 2 == 0
        return outside
