"""What a front end tells of its requests while they run: to be counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from octavo.errors import QueueFull
from octavo.messages import EngineStats

if TYPE_CHECKING:
    from octavo.api.outputs_processor import RequestState


class Watcher(Protocol):
    """Is told by the router, in its thread. Must be quick: nothing is handed on meanwhile."""

    def stepped(self, stats: EngineStats) -> None:
        """The engine ran a step, or some in one call; these are its counters now."""
        ...

    def waited(self, num_tokens: int, seconds: float) -> None:
        """A choice got `num_tokens` more tokens, `seconds` after those before."""
        ...

    def ended(self, state: RequestState) -> None:
        """A request is over here and in the engine. Called once for each that was accepted."""
        ...

    def refused(self, error: QueueFull) -> None:
        """A request was not accepted: too many wait."""
        ...


class NobodyWatches:
    """Counts nothing."""

    def stepped(self, stats: EngineStats) -> None:
        """Nothing."""

    def waited(self, num_tokens: int, seconds: float) -> None:
        """Nothing."""

    def ended(self, state: RequestState) -> None:
        """Nothing."""

    def refused(self, error: QueueFull) -> None:
        """Nothing."""
