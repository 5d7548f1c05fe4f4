"""Keeps the timelines of requests: looks at the clock three times a step, and at requests only when they turn."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import chain, islice
from typing import Final

from octavo.engine.request import Request
from octavo.engine.runner import Clock
from octavo.engine.scheduler import Schedule, Scheduler
from octavo.engine.timeline import Phase, Totals
from octavo.messages import EngineInfo, EngineTimeline

_MAX_AHEAD_IDS: Final = 8
_MAX_LOOKED_AT: Final = 64


class Timekeeper:
    """The only writer of timelines. In each step: `begin`, `observe` once the model ran, `end`."""

    def __init__(self, clock: Clock, info: EngineInfo) -> None:
        self._clock = clock
        self._info = info
        self._totals = Totals()
        self._begun_s = self._observed_s = self._ended_s = clock()
        self._num_preemptions = 0
        self._tenant: str | None = None
        self._has_many_tenants = False

    def add(self, group: Sequence[Request], num_ahead: int, scheduler: Scheduler) -> None:
        """Begin the timelines of a request's choices, behind `num_ahead` other requests."""
        now = self._clock()
        tenant = group[0].tenant
        self._has_many_tenants |= self._tenant not in (None, tenant)
        self._tenant = tenant
        ahead_ids = _ids_of(tenant, scheduler)
        for request in group:
            timeline = request.timeline
            record = timeline.record
            record.num_ahead, record.ahead_ids = num_ahead, ahead_ids
            record.max_num_seqs, record.num_blocks = self._info.max_num_seqs, self._info.num_blocks
            timeline.open(now, self._totals)

    def begin(self) -> None:
        """A step begins."""
        self._begun_s = self._clock()
        self._totals.between_s += self._begun_s - self._ended_s

    def note_preemptions(self, scheduler: Scheduler) -> None:
        """Turn the timelines of those that the schedule of this step set back."""
        if scheduler.num_preemptions == self._num_preemptions:
            return
        self._num_preemptions = scheduler.num_preemptions
        for request in chain(scheduler.waiting, scheduler.running):
            timeline = request.timeline
            if request.num_preemptions == timeline.num_preemptions:
                continue
            timeline.num_preemptions = request.num_preemptions
            if timeline.phase is Phase.DECODE:
                # All but the newest token had been computed.
                timeline.num_seen_tokens = request.num_tokens - 1
            timeline.move_to(Phase.PREEMPTED, self._begun_s, self._totals)

    def observe(
        self, schedule: Schedule, scheduler: Scheduler, seconds: float, num_steps: int = 1
    ) -> None:
        """The model ran `num_steps` steps in `seconds`, and the scheduler knows; their tokens are not taken yet."""
        now = self._clock()
        totals = self._totals
        turning = [c for c in schedule.chunks if c.request.timeline.phase is not Phase.DECODE]
        for request, _ in turning:
            self._start(request, Phase.DECODE if num_steps > 1 else Phase.PREFILL)
        totals.model_s += seconds
        totals.num_steps += num_steps
        totals.num_rows += num_steps * len(schedule.chunks)
        if schedule.num_prefill_tokens:
            totals.beside_prefill_s += seconds
        held_by = scheduler.held_by(schedule)
        if held_by is not None:
            totals.hold(held_by, now - self._begun_s)
        for request, num_tokens in turning:
            self._compute(request, num_tokens, now)
        self._observed_s = now

    def end(self) -> None:
        """A step ends: its tokens are taken."""
        self._ended_s = self._clock()

    def finish(self, request: Request) -> EngineTimeline:
        """End a timeline."""
        timeline = request.timeline
        timeline.move_to(Phase.ENDED, self._clock(), self._totals)
        timeline.record.is_final = True
        self._note_miss(request)
        return timeline.record

    def _start(self, request: Request, phase: Phase) -> None:
        """Turn a timeline at the beginning of the step at hand, if the request did not compute before."""
        timeline = request.timeline
        if timeline.phase in (Phase.QUEUED, Phase.PREEMPTED):
            started = [s.timeline.started_s for s in request.siblings if s is not request]
            first = min((at for at in started if at is not None), default=None)
            timeline.start(phase, self._begun_s, self._totals, first)
        elif phase is Phase.DECODE:
            timeline.move_to(phase, self._begun_s, self._totals)

    def _compute(self, request: Request, num_tokens: int, now: float) -> None:
        timeline = request.timeline
        if timeline.phase is Phase.PREFILL:
            # What was done with the results of the step before counts to this one.
            handled_s = self._ended_s - self._observed_s if timeline.mark_s < self._begun_s else 0.0
            start = request.num_computed_tokens - num_tokens
            timeline.compute(num_tokens, start, now - self._begun_s + handled_s)
            if request.num_remaining_tokens:
                return
            timeline.move_to(Phase.DECODE, now, self._totals)
        self._note_miss(request)
        timeline.news = copy(timeline.record)  # goes to another thread

    def _note_miss(self, request: Request) -> None:
        request.timeline.note_miss(request.miss, has_many_tenants=self._has_many_tenants)


def _ids_of(tenant: str, scheduler: Scheduler) -> list[str]:
    """Some requests of a tenant that run or wait, each once."""
    queue = islice(chain(scheduler.running, scheduler.waiting), _MAX_LOOKED_AT)
    ids = dict.fromkeys(r.request_id for r in queue if r.tenant == tenant)
    return list(ids)[:_MAX_AHEAD_IDS]
