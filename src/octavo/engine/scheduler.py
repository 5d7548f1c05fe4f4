"""Decides which tokens of which requests the next step computes. Integers and a cache; no tensors, no text, no clock.

There are no phases: every request has `num_computed_tokens` chasing `num_tokens`. Prefill, a chunk of it, resume after
preemption, replay and a fork are all "the first is behind the second".
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from octavo.cache.manager import NO_MATCH, CacheManager, Opened, PrefixMatch, blocks_for
from octavo.cache.radix_tree import MissReason, Node, key_of
from octavo.engine.request import Request, RequestStatus
from octavo.kv_layout import BLOCK_SIZE


class Chunk(NamedTuple):
    """The next `num_tokens` tokens of one request."""

    request: Request
    num_tokens: int


@dataclass(slots=True)
class Schedule:
    """What one step computes. Before it, the block `copies` (source, destination) must run, in order."""

    chunks: list[Chunk] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    num_steps: int = 1
    """Decode steps granted; slots are there for all of them. More than 1 only if each chunk is one plain token."""
    num_prefill_tokens: int = 0
    prefill_context: float = 0.0
    """Mean position of the prefill tokens."""


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """How much a step may hold."""

    max_num_seqs: int
    max_num_batched_tokens: int


PrefillLimit = Callable[[int], int]
"""Prefill tokens, the first of them at this position, that a step may hold while others decode."""


class Scheduler:
    """Owns the queues and the order of requests.

    `running` and `waiting` are both sorted by rank: priority, then age. Service goes from the front, preemption takes
    from the back of `running`, so the first running request always advances, and everybody finishes in the end.
    """

    def __init__(
        self, limits: SchedulerLimits, cache: CacheManager, prefill_limit: PrefillLimit
    ) -> None:
        self._limits = limits
        self._cache = cache
        self._prefill_limit = prefill_limit
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self._copies: list[tuple[int, int]] = []
        self.num_preemptions = 0
        self.num_misses: Counter[MissReason] = Counter()
        """Requests by the reason why not all of their prompt was cached."""

    @property
    def has_work(self) -> bool:
        """Whether a request is waiting or running."""
        return bool(self.running or self.waiting)

    def add(self, requests: Iterable[Request]) -> None:
        """Put new requests into the waiting queue."""
        for request in requests:
            insort(self.waiting, request, key=_rank)

    def finish(self, request: Request) -> None:
        """Take a request out, wherever it stands, and free its blocks."""
        _remove(self.running if request.status is RequestStatus.RUNNING else self.waiting, request)
        request.move_to(RequestStatus.FINISHED)
        self._release(request)

    def schedule(self, max_steps: int = 1) -> Schedule:
        """Choose the tokens of the next step and allocate their slots; up to `max_steps` steps where all just decode.

        Calling it again without `advance` in between is harmless: a step that never ran is simply chosen again.
        """
        chosen: dict[Request, int] = {}
        budget = self._schedule_decode(chosen, self._limits.max_num_batched_tokens)
        prefill = _PrefillBudget(budget, self._prefill_limit if chosen else None)
        self._schedule_prefill(chosen, prefill)
        self._schedule_waiting(chosen, prefill)
        schedule = self._schedule_of(chosen)
        if max_steps > 1:
            schedule.num_steps = self._grant_steps(schedule, max_steps)
        return schedule

    def advance(self, schedule: Schedule, num_steps: int = 1) -> None:
        """Note that the steps were run: their tokens are computed, the copies done."""
        self._copies.clear()
        for request, num_tokens in schedule.chunks:
            was_forkable = request.can_be_forked
            request.num_computed_tokens += num_tokens + num_steps - 1
            self._commit(request)
            if not was_forkable and request.can_be_forked and len(request.siblings) > 1:
                # At once: the source may finish with its first token, and its blocks would be gone.
                self._fork_siblings(request)

    def _schedule_decode(self, chosen: dict[Request, int], budget: int) -> int:
        """One token for each running request that lacks only one, oldest first; returns the budget left."""
        for request in list(self.running):
            if budget == 0:
                break
            # A preemption in this loop may have taken a request further behind.
            is_next = request.status is RequestStatus.RUNNING and request.num_remaining_tokens == 1
            if is_next and self._make_room(request, 1, chosen):
                chosen[request] = 1
                budget -= 1
        return budget

    def _schedule_prefill(self, chosen: dict[Request, int], prefill: _PrefillBudget) -> None:
        """The next chunk of each running request that lacks more than one token."""
        for request in list(self.running):
            if request.status is not RequestStatus.RUNNING or request.num_remaining_tokens <= 1:
                continue
            num_tokens = prefill.grant(request)
            if num_tokens == 0:
                break
            # Take what fits without hurting others; if not even one token does, take from those behind.
            num_tokens = min(num_tokens, max(1, self._num_free_slots(request)))
            if self._make_room(request, num_tokens, chosen):
                chosen[request] = num_tokens
                prefill.spend(num_tokens)

    def _schedule_waiting(self, chosen: dict[Request, int], prefill: _PrefillBudget) -> None:
        """Start waiting requests, in order, while there is room for all of their known tokens."""
        if not self.waiting:
            return
        coming = {
            _coming_block(request) for request, num_tokens in chosen.items() if num_tokens > 1
        }
        for request in list(self.waiting):
            if len(self.running) >= self._limits.max_num_seqs or prefill.num_left == 0:
                return
            source = request.fork_source
            if source is not None:
                started = self._fork(request, source)
            elif request.is_prompt_coming:
                continue
            else:
                match = self._match(request)
                block = _next_block(request, match)
                if block is not None and block in coming:
                    # Another request is computing it in this step: look again at the next.
                    self._cache.release(match)
                    continue
                started = self._start(request, match)
            if not started:
                return
            num_tokens = prefill.grant(request)
            if self._make_room(request, num_tokens, chosen):
                chosen[request] = num_tokens
                prefill.spend(num_tokens)
                coming.add(_coming_block(request))

    def _start(self, request: Request, match: PrefixMatch) -> bool:
        """Move a waiting request to running, on its longest stored prefix. False if its tokens do not fit."""
        if not self._has_room_for(request, match.num_full):
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

    def _note_miss(self, request: Request, match: PrefixMatch) -> None:
        if not request.is_scoring:
            tokens = request.tokens(0, request.num_wanted_tokens)
            request.miss = self._cache.miss_of(tokens, match, request.salt)
            if request.miss is not None:
                self.num_misses[request.miss.reason] += 1

    def _match(self, request: Request) -> PrefixMatch:
        """The longest stored prefix of all its known tokens; none where the logits of the prompt are wanted."""
        if request.is_scoring:
            return NO_MATCH
        return self._cache.match(request.tokens(0, request.num_wanted_tokens), request.salt)

    def _fork(self, request: Request, source: Request) -> bool:
        """Move a waiting request to running, on the prompt blocks of a sibling. False if blocks are short.

        All of the prompt but its last token is taken over; that one is computed again, into the fork's own block,
        since its logits are needed (the same bits, as every row's result is independent of its batch).
        """
        num_shared = request.num_prompt_tokens - 1
        if not self._has_room_for(request, num_shared // BLOCK_SIZE) or source.table is None:
            return False
        fork = self._cache.fork(source.table, num_shared, request.tokens)
        if fork is None:
            return False
        request.num_computed_tokens = num_shared
        self._open(request, fork)
        return True

    def _fork_siblings(self, source: Request) -> None:
        for request in source.siblings:
            if len(self.running) >= self._limits.max_num_seqs:
                return
            if request.can_fork and not self._fork(request, source):
                return

    def _open(self, request: Request, opened: Opened) -> None:
        """Move a waiting request to running, with its table."""
        request.table = opened.table
        self._copies.extend(opened.copies)
        _remove(self.waiting, request)
        request.move_to(RequestStatus.RUNNING)
        insort(self.running, request, key=_rank)

    def _has_room_for(self, request: Request, num_present_blocks: int) -> bool:
        """Whether blocks are free for all known tokens, but those present.

        Stricter than one chunk needs: a prompt that gets stuck half-way holds blocks for nothing.
        """
        missing = blocks_for(request.num_wanted_tokens) - num_present_blocks
        return missing <= self._cache.num_free

    def _commit(self, request: Request) -> None:
        """Share what is computed, as far as the tokens are known: those of a run of decode steps come after it."""
        if request.table is not None:
            known = min(request.num_computed_tokens, request.num_tokens)
            self._cache.commit(request.table, known)

    def _num_free_slots(self, request: Request) -> int:
        """Tokens the request can add without taking blocks from another."""
        num_own = request.table.num_blocks if request.table is not None else 0
        return (num_own + self._cache.num_free) * BLOCK_SIZE - request.num_computed_tokens

    def _make_room(self, request: Request, num_tokens: int, chosen: dict[Request, int]) -> bool:
        """Allocate slots for the next tokens, preempting from the back while short. False if it is itself the last."""
        assert request.table is not None
        while not self._cache.allocate(request.table, request.num_computed_tokens + num_tokens):
            victim = self.running[-1]
            if victim is request:
                return False
            chosen.pop(victim, None)
            self._preempt(victim)
        return True

    def _preempt(self, request: Request) -> None:
        """Free a running request's blocks and queue it again; its rank puts it before all that never ran."""
        _remove(self.running, request)
        request.move_to(RequestStatus.PREEMPTED)
        self._release(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        insort(self.waiting, request, key=_rank)

    def _release(self, request: Request) -> None:
        if request.table is not None:
            self._commit(request)
            self._cache.free(request.table)
            request.table = None

    def _grant_steps(self, schedule: Schedule, max_steps: int) -> int:
        """Steps that may run in one call: while nobody waits who could start, and nobody ends or runs out of slots."""
        could_start = self.waiting and len(self.running) < self._limits.max_num_seqs
        if could_start or schedule.copies or len(schedule.chunks) != len(self.running):
            return 1
        for request in self.running:
            max_steps = min(max_steps, request.num_plain_steps)
            if max_steps <= 1:
                return 1
        missing = 0
        for request in self.running:
            assert request.table is not None
            needed = blocks_for(request.num_computed_tokens + max_steps)
            missing += max(0, needed - request.table.num_blocks)
        if missing > self._cache.num_free:
            return 1
        for request in self.running:
            assert request.table is not None
            self._cache.allocate(request.table, request.num_computed_tokens + max_steps)
        return max_steps

    def _schedule_of(self, chosen: dict[Request, int]) -> Schedule:
        schedule = Schedule([Chunk(*item) for item in chosen.items()], list(self._copies))
        prefill = [chunk for chunk in schedule.chunks if chunk.num_tokens > 1]
        if prefill:
            schedule.num_prefill_tokens = sum(n for _, n in prefill)
            weighted = sum(n * (request.num_computed_tokens + n / 2) for request, n in prefill)
            schedule.prefill_context = weighted / schedule.num_prefill_tokens
        return schedule

    def check_invariants(self) -> None:
        """Check queues, states and blocks against each other. Raises: AssertionError."""
        for queue in (self.running, self.waiting):
            ranks = [r.rank for r in queue]
            assert all(a < b for a, b in pairwise(ranks)), "a queue is out of order"
        assert len(self.running) <= self._limits.max_num_seqs, "too many requests run"
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


class _PrefillBudget:
    """Tokens a step may still prefill. `limit`, given while others decode, is asked once, by the first who prefills."""

    def __init__(self, num_tokens: int, limit: PrefillLimit | None) -> None:
        self.num_left = num_tokens
        self._limit = limit

    def grant(self, request: Request) -> int:
        """Tokens the request may compute now."""
        if self._limit is not None:
            self.num_left = min(self.num_left, self._limit(request.num_computed_tokens))
            self._limit = None
        return min(self.num_left, request.num_remaining_tokens)

    def spend(self, num_tokens: int) -> None:
        """Take granted tokens out of the budget."""
        self.num_left -= num_tokens


_BlockKey = tuple[Node | None, str | None, bytes]
"""A full block that somebody may look for: what it follows, its salt, its tokens."""


def _coming_block(request: Request) -> _BlockKey | None:
    """The first full block of a running request that others do not find yet, if its tokens are known."""
    table = request.table
    if table is None or table.tokens_of is None:
        return None
    return _block_key(request, table.node, table.num_in_tree, request.num_tokens)


def _next_block(request: Request, match: PrefixMatch) -> _BlockKey | None:
    """The full block that a waiting request could have been given next. Its last token is not to be found."""
    if request.is_scoring:
        return None
    return _block_key(request, match.node, match.num_full, request.num_wanted_tokens - 1)


def _block_key(request: Request, node: Node | None, at: int, num_tokens: int) -> _BlockKey | None:
    start, end = at * BLOCK_SIZE, (at + 1) * BLOCK_SIZE
    if end > num_tokens:
        return None
    return node, request.salt, key_of(request.tokens(start, end))


def _rank(request: Request) -> tuple[int, int, int]:
    return request.rank


def _remove(queue: list[Request], request: Request) -> None:
    at = bisect_left(queue, request.rank, key=_rank)
    assert queue[at] is request, f"{request.request_id} is not in its queue"
    del queue[at]
