"""The requests that an engine process has in hand, as its client knows them: enough to have another go on with them.

Exactness makes the change invisible: a request's tokens depend on nothing but the request and its tokens so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from octavo.messages import AddRequest, ChoiceOutput, EngineTimeline

MAX_DEATHS: Final = 2
"""Engines that a request may take with it."""


@dataclass(slots=True)
class Entry:
    """One request and what is known of its answer."""

    message: AddRequest
    came_s: float
    tokens: list[list[int]]
    """Output ids of each choice."""
    is_over: list[bool]
    num_scores: int = 0
    """Prompt scores that came."""
    num_scores_again: int = 0
    """Of the prompt scores to come, those that came before, from another engine."""
    num_cached_tokens: list[int] = field(default_factory=list)
    is_sent: bool = False
    has_news: bool = False
    """Whether the engine at hand has told anything of it."""
    is_ending: bool = False
    """Whether its end was asked for."""
    num_deaths: int = 0
    """Engines that died with it at hand, one after the other, without news of it in between."""
    num_replays: int = 0


class Journal:
    """Requests by id, in order of arrival. Not thread-safe."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._num_unsent = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, request_id: str) -> Entry:
        return self._entries[request_id]

    @property
    def has_sent(self) -> bool:
        """Whether the engine at hand has work."""
        return len(self._entries) > self._num_unsent

    def add(self, message: AddRequest, now_s: float) -> Entry:
        """Note a request that was accepted."""
        tokens = [list(ids) for ids in message.output_token_ids]
        tokens += [[] for _ in range(message.params.n - len(tokens))]
        entry = Entry(message, now_s, tokens, [False] * message.params.n)
        entry.num_cached_tokens = [-1] * message.params.n
        self._entries[message.request_id] = entry
        self._num_unsent += 1
        return entry

    def ask_end(self, request_ids: Iterable[str]) -> list[str]:
        """Note that the ends of these were asked for; returns those that are here."""
        known = [one for one in request_ids if one in self._entries]
        for request_id in known:
            self._entries[request_id].is_ending = True
        return known

    def take(self, outputs: Sequence[ChoiceOutput]) -> list[ChoiceOutput]:
        """Note what an engine tells; returns what is new to those who wait. The last end of a request forgets it."""
        return [output for output in outputs if self._take(output)]

    def _take(self, output: ChoiceOutput) -> bool:
        entry = self._entries.get(output.request_id)
        if entry is None or entry.is_over[output.index]:
            return False  # of a choice that was complete when it was replayed
        entry.has_news = True
        entry.num_deaths = 0
        entry.tokens[output.index] += output.token_ids
        self._skip_scores(entry, output)
        if entry.num_cached_tokens[output.index] < 0:
            entry.num_cached_tokens[output.index] = output.num_cached_tokens
        output.num_cached_tokens = entry.num_cached_tokens[output.index]
        if output.timeline is not None and entry.num_replays:
            _extend(output.timeline, entry.came_s)
        if output.finish_reason is not None:
            entry.is_over[output.index] = True
            if all(entry.is_over):
                self.pop(entry)
        return True

    def _skip_scores(self, entry: Entry, output: ChoiceOutput) -> None:
        if output.prompt_scores:
            num_known = min(entry.num_scores_again, len(output.prompt_scores))
            entry.num_scores_again -= num_known
            output.prompt_scores = output.prompt_scores[num_known:]
            entry.num_scores += len(output.prompt_scores)

    def engine_died(self, is_in_step: Callable[[str], bool]) -> list[Entry]:
        """Note that the engine at hand is gone; returns the requests it is held against.

        Those of its last step that it had told nothing of yet; if there are none, all of that step. A request that
        stops every engine is found so: replayed one by one, the others come to news of theirs before.
        """
        sent = [entry for entry in self._entries.values() if entry.is_sent]
        in_step = [entry for entry in sent if is_in_step(entry.message.request_id)]
        suspects = [entry for entry in in_step if not entry.has_news] or in_step
        for entry in suspects:
            entry.num_deaths += 1
        for entry in sent:
            entry.is_sent = entry.has_news = False
            entry.num_replays += 1
        self._num_unsent = len(self._entries)
        return suspects

    def next_to_send(self) -> list[Entry]:
        """Requests to be given to the engine now.

        Those suspect of having stopped one go first, the least suspect before the others, and each alone until there
        is news of it; the rest waits meanwhile.
        """
        if not self._num_unsent:
            return []
        entries = self._entries.values()
        if any(entry.is_sent and entry.num_deaths for entry in entries):
            return []
        unsent = [entry for entry in entries if not entry.is_sent]
        suspects = [entry for entry in unsent if entry.num_deaths]
        return [min(suspects, key=lambda entry: entry.num_deaths)] if suspects else unsent

    def send(self, entry: Entry) -> AddRequest:
        """The request as an engine takes it up that knows nothing of it, and the note that it was given."""
        entry.is_sent = True
        self._num_unsent -= 1
        entry.num_scores_again = entry.num_scores
        if not any(entry.tokens):
            return entry.message
        return msgspec.structs.replace(entry.message, output_token_ids=entry.tokens)

    def pop(self, entry: Entry) -> None:
        """Forget a request."""
        del self._entries[entry.message.request_id]
        self._num_unsent -= not entry.is_sent

    def entries(self) -> list[Entry]:
        """All requests."""
        return list(self._entries.values())


def ends(entry: Entry, reason: str, error: str | None) -> list[ChoiceOutput]:
    """Ends of what is open of a request, without an engine."""
    return [
        ChoiceOutput(entry.message.request_id, index, finish_reason=reason, error=error)
        for index, is_over in enumerate(entry.is_over)
        if not is_over
    ]


def _extend(timeline: EngineTimeline, came_s: float) -> None:
    """Begin a timeline when the request came, not when it came to the engine that tells it."""
    timeline.replayed_s = max(0.0, timeline.added_s - came_s)
