"""Requests in flight by id: engine outputs go in, events come out at each request's sink."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from octavo.api.beam_search import BeamSearch
from octavo.api.outputs_processor import Event, RequestState
from octavo.api.processor import Prepared
from octavo.api.trace import RequestTrace, TraceLog
from octavo.api.watch import NobodyWatches, Watcher
from octavo.engine.admission import check_request
from octavo.engine.client import EngineClient
from octavo.errors import EngineDead, OctavoError, QueueFull
from octavo.messages import ChoiceOutput, StepOutputs
from octavo.outputs import Finished, FinishReason
from octavo.params import BeamSearchParams
from octavo.tokenization.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

Sink = Callable[[list[Event]], None]

_MAX_ENDING: Final = 1000
"""Requests that ended here and whose end in the engine is waited for."""


@dataclass(frozen=True, slots=True)
class _InFlight:
    state: RequestState
    sink: Sink


class Router:
    """The only one that calls the client and writes request states. Not thread-safe: its owner serialises the calls.

    A beam search is one request in flight here, and many to the engine: those of its steps.

    Invariants: every request added ends with one `Finished` per choice at its sink, or by `forget`; `watcher` is told
    once of its end, when the engine has told it too.
    """

    def __init__(self, client: EngineClient, tokenizer: Tokenizer) -> None:
        self._client = client
        self._tokenizer = tokenizer
        self._in_flight: dict[str, _InFlight] = {}
        self._searches: dict[str, BeamSearch] = {}
        self._search_of_step: dict[str, BeamSearch] = {}
        self._traces = TraceLog()
        self._ending: dict[str, RequestState] = {}
        self.watcher: Watcher = NobodyWatches()

    @property
    def num_in_flight(self) -> int:
        """Requests that have not ended."""
        return len(self._in_flight)

    def trace(self, request_id: str) -> RequestTrace | None:
        """The times of a request, if it is among those that ended last."""
        return self._traces.find(request_id)

    def add(self, prepared: Prepared, sink: Sink) -> RequestState:
        """Hand a request to the engine, or begin its search. Raises: InvalidRequest for an id in use, EngineDead."""
        request_id = prepared.request.request_id
        state = RequestState(
            prepared.request, self._tokenizer, prompt=prepared.prompt, watcher=self.watcher
        )
        self._in_flight[request_id] = _InFlight(state, sink)
        try:
            if prepared.search is None:
                self._client.add(prepared.request)
            else:
                self._begin_search(prepared, prepared.search)
        except BaseException as error:
            del self._in_flight[request_id]
            if isinstance(error, QueueFull):
                self.watcher.refused(error)
            raise
        return state

    def route(self, outputs: StepOutputs) -> None:
        """Pass on what one step produced; stop the engine's work on requests that ended here (stop strings)."""
        self.watcher.stepped(outputs.stats)
        self._pass_on(outputs.outputs)

    def _pass_on(self, outputs: Iterable[ChoiceOutput]) -> None:
        ended: list[str] = []
        for output in outputs:
            entry = self._in_flight.get(output.request_id)
            if entry is None:
                self._take_other(output)
                continue
            events = entry.state.process(output)
            if entry.state.is_finished:
                del self._in_flight[output.request_id]
                self._close(entry.state)
                if not entry.state.is_engine_done:
                    ended.append(output.request_id)
            if events:
                _log_errors(output.request_id, events)
                entry.sink(events)
        self._abort(ended)

    def end(
        self, request_ids: Iterable[str], reason: FinishReason, error: str | None = None
    ) -> None:
        """End requests now; their sinks get the end events."""
        known = [request_id for request_id in request_ids if request_id in self._in_flight]
        for request_id in known:
            entry = self._in_flight.pop(request_id)
            entry.sink(entry.state.end_all(reason, error))
            self._close(entry.state)
        self._stop(known)

    def end_all(self, reason: FinishReason, error: str | None = None) -> None:
        """`end` for every request in flight."""
        self.end(list(self._in_flight), reason, error)

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drop requests nobody waits for any more."""
        known = [request_id for request_id in request_ids if request_id in self._in_flight]
        for request_id in known:
            state = self._in_flight.pop(request_id).state
            state.end_all(FinishReason.ABORT)
            self._close(state)
        self._stop(known)

    def forget_all(self) -> None:
        """Drop every request in flight."""
        self.forget(list(self._in_flight))

    def _complete(self, output: ChoiceOutput) -> None:
        """Take what the engine tells of a request that ended here first."""
        state = self._ending.get(output.request_id)
        if state is None:
            return
        state.take_late(output)
        if state.is_engine_done:
            del self._ending[output.request_id]
            self.watcher.ended(state)

    def _close(self, state: RequestState) -> None:
        """Note that a request ended here. If the engine has not told its end yet, the watcher waits for it."""
        self._traces.add(state.trace)
        if state.is_engine_done:
            self.watcher.ended(state)
            return
        self._ending[state.request_id] = state
        if len(self._ending) > _MAX_ENDING:  # an engine that died without a word
            self._give_up([next(iter(self._ending))])

    def _give_up(self, request_ids: Iterable[str]) -> None:
        """Nothing more will be told of these."""
        for request_id in request_ids:
            state = self._ending.pop(request_id, None)
            if state is not None:
                self.watcher.ended(state)

    def _begin_search(self, prepared: Prepared, params: BeamSearchParams) -> None:
        info = self._client.info
        check_request(prepared.request, info)  # as a whole: its steps grow
        search = BeamSearch(prepared.request, params, info.vocab_size)
        self._searches[search.request_id] = search
        try:
            self._send_steps(search)
        except BaseException:
            self._stop([search.request_id])
            raise

    def _send_steps(self, search: BeamSearch) -> None:
        """Hand the next step of a search to the engine; there is none if the search is over."""
        for message in search.next_steps():
            self._client.add(message)
            self._search_of_step[message.request_id] = search

    def _take_step(self, search: BeamSearch, output: ChoiceOutput) -> None:
        """Take what became of one request of a search's step; with the last one, go on or end the search."""
        if output.finish_reason is None:
            return
        del self._search_of_step[output.request_id]
        reason = FinishReason(output.finish_reason)
        if reason is not FinishReason.LENGTH:
            self.end([search.request_id], reason, output.error)
            return
        if not search.take(output):
            return
        try:
            self._send_steps(search)
        except OctavoError as error:
            self.end([search.request_id], FinishReason.ERROR, str(error))
            return
        if not search.open_ids:
            del self._searches[search.request_id]
            self._pass_on(search.outputs())

    def _take_other(self, output: ChoiceOutput) -> None:
        """Take what the engine tells of a search's step, or of a request that ended here first."""
        search = self._search_of_step.get(output.request_id)
        if search is not None:
            self._take_step(search, output)
            return
        # Forgotten, or ended by a stop string; the engine's own end comes late.
        self._complete(output)

    def _stop(self, request_ids: Iterable[str]) -> None:
        """Stop the engine's work on requests; of a search, that of the step at hand."""
        at_engine: list[str] = []
        for request_id in request_ids:
            search = self._searches.pop(request_id, None)
            if search is None:
                at_engine.append(request_id)
                continue
            steps = [step for step in search.open_ids if self._search_of_step.pop(step, None)]
            at_engine += steps
            self._give_up([request_id])  # the engine knows the steps only
        self._abort(at_engine)

    def _abort(self, request_ids: list[str]) -> None:
        if not request_ids:
            return
        try:
            self._client.abort(request_ids)
        except EngineDead:
            _log.debug("abort after the engine's end: nothing left to stop")
            self._give_up(request_ids)


def _log_errors(request_id: str, events: list[Event]) -> None:
    for event in events:
        if isinstance(event, Finished) and event.reason is FinishReason.ERROR:
            _log.error("request %s failed: %s", request_id, event.error)
