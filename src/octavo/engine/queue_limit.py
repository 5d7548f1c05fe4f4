"""How many requests may wait for their first token. One more is refused at once, with the time to come back after."""

from __future__ import annotations

import math
from typing import Final

from octavo.config import QueueLimits
from octavo.errors import QueueFull
from octavo.messages import AddRequest

_WEIGHT: Final = 0.2
"""Of the newest wait in the moving mean."""

_MAX_RETRY_S: Final = 60


class WaitingRoom:
    """The requests that have no first token yet, and how long the last ones waited for theirs. Not thread-safe."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._waiting: dict[str, tuple[int, float]] = {}
        self._num_tokens = 0
        self._mean_wait_s = 1.0

    @property
    def lengths(self) -> list[int]:
        """Tokens of the prompts that wait, oldest first."""
        return [num_tokens for num_tokens, _ in self._waiting.values()]

    def admit(self, message: AddRequest, now_s: float) -> None:
        """Let a request in. One of any length may wait alone, one that goes on was let in before. Raises: QueueFull."""
        if any(message.output_token_ids):
            return
        num_tokens = len(message.prompt_token_ids)
        most_requests, most_tokens = self._limits.max_requests, self._limits.max_tokens
        if most_requests is not None and len(self._waiting) >= most_requests:
            self._refuse(f"{len(self._waiting)} requests wait already, {most_requests} may")
        if (
            most_tokens is not None
            and self._waiting
            and self._num_tokens + num_tokens > most_tokens
        ):
            self._refuse(
                f"prompts of {self._num_tokens} tokens wait already, with this one more than {most_tokens}",
                "max_num_queued_tokens",
            )
        self._waiting[message.request_id] = (num_tokens, now_s)
        self._num_tokens += num_tokens

    def leave(self, request_id: str, now_s: float) -> tuple[int, float] | None:
        """Note that a request got its first token, or ended; its tokens and how long it waited, None the second time."""
        found = self._waiting.pop(request_id, None)
        if found is None:
            return None
        num_tokens, since_s = found
        self._num_tokens -= num_tokens
        self._mean_wait_s += _WEIGHT * (now_s - since_s - self._mean_wait_s)
        return num_tokens, now_s - since_s

    def _refuse(self, why: str, reason: str = "max_num_queued_reqs") -> None:
        retry_s = min(max(1, math.ceil(self._mean_wait_s)), _MAX_RETRY_S)
        raise QueueFull(f"{why}: try again in {retry_s} s", retry_after_s=retry_s, reason=reason)
