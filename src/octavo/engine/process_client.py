"""A client of an engine that runs in a process of its own: watches it, replaces it, has the new one go on with the work.

Whatever happens to the engine, each choice of each accepted request gets exactly one finish_reason.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import zmq

from octavo.config import NO_LIMITS, QueueLimits
from octavo.engine.admission import check_request
from octavo.engine.child import EngineChild
from octavo.engine.client import OnOutputs
from octavo.engine.journal import MAX_DEATHS, Entry, Journal, ends
from octavo.engine.quarantine import save_quarantined
from octavo.engine.reception import Reception
from octavo.engine.spawn import EarlyProcess
from octavo.engine.totals import carried
from octavo.engine.wire import CacheReset, EngineSpec, FromEngine, ResetCache
from octavo.errors import EngineDead, OctavoError
from octavo.messages import AddRequest, ChoiceOutput, EngineInfo, EngineStats, StepOutputs
from octavo.outputs import FinishReason

_logger = logging.getLogger(__name__)

_TICK_MS: Final = 1000
_MAX_STILL_TICKS: Final = 5
"""An engine with work whose counters did not move for this many ticks hangs. Ticks, not seconds: if the machine slept,
or this process was stopped, the engine had its chance all the same."""

_BACK_OFF_S: Final = (0.0, 0.5, 1.0, 2.0, 4.0)
"""Waits before each new engine while none of them gets anywhere; after the last one no other is started."""

_LOST: Final = "the engine stopped and could not be started again"
_DIED: Final = "the engine stopped while it worked on this request"
_QUARANTINED: Final = "this request stopped the engine, twice: it is not tried again"


@dataclass(frozen=True, slots=True)
class Supervision:
    """What is done about an engine that dies: whether requests go on in the next, and where those are kept that do
    not: the ones that stopped two engines, prompt included, in files only the user may read."""

    replays: bool = True
    quarantine: Path | None = None


@dataclass(slots=True)
class SupervisionStats:
    """Counters of what was done about engines that died."""

    num_restarts: int = 0
    num_replayed: int = 0
    num_quarantined: int = 0


def _nothing() -> None:
    """Nobody wants to know."""


def _ignore(outputs: StepOutputs) -> None:
    """Nobody listens yet, and no request was sent."""


class ProcessClient:
    """Speaks to one engine process at a time. See EngineClient; outputs go to a callback.

    `add` and `abort` may come from any thread. One thread of this object reads what the engine says and supervises it.
    """

    def __init__(
        self,
        spec: EngineSpec,
        *,
        limits: QueueLimits = NO_LIMITS,
        supervision: Supervision | None = None,
        early: EarlyProcess | None = None,
        on_planned: Callable[[], None] = _nothing,
        on_lost: Callable[[], None] = _nothing,
    ) -> None:
        """Start an engine and wait until it is ready; `on_planned` is called once it is sure to load the model.

        `early`: a process that waits to be the first one.
        `on_lost` is called when no engine can be started any more, after all requests got their ends.
        Raises: what `load_engine` raises; EngineDead if the process ends without a word.
        """
        self._spec = spec
        self._supervision = supervision or Supervision()
        self._on_lost = on_lost
        self._on_outputs: OnOutputs = _ignore
        self._reception = Reception(limits)
        self._context = zmq.Context[zmq.Socket[bytes]]()
        self.supervision_stats = SupervisionStats()
        self._numbers = itertools.count()
        # Guarded by _lock: what several threads write. `_child` is None while there is no engine that is ready.
        self._lock = threading.RLock()
        self._journal = Journal()
        self._resets: dict[int, threading.Event] = {}
        self._death: str | None = None
        child = EngineChild(self._context, spec, None if early is None else early.take())
        try:
            ready = child.await_ready(on_planned)
        except BaseException:
            child.kill()
            child.free()
            self._context.term()
            raise
        self._child: EngineChild | None = child
        self._info = ready.info
        self._totals = EngineStats()
        self._stats = ready.stats
        self._is_closing = threading.Event()
        self._num_futile = 0  # engines in a row that told nothing
        self._thread = threading.Thread(target=self._watch, name="octavo-supervisor", daemon=True)
        self._thread.start()

    @property
    def info(self) -> EngineInfo:
        """What is loaded."""
        return self._info

    @property
    def is_alive(self) -> bool:
        """Whether requests are taken: an engine is there, or is being started."""
        return self._death is None

    @property
    def pid(self) -> int | None:
        """The process id of the engine; None while there is none that is ready."""
        child = self._child
        return None if child is None else child.pid

    def connect(self, on_outputs: OnOutputs) -> None:
        """Deliver outputs to this function, from this object's thread. Before the first request."""
        self._on_outputs = on_outputs

    def add(self, message: AddRequest) -> None:
        """Send a request, or keep it until an engine is there. Raises: as EngineClient.add."""
        check_request(message, self._info)
        with self._lock:
            if self._death is not None:
                raise EngineDead(self._death)
            self._reception.enter(message)
            self._journal.add(message, time.perf_counter())
            self._send_next()

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests within a step; ids that are unknown or ended are ignored."""
        with self._lock:
            known = self._journal.ask_end(request_ids)
            unsent = [entry for one in known if not (entry := self._journal[one]).is_sent]
            if self._child is not None and known:
                self._child.abort(known)
            outputs = [one for entry in unsent for one in self._end(entry, FinishReason.ABORT)]
        self._publish(outputs)

    def reset_prefix_cache(self) -> None:
        """Forget what is stored of earlier prompts. It is done on return; an engine that starts has nothing stored."""
        done = threading.Event()
        with self._lock:
            if self._child is None:
                return
            number = next(self._numbers)
            self._resets[number] = done
            self._child.send(ResetCache(number))
        done.wait()

    def outputs(self) -> StepOutputs:
        """Not here. Raises: RuntimeError."""
        raise RuntimeError("the outputs of this client go to its callback")

    def stats(self) -> EngineStats:
        """Counters of all engines so far, and gauges as of the last step."""
        return carried(self._totals, self._stats)

    def predict_first_token_s(self, num_tokens: int) -> float | None:
        """Seconds to the first token of a prompt of this length, if it were sent now; None if nothing is known."""
        return self._reception.predict_first_token_s(num_tokens)

    def close(self) -> None:
        """End all requests and the engine's process. Idempotent. Not to be called from the callback."""
        with self._lock:
            if self._child is not None and not self._is_closing.is_set():
                self._child.wake()
            self._is_closing.set()
        self._thread.join()

    # ---- the supervisor's thread ----

    def _watch(self) -> None:
        try:
            while not self._is_closing.is_set() and self._child is not None:
                self._follow(self._child)
        except Exception:
            _logger.exception("the supervisor of the engine failed")
        self._finish("the engine is closed" if self._is_closing.is_set() else _LOST)

    def _follow(self, child: EngineChild) -> None:
        """Take what one engine says until it dies or hangs; then have another take its place."""
        still, seen = 0, child.board.progress
        next_tick_s = time.monotonic() + _TICK_MS / 1000
        while not self._is_closing.is_set():
            messages = child.receive(_TICK_MS)
            if messages is None:
                self._replace(child, child.how_it_ended())
                return
            for message in messages:
                self._take(message)
            if time.monotonic() < next_tick_s:
                continue
            next_tick_s = time.monotonic() + _TICK_MS / 1000
            progress = child.board.progress
            still = still + 1 if progress == seen and self._has_work() else 0
            seen = progress
            if still >= _MAX_STILL_TICKS:
                child.kill()
                self._replace(child, f"did not move for {_MAX_STILL_TICKS} s, and was ended")
                return

    def _has_work(self) -> bool:
        """Whether the engine was asked for something that it has not done."""
        with self._lock:
            return self._journal.has_sent or bool(self._resets)

    def _take(self, message: FromEngine) -> None:
        match message:
            case StepOutputs():
                with self._lock:
                    self._stats = message.stats
                    outputs = self._journal.take(message.outputs)
                    if outputs:
                        self._num_futile = 0
                    self._send_next()
                self._publish(outputs)
            case CacheReset(number, stats):
                with self._lock:
                    self._stats = stats
                    self._resets.pop(number).set()

    def _send_next(self) -> None:
        """Give the engine what it may have now. Called under the lock."""
        if self._child is not None:
            for entry in self._journal.next_to_send():
                self._child.send(self._journal.send(entry))

    def _replace(self, child: EngineChild, how: str) -> None:
        """Start another engine in place of one that is gone."""
        with self._lock:
            self._child = None
            had_work = self._journal.has_sent
            suspects = self._journal.engine_died(child.board.is_in_step)
            self._totals = carried(self._totals, self._stats)
            self._stats = EngineStats(num_blocks=self._info.num_blocks)
            self._forget_resets()
            outputs = self._give_up(suspects)
        child.free()
        _logger.error("the engine process %s%s", how, "" if had_work else ", with nothing to do")
        self._publish(outputs)
        started = self._start_again()
        if started is None:
            return
        with self._lock:
            self.supervision_stats.num_restarts += 1
            self.supervision_stats.num_replayed += sum(
                entry.num_replays > 0 for entry in self._journal.entries()
            )
            self._child = started
            self._send_next()

    def _give_up(self, suspects: Sequence[Entry]) -> list[ChoiceOutput]:
        """Ends of the requests that no other engine is to go on with. Called under the lock."""
        outputs: list[ChoiceOutput] = []
        for entry in self._journal.entries():
            if entry.is_ending:
                outputs += self._end(entry, FinishReason.ABORT)
            elif entry.num_replays and not self._supervision.replays:
                outputs += self._end(entry, FinishReason.ERROR, _DIED)
            elif entry in suspects and entry.num_deaths >= MAX_DEATHS:
                self.supervision_stats.num_quarantined += 1
                save_quarantined(entry.message, entry.tokens, self._supervision.quarantine)
                outputs += self._end(entry, FinishReason.ERROR, _QUARANTINED)
        return outputs

    def _start_again(self) -> EngineChild | None:
        """Another engine that is ready, after a while if those before got nowhere; None if it is hopeless, or closed."""
        while self._num_futile < len(_BACK_OFF_S):
            if self._is_closing.wait(_BACK_OFF_S[self._num_futile]):
                return None
            self._num_futile += 1
            child = EngineChild(self._context, self._spec)
            try:
                ready = child.await_ready(is_given_up=self._is_closing.is_set)
                with self._lock:
                    self._info, self._stats = ready.info, ready.stats
                _logger.warning("another engine process is ready, %d", child.pid)
                return child
            except OctavoError as error:
                _logger.error("the engine process could not be started: %s", error)
            child.kill()
            child.free()
        return None

    def _finish(self, why: str) -> None:
        """End what is left and free the rest."""
        is_lost = not self._is_closing.is_set()
        with self._lock:
            self._death = why
            child, self._child = self._child, None
            self._forget_resets()
            reason = FinishReason.ERROR if is_lost else FinishReason.ABORT
            error = why if is_lost else None
            outputs = [
                one for entry in self._journal.entries() for one in self._end(entry, reason, error)
            ]
        self._publish(outputs)
        if child is not None:
            child.close()
        self._context.destroy(linger=0)
        if is_lost:
            self._on_lost()

    def _end(
        self, entry: Entry, reason: FinishReason, error: str | None = None
    ) -> list[ChoiceOutput]:
        """End a request without the engine; it is forgotten. Called under the lock."""
        outputs = ends(entry, reason.value, error)
        self._journal.pop(entry)
        return outputs

    def _forget_resets(self) -> None:
        for done in self._resets.values():
            done.set()  # what was stored went with the engine
        self._resets.clear()

    def _publish(self, outputs: list[ChoiceOutput]) -> None:
        message = StepOutputs(outputs, self._stats)
        self._reception.note(message)
        if not outputs:
            return
        try:
            self._on_outputs(message)
        except Exception:
            _logger.exception("delivering the outputs of a step failed")
