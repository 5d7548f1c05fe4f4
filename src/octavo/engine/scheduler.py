"""Decides which tokens of which requests the next step computes. Integers and a cache; no tensors, no text, no clock.

There are no phases: every request has `num_computed_tokens` chasing `num_tokens`. Prefill, a chunk of it, resume after
preemption, replay and a fork are all "the first is behind the second".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from octavo.cache.manager import CacheManager, PrefixMatch, blocks_for
from octavo.cache.radix_tree import MissReason
from octavo.engine.fairness import TenantCounters, WaitingOrder
from octavo.engine.prefill import ComingBlocks, PrefillBudget, PrefillLimit
from octavo.engine.request import Request, RequestStatus
from octavo.engine.seats import Seats, cheapest
from octavo.engine.step_model import StepLoad
from octavo.engine.timeline import HeldBy

_TOKENS_A_STEP: Final = 2
"""What a decode step counts: it costs more than a token of a prompt (the paper's weight)."""

_TURN_TOKENS: Final = 512
"""What a tenant's only request may be given more than a tenant that waits, before it has to make room."""


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

    def load(self, num_steps: int = 1) -> StepLoad:
        """What the step has to compute, or one of `num_steps` on average; to be asked before it is noted as run."""
        positions = [(n, n * (r.num_computed_tokens + n / 2)) for r, n in self.chunks]
        decode = [position for n, position in positions if n == 1]
        prefill = sum(position for n, position in positions if n > 1)
        later = len(decode) * (num_steps - 1) / 2
        return StepLoad(len(decode), sum(decode) + later, self.num_prefill_tokens, prefill)


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """How much a step may hold."""

    max_num_seqs: int
    max_num_batched_tokens: int


class Loads(Protocol):
    """Blocks that come from elsewhere than from computing them."""

    @property
    def is_busy(self) -> bool:
        """Whether blocks are on their way."""
        ...

    def holds_up(self, request: Request, match: PrefixMatch) -> bool:
        """Whether the block after a waiting request's match is on its way; may send for it."""
        ...


class Scheduler:
    """Owns the queues and the order of requests.

    Who starts, and whose prompt is computed first, is fairness.py's to say; how it gets its blocks, seats.py's.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        cache: CacheManager,
        prefill_limit: PrefillLimit,
        loads: Loads | None = None,
    ) -> None:
        """`loads` brings blocks from elsewhere into the cache."""
        self._loads = loads
        self._limits = limits
        self._cache = cache
        self._prefill_limit = prefill_limit
        self._counters = TenantCounters()
        self._seats = Seats(cache, self._counters, limits.max_num_seqs)
        self._arrived: list[Request] = []  # since the last call

    @property
    def running(self) -> list[Request]:
        """Requests that run, by rank."""
        return self._seats.running

    @property
    def waiting(self) -> list[Request]:
        """Requests that wait, by rank."""
        return self._seats.waiting

    @property
    def has_work(self) -> bool:
        """Whether a request is waiting or running."""
        return bool(self.running or self.waiting)

    @property
    def num_preemptions(self) -> int:
        """Requests set back to make room, so far."""
        return self._seats.num_preemptions

    @property
    def num_misses(self) -> Counter[MissReason]:
        """Requests by the reason why not all of their prompt was cached."""
        return self._seats.num_misses

    def add(self, requests: Iterable[Request]) -> None:
        """Put new requests into the waiting queue."""
        for request in requests:
            self._seats.add(request)
            self._arrived.append(request)
            self._counters.enter(request.tenant)

    def finish(self, request: Request) -> None:
        """Take a request out, wherever it stands, and free its blocks."""
        self._seats.remove(request)
        self._counters.leave(request.tenant)

    def note_arrivals(self, now_s: float) -> None:
        """Say when those came that were added since the last call."""
        for request in self._arrived:
            request.waiting_since_s = now_s
        self._arrived.clear()

    def expired(self, now_s: float) -> list[Request]:
        """Waiting requests that were not begun in the time that they may wait."""
        return [request for request in self.waiting if request.has_waited_too_long(now_s)]

    def schedule(self, max_steps: int = 1, now_s: float = 0.0) -> Schedule:
        """Choose the tokens of the next step and allocate their slots; up to `max_steps` steps where all just decode.

        Calling it again without `advance` in between is harmless: a step that never ran is simply chosen again.
        `now_s` is any monotonic clock's.
        """
        chosen: dict[Request, int] = {}
        self.note_arrivals(now_s)
        order = WaitingOrder(self.waiting, self._counters, self._seats.match_length, now_s)
        if self.waiting:
            self._give_up_for_others(order)
        budget = self._schedule_decode(chosen, self._limits.max_num_batched_tokens)
        prefill = PrefillBudget(budget, self._prefill_limit if chosen else None)
        self._schedule_prefill(chosen, prefill, order)
        schedule = self._schedule_of(chosen)
        if max_steps > 1:
            schedule.num_steps = self._grant_steps(schedule, max_steps)
        return schedule

    def advance(self, schedule: Schedule, num_steps: int = 1) -> None:
        """Note that the steps were run: their tokens are computed, the copies done."""
        self._seats.copies.clear()
        for request, num_tokens in schedule.chunks:
            was_forkable = request.can_be_forked
            if num_tokens == request.num_remaining_tokens == 1:
                self._counters.charge(request.tenant, _TOKENS_A_STEP * num_steps)
            request.num_computed_tokens += num_tokens + num_steps - 1
            self._seats.commit(request)
            if not was_forkable and request.can_be_forked and len(request.siblings) > 1:
                # At once: the source may finish with its first token, and its blocks would be gone.
                self._seats.fork_siblings(request)

    def _schedule_decode(self, chosen: dict[Request, int], budget: int) -> int:
        """One token for each running request that lacks only one, oldest first; returns the budget left."""
        for request in list(self.running):
            if budget == 0:
                break
            # A preemption in this loop may have taken a request further behind.
            is_next = request.status is RequestStatus.RUNNING and request.num_remaining_tokens == 1
            if is_next and self._seats.make_room(request, 1, chosen):
                chosen[request] = 1
                budget -= 1
        return budget

    def _schedule_prefill(
        self, chosen: dict[Request, int], prefill: PrefillBudget, order: WaitingOrder
    ) -> None:
        """Chunks of running requests that lack more than one token, and starts of waiting ones while there is room.

        Who runs and who waits have one order: a tenant that was given much does not hold up another by what it started.
        """
        coming = ComingBlocks()
        behind = [r for r in self.running if r.num_remaining_tokens > 1]
        behind.sort(key=lambda r: (order.key(r), r.rank), reverse=True)
        is_open = True
        while prefill.num_left > 0:
            while behind and behind[-1].status is not RequestStatus.RUNNING:
                behind.pop()  # preempted by one before it
            is_open = is_open and not self._seats.is_full
            waiting = order.first() if is_open else None
            comes_first = not behind or (
                waiting is not None and order.key(waiting) < order.key(behind[-1])
            )
            if waiting is not None and comes_first:
                is_open = self._start_waiting(waiting, chosen, prefill, order, coming)
            elif behind:
                self._continue(behind.pop(), chosen, prefill, coming)
            else:
                return

    def _continue(
        self,
        request: Request,
        chosen: dict[Request, int],
        prefill: PrefillBudget,
        coming: ComingBlocks,
    ) -> None:
        """The next chunk of a running request."""
        # Take what fits without hurting others; if not even one token does, take from those behind.
        num_tokens = min(prefill.grant(request), max(1, self._seats.num_free_slots(request)))
        if num_tokens and self._seats.make_room(request, num_tokens, chosen):
            chosen[request] = num_tokens
            prefill.spend(request, num_tokens)
            coming.add(request)

    def _start_waiting(
        self,
        request: Request,
        chosen: dict[Request, int],
        prefill: PrefillBudget,
        order: WaitingOrder,
        coming: ComingBlocks,
    ) -> bool:
        """Start a waiting request, or pass it over. False if there is no room for all of its known tokens."""
        source = request.fork_source
        if source is not None:
            started = self._seats.fork(request, source)
        elif request.is_prompt_coming:
            order.drop(request)
            return True
        else:
            match = self._seats.match(request)
            if coming.has_next(request, match) or self._loads_first(request, match):
                # Another request is computing it in this step, or it is loaded: look again at the next.
                self._cache.release(match)
                order.drop(request)
                return True
            started = self._seats.start(request, match)
        if not started:
            return False
        order.drop(request)
        num_tokens = prefill.grant(request)
        if num_tokens and self._seats.make_room(request, num_tokens, chosen):
            chosen[request] = num_tokens
            prefill.spend(request, num_tokens)
            coming.add(request)
        return True

    def _give_up_for_others(self, order: WaitingOrder) -> None:
        """Where all is taken and a tenant that runs nothing waits, preempt one of the tenant that was given most."""
        num_by_tenant = Counter(request.tenant for request in self.running)
        waiting = order.first_of_others(num_by_tenant)
        if waiting is None or self._seats.could_start(waiting):
            return

        def excess(request: Request) -> float:
            # A tenant's only request runs for a while, or two tenants would take turns at every step.
            turn = _TURN_TOKENS if num_by_tenant[request.tenant] == 1 else 0
            return self._counters[request.tenant] - self._counters[waiting.tenant] - turn

        victims = [r for r in self.running if r.priority >= waiting.priority and excess(r) > 0]
        if victims:
            tenant = max(victims, key=excess).tenant
            self._seats.preempt(cheapest(r for r in victims if r.tenant == tenant))

    def _loads_first(self, request: Request, match: PrefixMatch) -> bool:
        """Whether the request had better wait: its next block is on its way."""
        if self._loads is None or not self._seats.has_room_for(request, match.num_full):
            return False
        return self._loads.holds_up(request, match)

    def _grant_steps(self, schedule: Schedule, max_steps: int) -> int:
        """Steps that may run in one call: while nobody waits who could start, and nobody ends or runs out of slots."""
        could_start = self.waiting and not self._seats.is_full
        if could_start or schedule.copies or len(schedule.chunks) != len(self.running):
            return 1
        for request in self.running:
            max_steps = min(max_steps, request.num_plain_steps)
            if max_steps <= 1:
                return 1
        while self._num_missing_blocks(max_steps) > self._cache.num_free:
            max_steps //= 2
            if max_steps <= 1:
                return 1
        for request in self.running:
            assert request.table is not None
            self._cache.allocate(request.table, request.num_computed_tokens + max_steps)
        return max_steps

    def _num_missing_blocks(self, num_steps: int) -> int:
        """Blocks that all running requests together lack for so many steps."""
        missing = 0
        for request in self.running:
            assert request.table is not None
            needed = blocks_for(request.num_computed_tokens + num_steps)
            missing += max(0, needed - request.table.num_blocks)
        return missing

    def _schedule_of(self, chosen: dict[Request, int]) -> Schedule:
        schedule = Schedule([Chunk(*item) for item in chosen.items()], list(self._seats.copies))
        schedule.num_prefill_tokens = sum(n for _, n in schedule.chunks if n > 1)
        return schedule

    def held_by(self, schedule: Schedule) -> HeldBy | None:
        """What kept the first in the queue from starting with this step; None if nobody waits, or only for the disk."""
        if not self.waiting:
            return None
        if self._loads is not None and self._loads.is_busy and self.waiting[0].has_asked_disk:
            return None
        if self._seats.is_full:
            return HeldBy.SLOTS
        has_blocks = blocks_for(self.waiting[0].num_wanted_tokens) <= self._cache.num_free
        return HeldBy.TOKENS if has_blocks and schedule.num_prefill_tokens else HeldBy.BLOCKS

    def check_invariants(self) -> None:
        """Check queues, states and blocks against each other. Raises: AssertionError."""
        self._seats.check_invariants()
