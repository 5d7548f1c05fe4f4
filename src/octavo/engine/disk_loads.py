"""Blocks on their way from the disk tier into the cache, and the requests that wait for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from octavo.cache.disk_tier import DiskTier, Fetch
from octavo.cache.manager import BlockTable, CacheManager, PrefixMatch
from octavo.cache.radix_tree import key_of
from octavo.engine.prefill import BlockKey, next_block
from octavo.engine.request import Request
from octavo.kv_layout import BLOCK_SIZE

_MAX_LOAD_S: Final = 2.0
"""Blocks that are not loaded by then are computed. A disk that takes longer is hardly faster than computing."""

_GRACE_S: Final = 0.2
"""For the block that was being read when the time was over."""


@dataclass(eq=False, slots=True)
class _Load:
    """`table` holds the blocks that precede the loaded ones, and these."""

    table: BlockTable
    fetch: Fetch
    place: BlockKey
    num_present: int


class DiskLoads:
    """Sends for stored blocks, and enters what came into the cache as if it had been computed. One thread uses it.

    Each request is looked up once, when it could start; it waits until its blocks are there, for a bounded time.
    """

    def __init__(self, cache: CacheManager, tier: DiskTier) -> None:
        self._cache = cache
        self._tier = tier
        self._loads: dict[Fetch, _Load] = {}
        self._load_by_place: dict[BlockKey, _Load] = {}

    @property
    def is_busy(self) -> bool:
        """Whether blocks are on their way. They hold memory until `poll` took them."""
        return bool(self._loads)

    def holds_up(self, request: Request, match: PrefixMatch) -> bool:
        """Whether the block after the match is on its way; sends for it if the request never asked before."""
        place = next_block(request, match)
        if place is None:
            return False
        load = self._load_by_place.get(place)
        if load is not None:
            return self._tier.clock() < load.fetch.deadline + _GRACE_S
        if request.has_asked_disk:
            return False
        request.has_asked_disk = True
        return self._send(request, match, place)

    def poll(self) -> None:
        """Enter what came since the last call."""
        for fetch in self._tier.finished():
            load = self._loads.pop(fetch, None)
            if load is None:  # of a scheduler that is no more
                continue
            del self._load_by_place[load.place]
            num_blocks = load.num_present + fetch.num_loaded
            self._cache.commit(load.table, num_blocks * BLOCK_SIZE)
            self._cache.free(load.table)

    def wait(self, timeout_s: float) -> None:
        """Sleep until something came."""
        self._tier.wait(timeout_s)

    def _send(self, request: Request, match: PrefixMatch, place: BlockKey) -> bool:
        num_present, num_full = match.num_full, (request.num_wanted_tokens - 1) // BLOCK_SIZE
        self._tier.num_queried += num_full - num_present
        if self._tier.num_known == 0:
            return False
        all_keys = key_of(request.tokens(0, num_full * BLOCK_SIZE))
        width = len(all_keys) // num_full
        keys = [all_keys[at : at + width] for at in range(0, len(all_keys), width)]
        links = self._tier.find(request.salt, keys, num_present)
        if not links:
            return False
        num_tokens = (num_present + len(links)) * BLOCK_SIZE
        # The request may be gone before its blocks are there.
        tokens = list(request.tokens(0, num_tokens))
        table = self._cache.start_loading(
            match, num_tokens, request.salt, lambda start, end: tokens[start:end]
        )
        if table is None:
            return False
        block_ids = table.block_ids[num_present:].tolist()
        fetch = self._tier.fetch(links, block_ids, self._tier.clock() + _MAX_LOAD_S)
        load = _Load(table, fetch, place, num_present)
        self._loads[fetch] = self._load_by_place[place] = load
        return True
