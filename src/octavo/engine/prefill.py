"""What a step may still prefill, and which blocks it computes that others could take over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from octavo.cache.manager import PrefixMatch
from octavo.cache.radix_tree import Node, key_of
from octavo.engine.request import Request
from octavo.kv_layout import BLOCK_SIZE

PrefillLimit = Callable[[int], int]
"""Prefill tokens, the first of them at this position, that a step may hold while others decode."""


FULL_STEP_TOKENS: Final = 64
"""Prompt tokens with which a step computes at its full rate: more of them make it longer, no cheaper."""

BlockKey = tuple[Node | None, str | None, bytes]
"""A full block that somebody may look for: what it follows, its salt, its tokens."""


def next_block(request: Request, match: PrefixMatch) -> BlockKey | None:
    """The full block after the match of a waiting request; None if the request could not take it over.

    The request's last token is never found, so a block that it ends is not either.
    """
    start, end = match.num_full * BLOCK_SIZE, (match.num_full + 1) * BLOCK_SIZE
    if request.is_scoring or end > request.num_wanted_tokens - 1:
        return None
    return match.node, request.salt, key_of(request.tokens(start, end))


class PrefillBudget:
    """Tokens a step may still prefill. `limit`, given while others decode, is asked once, by the first who prefills.

    A step that holds enough of them ends with the prompt that it finishes: that one's first token would only come later
    for those behind it, who gain nothing.
    """

    def __init__(self, num_tokens: int, limit: PrefillLimit | None) -> None:
        self.num_left = num_tokens
        self._num_spent = 0
        self._limit = limit

    def grant(self, request: Request) -> int:
        """Tokens the request may compute now."""
        if self._limit is not None:
            self.num_left = min(self.num_left, self._limit(request.num_computed_tokens))
            self._limit = None
        return min(self.num_left, request.num_remaining_tokens)

    def spend(self, request: Request, num_tokens: int) -> None:
        """Take tokens granted to the request out of the budget."""
        self.num_left -= num_tokens
        self._num_spent += num_tokens
        is_last = num_tokens == request.num_remaining_tokens
        if is_last and self._num_spent >= FULL_STEP_TOKENS:
            self.num_left = 0


class ComingBlocks:
    """The full blocks that requests begin to compute in a step: who needs one of them finds it at the next."""

    def __init__(self) -> None:
        self._keys: set[BlockKey | None] = set()

    def add(self, request: Request) -> None:
        """Note the first block of a running request that others do not find yet, if its tokens are known."""
        table = request.table
        if table is None or table.tokens_of is None:
            return
        start, end = table.num_in_tree * BLOCK_SIZE, (table.num_in_tree + 1) * BLOCK_SIZE
        if end <= request.num_tokens:
            self._keys.add((table.node, request.salt, key_of(request.tokens(start, end))))

    def has_next(self, request: Request, match: PrefixMatch) -> bool:
        """Whether the full block after the match of a waiting request is among them."""
        return bool(self._keys) and next_block(request, match) in self._keys
