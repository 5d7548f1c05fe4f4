"""Stop strings over streamed text, whatever tokens the text is cut into."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Passes text through up to the first stop string; holds back what may be the beginning of one.

    Of several stop strings the one that is completed first counts, of those completed by the same character the
    longest: the outcome does not depend on how the text is cut into tokens. Costs O(1) per character and stop string
    (Knuth-Morris-Pratt).
    """

    def __init__(self, stops: Sequence[str], *, keeps_stop: bool = False) -> None:
        self._stops = stops
        self._borders = [_borders(stop) for stop in stops]
        self._matched = [0] * len(stops)  # characters of each stop string that the text ends with
        self._keeps_stop = keeps_stop
        self._held = ""

    def push(self, text: str, *, may_stop: bool = True) -> tuple[str, str | None]:
        """Add text; return what may be shown now, and the stop string if one was completed.

        With `may_stop` false a completed stop string is ordinary text.
        """
        if not self._stops:
            return text, None
        buffer = self._held + text
        for end in range(len(self._held) + 1, len(buffer) + 1):
            found = self._advance(buffer[end - 1])
            if found is not None and may_stop:
                self._held = ""
                return buffer[: end if self._keeps_stop else end - len(found)], found
        num_shown = len(buffer) - max(self._matched)
        self._held = buffer[num_shown:]
        return buffer[:num_shown], None

    def flush(self) -> str:
        """The text still held back; called when nothing more can come."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> str | None:
        """Feed one character to every automaton; return the longest stop string that it completes."""
        found: str | None = None
        for i, stop in enumerate(self._stops):
            borders, length = self._borders[i], self._matched[i]
            while length and stop[length] != character:
                length = borders[length - 1]
            if stop[length] == character:
                length += 1
            if length == len(stop):
                if found is None or len(stop) > len(found):
                    found = stop
                length = borders[length - 1]
            self._matched[i] = length
        return found


def _borders(stop: str) -> list[int]:
    """For each prefix of `stop`, the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(stop)
    length = 0
    for i in range(1, len(stop)):
        while length and stop[i] != stop[length]:
            length = borders[length - 1]
        if stop[i] == stop[length]:
            length += 1
        borders[i] = length
    return borders
