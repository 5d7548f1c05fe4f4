"""Marks the text of control tokens inside text that users supply, so that it is never parsed as a control token."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Final

from octavo.errors import InvalidRequest

_NONCHARACTERS: Final = tuple(
    map(chr, (*range(0xFDD0, 0xFDF0), *range(0x1FFFE, 0x110000, 0x10000)))
)
"""Code points that Unicode reserves for use inside a program; no text has a reason to hold them."""


def pick_marks(texts: Iterable[str], count: int) -> tuple[str, ...]:
    """Return `count` characters that occur in none of `texts`. Raises InvalidRequest if the texts hold nearly all."""
    candidates = re.compile("[" + "".join(_NONCHARACTERS) + "]")
    used = {char for text in texts if not text.isascii() for char in candidates.findall(text)}
    free = [char for char in _NONCHARACTERS if char not in used]
    if len(free) < count:
        raise InvalidRequest(
            "the messages contain too many different Unicode noncharacters", param="messages"
        )
    return tuple(free[:count])


class ControlText:
    """The texts of a vocabulary's control tokens. A token of one character cannot be broken by a mark and is left out."""

    def __init__(self, tokens: Collection[str]) -> None:
        self._tokens = sorted({token for token in tokens if len(token) > 1})
        self._reversed = sorted(token[::-1] for token in self._tokens)
        self._token_set = frozenset(self._tokens)
        lengths: defaultdict[str, set[int]] = defaultdict(set)
        for token in self._tokens:
            lengths[token[0]].add(len(token))
        self._lengths_by_first = {first: tuple(sorted(values)) for first, values in lengths.items()}
        firsts = "".join(map(re.escape, self._lengths_by_first))
        self._first = re.compile(f"[{firsts}]") if firsts else None
        self._max_length = max(map(len, self._tokens), default=0)

    def mark(self, text: str, mark: str, *, with_edges: bool = True) -> str:
        """Return `text` with `mark` after the first character of each occurrence of a control token.

        `with_edges` also marks the start and the end of a text that is the end or the start of a control token, so that
        it cannot complete one with what a template puts beside it.
        """
        if self._first is None or not text:
            return text
        pieces: list[str] = []
        done = 0
        for match in self._first.finditer(text):
            start = match.start()
            if any(
                text[start : start + n] in self._token_set for n in self._lengths_by_first[match[0]]
            ):
                pieces += (text[done : start + 1], mark)
                done = start + 1
        marked = "".join((*pieces, text[done:])) if pieces else text
        if with_edges:
            if self._ends_inside(text, self._tokens):
                marked += mark
            if self._ends_inside(text[: self._max_length][::-1], self._reversed):
                marked = mark + marked
        return marked

    def _ends_inside(self, text: str, tokens: list[str]) -> bool:
        """Whether the end of `text` is a proper start of one of the sorted `tokens`."""
        for length in range(1, min(len(text), self._max_length - 1) + 1):
            piece = text[-length:]
            index = bisect_left(tokens, piece)
            if index < len(tokens) and tokens[index] == piece:
                index += 1
            if index < len(tokens) and tokens[index].startswith(piece):
                return True
        return False
