"""What a client of an engine knows of its requests in flight: ids in use, and how many wait for a first token."""

from __future__ import annotations

import threading
import time

from octavo.config import QueueLimits
from octavo.engine.queue_limit import WaitingRoom
from octavo.errors import InvalidRequest
from octavo.messages import AddRequest, ChoiceOutput, StepOutputs
from octavo.observability.first_token import FirstTokenForecast


class Reception:
    """Lets requests in and notes what becomes of them. Thread-safe."""

    def __init__(self, limits: QueueLimits) -> None:
        self._lock = threading.Lock()
        self._waiting_room = WaitingRoom(limits)
        self._num_open_by_id: dict[str, int] = {}
        self._forecast = FirstTokenForecast()
        self._predicted_s: dict[str, float] = {}

    def enter(self, message: AddRequest) -> None:
        """Let a request in. Raises: InvalidRequest for an id in use, QueueFull; it is not in then."""
        with self._lock:
            request_id = message.request_id
            if request_id in self._num_open_by_id:
                raise InvalidRequest(f"request id {request_id!r} is in use", param="request_id")
            now_s, num_tokens = time.monotonic(), len(message.prompt_token_ids)
            self._waiting_room.admit(message, now_s)
            self._num_open_by_id[request_id] = message.params.n
            predicted_s = self._forecast.predict_raw_s(num_tokens, now_s)
            if predicted_s is not None:
                self._predicted_s[request_id] = predicted_s
            self._forecast.note_arrival(num_tokens, now_s)

    def note(self, outputs: StepOutputs) -> None:
        """Note the end of a step: first tokens and ends among its outputs, and what is left to do."""
        stats = outputs.stats
        with self._lock:
            now_s = time.monotonic()
            for output in outputs.outputs:
                self._note_output(output, now_s)
            self._forecast.note_step(
                stats.prices,
                num_decoding=stats.num_decoding,
                waiting=self._waiting_room.lengths,
                num_begun=stats.num_prefilled_tokens,
                is_busy=bool(self._num_open_by_id),
                now_s=now_s,
            )

    def predict_first_token_s(self, num_tokens: int) -> float | None:
        """Seconds to the first token of a prompt of this length of which nothing is cached, if it were sent now."""
        with self._lock:
            return self._forecast.predict_s(num_tokens, time.monotonic())

    def _note_output(self, output: ChoiceOutput, now_s: float) -> None:
        found = self._waiting_room.leave(output.request_id, now_s)
        predicted_s = self._predicted_s.pop(output.request_id, None)
        if found is not None and output.token_ids:  # not one that ended without a token
            num_tokens, waited_s = found
            self._forecast.note_start(num_tokens, output.num_cached_tokens)
            if predicted_s is not None:
                self._forecast.note_outcome(predicted_s, waited_s)
        if output.finish_reason is not None:
            self._close_choice(output.request_id)

    def _close_choice(self, request_id: str) -> None:
        self._num_open_by_id[request_id] -= 1
        if not self._num_open_by_id[request_id]:
            del self._num_open_by_id[request_id]
