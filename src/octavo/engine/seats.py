"""Who waits and who runs, and the KV blocks of those who run: starting, forking, making room, preempting.

Whom to start, and when, is scheduler.py's to say.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

from octavo.cache.manager import NO_MATCH, CacheManager, Opened, PrefixMatch, blocks_for
from octavo.cache.radix_tree import MissReason
from octavo.engine.fairness import TenantCounters
from octavo.engine.request import Request, RequestStatus
from octavo.kv_layout import BLOCK_SIZE


class Seats:
    """The queues, `running` and `waiting`, both sorted by rank: priority, then age. A running request holds its blocks.

    Who computes takes blocks only from those behind, so the first running request always advances, and everybody
    finishes in the end.
    """

    def __init__(self, cache: CacheManager, counters: TenantCounters, max_num_seqs: int) -> None:
        """At most `max_num_seqs` run together; `counters` are charged for what starts."""
        self._cache = cache
        self._counters = counters
        self._max_num_seqs = max_num_seqs
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.copies: list[tuple[int, int]] = []
        """Block copies (source, destination) that must run before the next step."""
        self.num_preemptions = 0
        self.num_misses: Counter[MissReason] = Counter()
        """Requests by the reason why not all of their prompt was cached."""

    @property
    def is_full(self) -> bool:
        """Whether as many run as may."""
        return len(self.running) >= self._max_num_seqs

    def add(self, request: Request) -> None:
        """Put a new request into the waiting queue."""
        insort(self.waiting, request, key=_rank)

    def remove(self, request: Request) -> None:
        """Take a request out that has ended, wherever it stands, and free its blocks."""
        _remove(self.running if request.status is RequestStatus.RUNNING else self.waiting, request)
        request.move_to(RequestStatus.FINISHED)
        self._release(request)

    def start(self, request: Request, match: PrefixMatch) -> bool:
        """Move a waiting request to running, on its longest stored prefix. False if its tokens do not fit."""
        if not self.has_room_for(request, match.num_full):
            self._cache.release(match)
            return False
        opened = self._cache.start(match, request.salt, request.tokens)
        if opened is None:
            return False
        request.num_computed_tokens = match.num_tokens
        if request.num_preemptions == 0:
            request.num_cached_tokens = match.num_tokens
            self._note_miss(request, match)
        self._open(request, opened)
        return True

    def could_start(self, request: Request) -> bool:
        """Whether a slot and blocks for all of its known tokens are free."""
        num_present = self.match_length(request) // BLOCK_SIZE
        return not self.is_full and self.has_room_for(request, num_present)

    def match_length(self, request: Request) -> int:
        """Tokens of the longest stored prefix of a waiting request."""
        if request.is_scoring:
            return 0
        return self._cache.match_length(request.wanted_tokens, request.salt)

    def match(self, request: Request) -> PrefixMatch:
        """The longest stored prefix of all its known tokens; none where the logits of the prompt are wanted."""
        if request.is_scoring:
            return NO_MATCH
        return self._cache.match(request.wanted_tokens, request.salt)

    def fork(self, request: Request, source: Request) -> bool:
        """Move a waiting request to running, on the prompt blocks of a sibling. False if blocks are short.

        All of the prompt but its last token is taken over; that one is computed again, into the fork's own block,
        since its logits are needed (the same bits, as every row's result is independent of its batch).
        """
        num_shared = request.num_prompt_tokens - 1
        if not self.has_room_for(request, num_shared // BLOCK_SIZE) or source.table is None:
            return False
        fork = self._cache.fork(source.table, num_shared, request.tokens)
        if fork is None:
            return False
        request.num_computed_tokens = num_shared
        self._open(request, fork)
        return True

    def fork_siblings(self, source: Request) -> None:
        """Start the other choices of a request whose prompt is computed, while there is room."""
        for request in source.siblings:
            if self.is_full:
                return
            if request.can_fork and not self.fork(request, source):
                return

    def make_room(self, request: Request, num_tokens: int, chosen: dict[Request, int]) -> bool:
        """Allocate slots for the next tokens, preempting those behind while short. False if it is itself the last."""
        assert request.table is not None
        while not self._cache.allocate(request.table, request.num_computed_tokens + num_tokens):
            behind = self.running[bisect_left(self.running, request.rank, key=_rank) + 1 :]
            if not behind:
                return False
            victim = cheapest(behind)
            chosen.pop(victim, None)
            self.preempt(victim)
        return True

    def preempt(self, request: Request) -> None:
        """Free a running request's blocks and queue it again; its rank puts it before all that never ran."""
        _remove(self.running, request)
        request.move_to(RequestStatus.PREEMPTED)
        self._release(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        insort(self.waiting, request, key=_rank)

    def has_room_for(self, request: Request, num_present_blocks: int) -> bool:
        """Whether blocks are free for all known tokens, but those present.

        Stricter than one chunk needs: a prompt that gets stuck half-way holds blocks for nothing.
        """
        missing = blocks_for(request.num_wanted_tokens) - num_present_blocks
        return missing <= self._cache.num_free

    def num_free_slots(self, request: Request) -> int:
        """Tokens the request can add without taking blocks from another."""
        num_own = request.table.num_blocks if request.table is not None else 0
        return (num_own + self._cache.num_free) * BLOCK_SIZE - request.num_computed_tokens

    def commit(self, request: Request) -> None:
        """Share what is computed, as far as the tokens are known: those of a run of decode steps come after it."""
        if request.table is not None:
            known = min(request.num_computed_tokens, request.num_tokens)
            self._cache.commit(request.table, known)

    def check_invariants(self) -> None:
        """Check queues, states and blocks against each other. Raises: AssertionError."""
        for queue in (self.running, self.waiting):
            ranks = [r.rank for r in queue]
            assert all(a < b for a, b in pairwise(ranks)), "a queue is out of order"
        assert len(self.running) <= self._max_num_seqs, "too many requests run"
        for r in self.running:
            assert r.status is RequestStatus.RUNNING, f"{r.request_id} runs as {r.status}"
            assert 0 <= r.num_computed_tokens < r.num_tokens, f"{r.request_id}: nothing to compute"
            assert r.table is not None, f"{r.request_id} runs without blocks"
            assert r.table.num_blocks >= blocks_for(r.num_computed_tokens), "tokens without a slot"
        for r in self.waiting:
            assert r.is_queued, f"{r.request_id} waits as {r.status}"
            assert r.table is None, f"{r.request_id} waits with blocks"
            assert r.num_computed_tokens == 0, f"{r.request_id} waits with computed tokens"
        self._cache.check_invariants()

    def _open(self, request: Request, opened: Opened) -> None:
        """Move a waiting request to running, with its table. Its tenant is given the prompt now, whenever it is computed."""
        request.table = opened.table
        if request.num_preemptions == 0:
            self._counters.charge(request.tenant, request.num_remaining_tokens)
        self.copies.extend(opened.copies)
        _remove(self.waiting, request)
        request.move_to(RequestStatus.RUNNING)
        insort(self.running, request, key=_rank)

    def _note_miss(self, request: Request, match: PrefixMatch) -> None:
        if not request.is_scoring:
            request.miss = self._cache.miss_of(request.wanted_tokens, match, request.salt)
            if request.miss is not None:
                self.num_misses[request.miss.reason] += 1

    def _release(self, request: Request) -> None:
        if request.table is not None:
            self.commit(request)
            self._cache.free(request.table)
            request.table = None


def cheapest(requests: Iterable[Request]) -> Request:
    """Whom it costs least to preempt: the least urgent, of these the one with least to compute again, then the newest."""
    return max(requests, key=lambda r: (r.priority, -r.num_computed_tokens, r.rank))


def _rank(request: Request) -> tuple[int, int, int]:
    return request.rank


def _remove(queue: list[Request], request: Request) -> None:
    at = bisect_left(queue, request.rank, key=_rank)
    assert queue[at] is request, f"{request.request_id} is not in its queue"
    del queue[at]
