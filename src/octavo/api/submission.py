"""From the engine's thread into the event loop, and there to the readers of each group of requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Self

from octavo.api.outputs_processor import Event, RequestState
from octavo.api.processor import Prepared
from octavo.api.router import Router
from octavo.messages import StepOutputs


class Submission:
    """Requests in flight that are answered together. Entering starts them, leaving stops what has not ended.

    Iterating yields lists of (position of the request, event): all that has come since the last one. How long events
    wait for the reader is noted in the requests' traces.
    """

    def __init__(
        self,
        router: Router,
        inbox: Inbox,
        prepared: Sequence[Prepared],
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.states: list[RequestState] = []
        self._router = router
        self._inbox = inbox
        self._prepared = prepared
        self._clock = clock
        self._queue: asyncio.Queue[tuple[int, list[Event]]] = asyncio.Queue()
        self._filled_s = 0.0  # when the first event came that is in the queue

    async def __aenter__(self) -> Self:
        self._inbox.attach(asyncio.get_running_loop())
        try:
            for position, prepared in enumerate(self._prepared):
                self.states.append(self._router.add(prepared, self._sink(position)))
        except BaseException:
            self._stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    async def __aiter__(self) -> AsyncIterator[list[tuple[int, Event]]]:
        while not (self._queue.empty() and all(state.is_finished for state in self.states)):
            batch = [await self._queue.get()]
            waited_s = self._clock() - self._filled_s
            while not self._queue.empty():
                batch.append(self._queue.get_nowait())
            states = [self.states[position] for position in {position for position, _ in batch}]
            for state in states:
                state.trace.event_wait_s += waited_s
            # The queue is empty: of those that are finished now, the last event is in this batch.
            last = [state for state in states if state.is_finished]
            yield [(position, event) for position, events in batch for event in events]
            for state in last:
                state.trace.deliver()

    def _sink(self, position: int) -> Callable[[list[Event]], None]:
        def put(events: list[Event]) -> None:
            if self._queue.empty():
                self._filled_s = self._clock()
            self._queue.put_nowait((position, events))

        return put

    def _stop(self) -> None:
        self._router.forget(prepared.request.request_id for prepared in self._prepared)
        for state in self.states:
            state.trace.deliver()


class Inbox:
    """Carries step outputs from the engine's thread into the event loop of the callers."""

    def __init__(self) -> None:
        self.router: Router | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Deliver to this loop from now on. Raises: RuntimeError if another one still waits for answers."""
        if loop is self._loop:
            return
        if (
            self._loop is not None
            and not self._loop.is_closed()
            and self.router
            and self.router.num_in_flight
        ):
            raise RuntimeError("an AsyncLLM serves one event loop at a time")
        self._loop = loop

    def deliver(self, outputs: StepOutputs) -> None:
        """Called from the engine's thread."""
        if self._loop is None or self.router is None:
            return
        try:
            self._loop.call_soon_threadsafe(self.router.route, outputs)
        except RuntimeError:  # the loop was closed with requests in flight: nobody waits any more
            self.router.forget_all()
