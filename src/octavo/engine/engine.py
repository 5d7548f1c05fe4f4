"""The engine: add, abort, step. Wires requests, scheduler, cache and runner; the only writer of request state."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec
import numpy as np

from octavo.cache.disk_tier import DiskTier
from octavo.cache.manager import CacheManager
from octavo.engine.admission import check_request, max_output_tokens, token_array
from octavo.engine.batch import ChunkRows, StepBuilder, StepInput
from octavo.engine.board import ProgressBoard
from octavo.engine.disk_loads import DiskLoads
from octavo.engine.prefill import FULL_STEP_TOKENS
from octavo.engine.request import Request, RequestStatus
from octavo.engine.runner import ModelRunner
from octavo.engine.scheduler import Schedule, Scheduler, SchedulerLimits
from octavo.engine.step_model import StepLoad, StepModel
from octavo.engine.timekeeper import Timekeeper
from octavo.errors import EngineDead, InvalidRequest
from octavo.messages import (
    MAX_WAIT_EXCEEDED,
    AddRequest,
    ChoiceOutput,
    EngineInfo,
    EngineStats,
    StepOutputs,
    TokenScore,
)
from octavo.observability.first_token import StepPrices
from octavo.observability.limits import MachineCeilings
from octavo.observability.op_costs import OpCost
from octavo.ops.protocol import Int32s, SampleResult
from octavo.outputs import FinishReason

_logger = logging.getLogger(__name__)

_MAX_CALL_S: Final = 0.050
"""Decode steps are run together up to this long. Between calls the executor decides whether two threads are still faster
than one, and stop strings are found: what was drawn past them is lost."""

_MANY_CALL_S: Final = 0.200
_MANY: Final = 16
"""From so many requests on, without stop strings, a call is longer: one step of it may take 40 ms."""

_STREAMED_CALL_S: Final = 1 / 60
"""The same while somebody reads: as often as a screen shows something new."""

_MAX_WAIT_S: Final = 0.020
"""How long a step waits for blocks from disk where nothing else is to be done."""


def _nothing() -> None:
    """Free nothing more than the runner does."""


class Engine:
    """One loaded model and the requests it answers. One thread uses it.

    Invariant: every choice of every added request gets exactly one ChoiceOutput with a finish_reason, from `step`,
    whatever happens: abort, a fault of its own, death of the executor, `close`.
    """

    def __init__(
        self,
        runner: ModelRunner,
        info: EngineInfo,
        limits: SchedulerLimits,
        *,
        max_step_s: float,
        is_caching: bool = True,
        disk: DiskTier | None = None,
        on_close: Callable[[], None] = _nothing,
    ) -> None:
        """While requests decode, prefill keeps a step below max_step_s. `is_caching`: requests share their prefixes.

        `disk`, which the engine closes, keeps the prefixes of ended requests, and has those of others.
        `on_close` frees what the runner does not own.
        """
        self.info = info
        self._runner = runner
        self._limits = limits
        self._max_step_s = max_step_s
        self._is_caching = is_caching
        self._disk = disk
        self._loads: DiskLoads | None = None
        self._max_call_s = math.inf
        self._interrupt: Int32s = np.zeros(1, np.int32)
        self._on_close = on_close
        self._step_model = StepModel()
        self._builder = StepBuilder()
        self._times = Timekeeper(runner.now_s, info)
        self._cache, self._scheduler = self._new_scheduler()
        self._groups: dict[str, tuple[Request, ...]] = {}
        self._outbox: list[ChoiceOutput] = []
        self._num_added = 0
        self._stats = EngineStats(num_blocks=info.num_blocks)
        self._death: str | None = None
        self._board: ProgressBoard | None = None

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do or to tell."""
        return bool(self._outbox) or self._scheduler.has_work or self._is_loading

    @property
    def _is_loading(self) -> bool:
        return self._loads is not None and self._loads.is_busy

    @property
    def is_dead(self) -> bool:
        """Whether the engine takes no more requests: closed, or stopped by a fault."""
        return self._death is not None

    def check(self, message: AddRequest) -> None:
        """Raise what `add` would raise for the request itself. Reads only what never changes: any thread may ask.

        Raises: InvalidRequest, ContextLengthExceeded, CapacityError, EngineDead.
        """
        if self._death is not None:
            raise EngineDead(self._death)
        check_request(message, self.info)

    def add(self, message: AddRequest) -> None:
        """Accept a request. Raises: as `check`, and InvalidRequest for an id that is in use."""
        self.check(message)
        if message.request_id in self._groups:
            raise InvalidRequest(f"request id {message.request_id!r} is in use", param="request_id")
        prompt = token_array(message.prompt_token_ids, "prompt")
        limit = max_output_tokens(message, self.info)
        group = tuple(
            Request(message, index, prompt, self._num_added, limit)
            for index in range(message.params.n)
        )
        self._num_added += 1
        if not group[0].is_resumed:  # else it was counted when it first came
            self._stats.num_prompt_tokens += len(prompt)
        self._times.add(group, len(self._groups), self._scheduler)
        self._groups[message.request_id] = group
        for request in group:
            request.siblings = group
        self._scheduler.add(group)
        for request in group:
            # A replayed choice may be complete already, and max_tokens 0 may ask for nothing at all.
            self._end_if_due(request, _output_of(request))

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests now; blocks are free on return. Ids that are unknown, or ended already, are ignored."""
        for request_id in request_ids:
            for request in self._groups.get(request_id, ()):
                if not request.is_finished:
                    self._end(request, FinishReason.ABORT, _output_of(request))

    def step(self) -> StepOutputs:
        """Run one step, if there is work, and return what became known since the last one. Never raises."""
        if self._scheduler.has_work or self._is_loading:
            self._times.begin()
            try:
                self._run_step()
            except Exception as error:
                self.fail(error)
            self._times.end()
            is_over = not self._scheduler.has_work and not self._is_loading
            if is_over and self._cache.num_held:
                _logger.error("%d KV blocks are held by no request", self._cache.num_held)
        if self._board is not None:
            self._board.count_loop()
        outputs, self._outbox = self._outbox, []
        return StepOutputs(outputs, self.stats())

    def stats(self) -> EngineStats:
        """Counters and gauges as they are now."""
        running = self._scheduler.running
        behind = [r for r in running if r.num_output_tokens == 0]
        decoding = [r.num_tokens for r in running if r.num_output_tokens]
        prices = self._step_model.prices(StepLoad(len(decoding), sum(decoding)))
        limits = (self._max_step_s, self._limits.max_num_batched_tokens, FULL_STEP_TOKENS)
        return msgspec.structs.replace(
            self._stats,
            num_running=len(running),
            num_waiting=len(self._scheduler.waiting),
            num_free_blocks=self._cache.num_free,
            num_cached_blocks=self._cache.num_cached,
            num_preemptions=self._stats.num_preemptions + self._scheduler.num_preemptions,
            num_disk_stored_blocks=0 if self._disk is None else self._disk.num_stored,
            num_disk_loaded_blocks=0 if self._disk is None else self._disk.num_loaded,
            num_disk_queried_blocks=0 if self._disk is None else self._disk.num_queried,
            num_prefix_misses={
                reason.value: count for reason, count in self._scheduler.num_misses.items()
            },
            num_decoding=len(decoding),
            num_prefilled_tokens=sum(r.num_computed_tokens for r in behind),
            prices=None if prices is None else StepPrices(*prices, *limits),
            limit_share=self._runner.limit_share,
            model_s=self._runner.busy_s,
        )

    def check_invariants(self) -> None:
        """Check queues, requests and blocks against each other. Raises: AssertionError."""
        self._scheduler.check_invariants()
        live = {r for group in self._groups.values() for r in group if not r.is_finished}
        queued = [*self._scheduler.running, *self._scheduler.waiting]
        assert live == set(queued), "a live request is in no queue, or a queued one is not live"
        assert len(live) == len(queued), "a request is queued twice"

    def reset_prefix_cache(self) -> None:
        """Forget all prefixes. Requests under way go on; nothing of what they computed so far is found any more."""
        self._cache.reset()

    def check_quietly(self) -> None:
        """Check what check_invariants does; a fault is logged and counted, and nothing else happens."""
        try:
            self.check_invariants()
        except AssertionError as fault:
            self._stats.num_broken_invariants += 1
            _logger.error("an invariant does not hold: %s", fault)

    def fill_kv(self, value: float) -> None:
        """Overwrite all KV memory and forget what it held, while no request runs.

        For tests: no result may depend on what free blocks hold.
        """
        if self._scheduler.running or self._is_loading:
            raise RuntimeError("requests are running")
        self._cache.reset()
        self._runner.fill_kv(value)

    def interrupt(self) -> None:
        """Let no more than the decode step at hand run before `step` returns, until `resume`. Any thread may call it."""
        self._interrupt[0] = 1

    def resume(self) -> None:
        """Let decode steps run together again: whoever interrupted has been heard."""
        self._interrupt[0] = 0

    def show_progress(self, board: ProgressBoard) -> None:
        """Keep `board` up to date from now on, for whoever watches, or interrupts, this engine from another process."""
        self._board = board
        self._interrupt = board.stop
        self._runner.watch(board.op_counter)

    def limit_calls(self, max_call_s: float | None) -> None:
        """Run decode steps together up to this long; 0: each by itself; None: as it is without being told."""
        self._max_call_s = math.inf if max_call_s is None else max_call_s

    def set_counting(self, is_counting: bool) -> None:
        """Whether the operations of steps from now on are counted; turning it on starts from zero."""
        self._runner.set_counting(is_counting)

    def op_costs(self) -> list[OpCost]:
        """What was counted, an entry for each kind of operation and shape. Empty if the backend counts nothing."""
        return self._runner.op_costs()

    def measure_ceilings(self, seconds: float) -> MachineCeilings | None:
        """What the machine allows this model now, in about `seconds`, while no request runs. None: nothing is known."""
        return self._runner.measure_ceilings(seconds)

    def close(self) -> None:
        """End all requests (`step` still tells them), free the model, the KV memory and its threads. Idempotent."""
        self.abort(list(self._groups))
        self._death = self._death or "the engine is closed"
        if self._disk is not None:
            self._disk.close()
            self._loads = None  # nothing comes any more
        self._runner.close()
        self._on_close()

    def fail(self, error: Exception) -> None:
        """End everything with an error. Nothing is known of the KV memory or the queues any more: start them afresh."""
        _logger.error("the engine stopped", exc_info=error)
        self._death = f"the engine stopped: {type(error).__name__}: {error}"
        self._stats.num_preemptions += self._scheduler.num_preemptions
        self._cache, self._scheduler = self._new_scheduler()
        unfinished = [r for group in self._groups.values() for r in group if not r.is_finished]
        self._groups.clear()
        for request in unfinished:
            request.move_to(RequestStatus.FINISHED)
            request.table = None
            request.siblings = (request,)
            output = _output_of(request)
            output.finish_reason, output.error = FinishReason.ERROR.value, self._death
            output.timeline = self._times.finish(request)
            self._outbox.append(output)

    def _new_scheduler(self) -> tuple[CacheManager, Scheduler]:
        cache = CacheManager(self.info.num_blocks, is_sharing=self._is_caching, tier=self._disk)
        self._loads = DiskLoads(cache, self._disk) if self._disk and self._is_caching else None
        # Not a method of the engine: a cycle would keep the model's memory after the last reference is gone.
        prefill_limit = partial(self._step_model.max_prefill_tokens, self._max_step_s)
        return cache, Scheduler(self._limits, cache, prefill_limit, self._loads)

    def _run_step(self) -> None:
        if self._loads is not None:
            self._loads.poll()
        self._end_expired()
        max_steps = self._step_model.max_decode_steps(min(self._call_s(), self._max_call_s))
        schedule = self._scheduler.schedule(max_steps, self._runner.now_s())
        self._times.note_preemptions(self._scheduler)
        if not schedule.chunks and self._loads is not None:
            self._loads.wait(_MAX_WAIT_S)  # all there is to do
            return
        step = self._build(schedule)
        if step is None:
            return
        if self._board is not None:
            self._board.show_step(chunk.request.request_id for chunk in schedule.chunks)
        if schedule.copies:
            self._runner.copy_blocks(schedule.copies)
        if schedule.num_steps > 1:
            self._run_decode(schedule, step)
            return
        result = self._runner.run(step.batch, step.sample)
        self._step_model.observe(schedule.load(), result.seconds)
        self._scheduler.advance(schedule)
        self._times.observe(schedule, self._scheduler, result.seconds)
        self._stats.num_steps += 1
        self._stats.num_step_tokens += len(step.batch.token_ids)
        self._take_results(step.rows, result.sampled)

    def _call_s(self) -> float:
        """How long decode steps may run together, by who waits for their tokens."""
        running = self._scheduler.running
        if any(request.is_streamed for request in running):
            return _STREAMED_CALL_S
        if len(running) < _MANY or any(request.params.stop for request in running):
            return _MAX_CALL_S
        return _MANY_CALL_S

    def _end_expired(self) -> None:
        """End the requests that waited longer than they may."""
        now_s = self._runner.now_s()
        self._scheduler.note_arrivals(now_s)
        # All of them are found first: a choice that ended is no longer one that only waits.
        for request in self._scheduler.expired(now_s):
            output = _output_of(request)
            output.error = f"not begun within {request.max_wait_s:g} s (max_wait_ms)"
            output.error_code = MAX_WAIT_EXCEEDED
            self._end(request, FinishReason.ERROR, output)

    def _run_decode(self, schedule: Schedule, step: StepInput) -> None:
        """Run the granted decode steps in one call. A row that ends makes its step the last."""
        run = self._builder.decode_run(schedule.num_steps, self._interrupt)
        result = self._runner.decode(step.batch, step.sample, run)
        num_done = len(result.token_ids)
        self._step_model.observe(schedule.load(num_done), result.seconds / num_done)
        self._scheduler.advance(schedule, num_done)
        self._times.observe(schedule, self._scheduler, result.seconds, num_done)
        self._stats.num_steps += num_done
        self._stats.num_step_tokens += num_done * len(step.rows)
        self._take_run(step.rows, result.token_ids)

    def _build(self, schedule: Schedule) -> StepInput | None:
        """The step's arrays. A request whose rows cannot be built ends with an error and leaves the schedule."""
        try:
            return self._builder.build(schedule.chunks)
        except Exception:
            _logger.exception("building a step failed; looking for the request at fault")
        sound = []
        for chunk in schedule.chunks:
            try:
                self._builder.build([chunk])
            except Exception as error:
                output = _output_of(chunk.request)
                output.error = f"internal error: {type(error).__name__}: {error}"
                self._end(chunk.request, FinishReason.ERROR, output)
            else:
                sound.append(chunk)
        schedule.chunks = sound
        schedule.num_steps = 1
        return self._builder.build(sound) if sound else None

    def _take_results(self, rows: list[ChunkRows], sampled: SampleResult) -> None:
        token_ids = sampled.token_ids.tolist()
        at = 0
        for request, num_scored, is_drawing in rows:
            if not (num_scored or is_drawing):
                continue
            output = _output_of(request)
            if num_scored:
                request.num_scored_tokens += num_scored
                num_top = request.sampling.num_prompt_logprobs
                output.prompt_scores = _scores(sampled, at, at + num_scored, num_top)
                at += num_scored
            if is_drawing:
                if request.num_logprobs is not None:
                    output.scores = _scores(sampled, at, at + 1, request.num_logprobs)
                self._take_token(request, token_ids[at], output)
                at += 1
            if not request.is_finished and not self._end_if_due(request, output):
                self._outbox.append(output)

    def _take_run(self, rows: list[ChunkRows], token_ids: Int32s) -> None:
        for (request, _, _), drawn in zip(rows, token_ids.T.tolist(), strict=True):
            output = _output_of(request)
            for token_id in drawn:
                self._take_token(request, token_id, output)
                if request.is_finished:
                    break
            if not request.is_finished and not self._end_if_due(request, output):
                self._outbox.append(output)

    def _take_token(self, request: Request, token_id: int, output: ChoiceOutput) -> None:
        if not 0 <= token_id < self.info.vocab_size:
            output.error, output.scores = f"the sampler returned token {token_id}", []
            self._end(request, FinishReason.ERROR, output)
            return
        request.append(token_id)
        output.token_ids.append(token_id)
        self._stats.num_generated_tokens += 1

    def _end_if_due(self, request: Request, output: ChoiceOutput) -> bool:
        ending = request.ending()
        if ending is None:
            return False
        reason, output.stop_reason = ending
        self._end(request, reason, output)
        return True

    def _end(self, request: Request, reason: FinishReason, output: ChoiceOutput) -> None:
        """The one place where a live request ends: free its blocks, tell the reason, forget the group with its last."""
        self._scheduler.finish(request)
        output.finish_reason = reason.value
        output.timeline = self._times.finish(request)
        self._outbox.append(output)
        if not request.is_resumed:
            self._stats.num_cached_tokens += request.num_cached_tokens
        if all(r.is_finished for r in request.siblings):
            del self._groups[request.request_id]
            for sibling in request.siblings:
                sibling.siblings = (sibling,)


def _output_of(request: Request) -> ChoiceOutput:
    news, request.timeline.news = request.timeline.news, None
    return ChoiceOutput(
        request.request_id,
        request.index,
        num_cached_tokens=request.num_cached_tokens,
        num_preemptions=request.num_preemptions,
        timeline=news,
    )


def _scores(sampled: SampleResult, start: int, end: int, num_top: int) -> list[TokenScore]:
    """Scores of rows start .. end - 1, each with `num_top` alternatives."""
    return [
        TokenScore(*row)
        for row in zip(
            sampled.token_ids[start:end].tolist(),
            sampled.logprobs[start:end].tolist(),
            sampled.ranks[start:end].tolist(),
            sampled.top_ids[start:end, :num_top].tolist(),
            sampled.top_logprobs[start:end, :num_top].tolist(),
            strict=True,
        )
    ]
