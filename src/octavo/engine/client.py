"""How a front end speaks to an engine: in its own thread, or to one that runs in another."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Final, Protocol

from octavo.config import NO_LIMITS, QueueLimits
from octavo.engine.engine import Engine
from octavo.engine.reception import Reception
from octavo.errors import EngineDead
from octavo.messages import (
    AddRequest,
    EngineInfo,
    EngineStats,
    StepOutputs,
    failed_outputs,
)

_logger = logging.getLogger(__name__)

OnOutputs = Callable[[StepOutputs], None]

_IDLE_S: Final = 1.0
"""After this long with nothing to do the engine is checked."""

_ANNOUNCED_S: Final = 0.010
"""How long the next step waits for an abort that is on its way from another process."""

_Message = AddRequest | tuple[str, ...] | threading.Event
"""What a front end sends: a request, ids to be aborted, an event to be set once the prefix cache is reset."""


class EngineClient(Protocol):
    """Requests go in, the outputs of steps come out. Each added choice gets exactly one finish_reason."""

    @property
    def info(self) -> EngineInfo:
        """What is loaded."""
        ...

    def add(self, message: AddRequest) -> None:
        """Send a request. Raises: InvalidRequest, CapacityError, QueueFull, EngineDead; it was not accepted then."""
        ...

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests within a step; ids that are unknown or ended are ignored."""
        ...

    def reset_prefix_cache(self) -> None:
        """Forget what is stored of earlier prompts. It is done on return."""
        ...

    def outputs(self) -> StepOutputs:
        """The next outputs. In-process this runs one step, with nothing to do it returns at once; else it waits."""
        ...

    def stats(self) -> EngineStats:
        """Counters and gauges as of the last step."""
        ...

    def predict_first_token_s(self, num_tokens: int) -> float | None:
        """Seconds to the first token of a prompt of this length, if it were sent now; None if nothing is known."""
        ...

    def close(self) -> None:
        """End all requests and free the model. Idempotent."""
        ...


class InProcessClient:
    """Calls the engine directly: the caller's thread runs the steps."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def info(self) -> EngineInfo:
        """What is loaded."""
        return self._engine.info

    def add(self, message: AddRequest) -> None:
        """Send a request."""
        self._engine.add(message)

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests now; the next outputs tell so."""
        self._engine.abort(request_ids)

    def reset_prefix_cache(self) -> None:
        """Forget what is stored of earlier prompts."""
        self._engine.reset_prefix_cache()

    def outputs(self) -> StepOutputs:
        """Run one step."""
        return self._engine.step()

    def stats(self) -> EngineStats:
        """Counters and gauges."""
        return self._engine.stats()

    def predict_first_token_s(self, num_tokens: int) -> float | None:
        """Nobody waits in this thread: nothing is predicted."""
        return None

    def fill_kv(self, value: float) -> None:
        """Overwrite all KV memory. For tests."""
        self._engine.fill_kv(value)

    def close(self) -> None:
        """Free the model. Ends of unfinished requests are still in `outputs`."""
        self._engine.close()


