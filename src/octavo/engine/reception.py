"""What a client of an engine knows of its requests in flight: ids in use, and how many wait for a first token."""

from __future__ import annotations

import threading
import time

from octavo.config import QueueLimits
from octavo.engine.queue_limit import WaitingRoom
from octavo.errors import InvalidRequest
from octavo.messages import AddRequest, EngineStats, StepOutputs
from octavo.observability.first_token import predict_first_token_s


class Reception:
    """Lets requests in and notes what becomes of them. Thread-safe."""

    def __init__(self, limits: QueueLimits) -> None:
        self._lock = threading.Lock()
        self._waiting_room = WaitingRoom(limits)
        self._num_open_by_id: dict[str, int] = {}

    def enter(self, message: AddRequest) -> None:
        """Let a request in. Raises: InvalidRequest for an id in use, QueueFull; it is not in then."""
        with self._lock:
            if message.request_id in self._num_open_by_id:
                raise InvalidRequest(
                    f"request id {message.request_id!r} is in use", param="request_id"
                )
            self._waiting_room.admit(message, time.monotonic())
            self._num_open_by_id[message.request_id] = message.params.n

    def note(self, outputs: StepOutputs) -> None:
        """Note the first tokens and the ends among these outputs."""
        with self._lock:
            now_s = time.monotonic()
            for output in outputs.outputs:
                self._waiting_room.leave(output.request_id, now_s)
                if output.finish_reason is not None:
                    self._close_choice(output.request_id)

    def predict_first_token_s(self, stats: EngineStats, num_tokens: int) -> float | None:
        """Seconds to the first token of a prompt of this length of which nothing is cached, if it were sent now."""
        if stats.prices is None:
            return None
        with self._lock:
            num_waiting = self._waiting_room.num_tokens
        num_ahead = max(0, num_waiting - stats.num_prefilled_tokens)
        is_decoding = stats.num_decoding > 0
        return predict_first_token_s(stats.prices, num_tokens, num_ahead, is_decoding=is_decoding)

    def _close_choice(self, request_id: str) -> None:
        self._num_open_by_id[request_id] -= 1
        if not self._num_open_by_id[request_id]:
            del self._num_open_by_id[request_id]