class ThreadedClient:
    """Runs the engine loop in a thread of its own, which sleeps while there is nothing to do.

    `add` and `abort` may come from any thread; they are taken over between two steps.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        on_outputs: OnOutputs | None = None,
        limits: QueueLimits = NO_LIMITS,
        num_announced_aborts: Callable[[], int] | None = None,
    ) -> None:
        """`on_outputs` is called in the engine's thread after each step; without it, outputs wait for `outputs`.

        `num_announced_aborts` counts the calls of `abort` that will have been made when what is on its way is here.
        """
        self._engine = engine
        self._reception = Reception(limits)
        self._outputs: SimpleQueue[StepOutputs] = SimpleQueue()
        self._has_callback = on_outputs is not None
        self._on_outputs: OnOutputs = on_outputs or self._outputs.put
        self._stats = engine.stats()
        self._num_announced_aborts = num_announced_aborts or (lambda: 0)
        # Guarded by _wake: what other threads write.
        self._wake = threading.Condition()
        self._inbox: list[_Message] = []
        self._num_aborts = 0
        self._is_closing = False
        self._is_checked = False  # the engine's thread's own
        self._thread = threading.Thread(target=self._loop, name="octavo-engine", daemon=True)
        self._thread.start()

    @property
    def info(self) -> EngineInfo:
        """What is loaded."""
        return self._engine.info

    def add(self, message: AddRequest) -> None:
        """Check a request in the caller's thread, and send it. Raises: QueueFull if too many wait."""
        self._engine.check(message)
        with self._wake:
            if self._is_closing:
                raise EngineDead("the engine is closed")
            self._reception.enter(message)
            self._send(message)

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests before the next step."""
        with self._wake:
            self._num_aborts += 1
            self._send(tuple(request_ids))

    def reset_prefix_cache(self) -> None:
        """Forget what is stored of earlier prompts, and wait until that is done: a step at most."""
        done = threading.Event()
        with self._wake:
            if self._is_closing:
                return
            self._send(done)
        done.wait()

    def outputs(self) -> StepOutputs:
        """Wait for the outputs of a step. Raises: RuntimeError if they go to a callback."""
        if self._has_callback:
            raise RuntimeError("the outputs of this client go to its callback")
        return self._outputs.get()

    def stats(self) -> EngineStats:
        """Counters and gauges as of the last step."""
        return self._stats

    def predict_first_token_s(self, num_tokens: int) -> float | None:
        """Seconds to the first token of a prompt of this length of which nothing is cached, if it were sent now."""
        return self._reception.predict_first_token_s(num_tokens)

    def close(self) -> None:
        """End all requests, free the model, wait for the thread. Not to be called from the callback."""
        with self._wake:
            self._is_closing = True
            self._engine.interrupt()
            self._wake.notify()
        self._thread.join()

    def _send(self, item: _Message) -> None:
        """Put something into the inbox, which _wake guards, and have the engine look there after the step at hand."""
        self._inbox.append(item)
        self._engine.interrupt()
        self._wake.notify()

    def _loop(self) -> None:
        while (inbox := self._wait()) is not None:
            try:
                for item in inbox:
                    self._apply(item)
            except Exception as error:
                self._engine.fail(error)
            if self._engine.has_work:
                self._publish(self._engine.step())
        self._engine.close()
        self._publish(self._engine.step())

    def _wait(self) -> list[_Message] | None:
        """What arrived since the last step; sleeps while there is nothing to do. None at the end."""
        with self._wake:
            while not (self._inbox or self._is_closing or self._engine.has_work):
                self._sleep()
            self._is_checked = False
            self._engine.resume()
            self._await_announced()
            inbox, self._inbox = self._inbox, []
            if not self._is_closing:
                return inbox
        for item in inbox:
            self._apply(item)  # accepted requests get their end, even now
        return None

    def _await_announced(self) -> None:
        """Wait for aborts that are on their way: a step would compute what nobody wants, and hold them up."""
        if self._num_announced_aborts() <= self._num_aborts:
            return
        if not self._wake.wait_for(self._is_told_all, _ANNOUNCED_S):
            self._num_aborts = self._num_announced_aborts()  # whatever became of them: not again
        self._engine.resume()

    def _is_told_all(self) -> bool:
        return self._is_closing or self._num_announced_aborts() <= self._num_aborts

    def _sleep(self) -> None:
        """Wait for something to do. The first time that nothing comes for a while, check the engine's invariants."""
        if self._wake.wait(None if self._is_checked else _IDLE_S):
            return
        self._is_checked = True
        self._wake.release()  # who adds a request meanwhile does not wait for the check
        try:
            self._engine.check_quietly()
            num_broken = self._stats.num_broken_invariants
            self._stats = self._engine.stats()
            if self._stats.num_broken_invariants != num_broken:
                self._publish(StepOutputs([], self._stats))
        finally:
            self._wake.acquire()

    def _apply(self, item: _Message) -> None:
        if isinstance(item, threading.Event):
            self._engine.reset_prefix_cache()
            self._stats = self._engine.stats()
            item.set()
            return
        if isinstance(item, tuple):
            self._engine.abort(item)
            return
        try:
            self._engine.add(item)
        except Exception as error:
            # It was checked already: the engine died while the request was on its way, or has a fault.
            self._publish(failed_outputs(item, str(error), self._engine.stats()))

    def _publish(self, outputs: StepOutputs) -> None:
        self._stats = outputs.stats
        self._reception.note(outputs)
        try:
            self._on_outputs(outputs)
        except Exception:
            # A front end that went away must not take the other requests' engine with it.
            _logger.exception("delivering the outputs of a step failed")
