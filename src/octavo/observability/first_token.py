"""When a request will have its first token, by what steps have cost so far."""

from __future__ import annotations

import math
from collections import deque
from statistics import median
from typing import Final

import msgspec

_MIN_CHUNK: Final = 16
_NUM_LEARNED: Final = 32
_LEAST_LEARNED: Final = 5


class StepPrices(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """Seconds of a step = base_s + sum over its prompt tokens of (token_s + position_s * position), as learned.

    base_s is that of a step that only decodes who decodes now. While requests decode, a step is held below max_step_s; it
    never has more than max_tokens. One with full_tokens or more ends with the prompt that it finishes.
    """

    base_s: float
    token_s: float
    position_s: float
    max_step_s: float
    max_tokens: int
    full_tokens: int = 1

    def chunk_tokens(self, position: int) -> int:
        """Prompt tokens of a step beside decoding requests, the first of them at `position`."""
        price_s = self.token_s + self.position_s * position
        fitting = num_fitting(self.max_step_s - self.base_s, price_s, self.position_s)
        return int(min(max(fitting, _MIN_CHUNK), self.max_tokens))


def num_fitting(room_s: float, price_s: float, position_s: float) -> float:
    """Prompt tokens that cost `room_s`, the first of them `price_s` and each `position_s` more than the one before it."""
    # The mean price of n tokens is price + n / 2 * slope: solve n * (price + slope / 2 * n) = room.
    room_s = max(0.0, room_s)
    root = price_s + math.sqrt(price_s * price_s + 2 * position_s * room_s)
    return 2 * room_s / root if root > 0 else math.inf


class PromptQueue:
    """Prompts in the order in which they are computed, as [position reached, length]."""

    def __init__(self, prices: StepPrices, *, is_decoding: bool) -> None:
        """`is_decoding`: whether requests decode meanwhile, which cuts prompts to short steps."""
        self._prices = prices
        self._is_decoding = is_decoding
        self._prompts: deque[tuple[int, int]] = deque()

    def __bool__(self) -> bool:
        return bool(self._prompts)

    def add(self, position: int, length: int) -> None:
        """Put a prompt behind the others."""
        if position < length:
            self._prompts.append((position, length))

    def take_step(self) -> float:
        """Compute what one step holds; its seconds."""
        prices = self._prices
        room = prices.max_tokens
        if self._is_decoding:
            room = prices.chunk_tokens(self._prompts[0][0])
        num_taken, seconds = 0, prices.base_s
        while room and self._prompts:
            position, length = self._prompts.popleft()
            num_tokens = min(room, length - position)
            seconds += num_tokens * (
                prices.token_s + prices.position_s * (position + num_tokens / 2)
            )
            num_taken += num_tokens
            room -= num_tokens
            if position + num_tokens < length:
                self._prompts.appendleft((position + num_tokens, length))
                break
            self._is_decoding = True
            if num_taken >= prices.full_tokens:
                break
        return seconds


class FirstTokenForecast:
    """Predicts from what is told of each step, and corrects itself by how its predictions came out. Not thread-safe.

    Of prompts that wait, those that were there at the last step's end are taken to be in the step at hand, as far as
    they fit; who comes later is behind them. What is cached of a prompt is not known: the share that was of the last
    ones is assumed. All times are of one monotonic clock.
    """

    def __init__(self) -> None:
        self._prices: StepPrices | None = None
        self._is_decoding = False
        self._is_busy = False
        self._begun_s = 0.0
        self._num_begun = 0
        self._there: list[int] = []
        self._since: list[int] = []
        self._ratios: deque[float] = deque(maxlen=_NUM_LEARNED)
        self._started: deque[tuple[int, int]] = deque(maxlen=_NUM_LEARNED)

    def note_step(
        self,
        prices: StepPrices | None,
        *,
        num_decoding: int,
        waiting: list[int],
        num_begun: int,
        is_busy: bool,
        now_s: float,
    ) -> None:
        """A step ended: what steps cost, requests that decode, lengths of the prompts that have no first token yet.

        `waiting`, which is kept, has the oldest first; `num_begun` of their tokens, those of the first, are computed.
        """
        self._prices = prices
        self._is_decoding = num_decoding > 0
        self._is_busy = is_busy
        self._begun_s = now_s
        self._there, self._num_begun = waiting, num_begun
        self._since.clear()

    def note_arrival(self, num_tokens: int, now_s: float) -> None:
        """A prompt came."""
        if self._is_busy:
            self._since.append(num_tokens)
        else:  # its step begins at once
            self._is_busy = True
            self._begun_s = now_s
            self._there.append(num_tokens)

    def note_outcome(self, predicted_s: float, seconds: float) -> None:
        """Learn from a prediction of `predict_raw_s`."""
        if predicted_s > 0:
            self._ratios.append(min(max(seconds / predicted_s, 0.2), 5.0))

    def note_start(self, num_tokens: int, num_cached: int) -> None:
        """A prompt of this length was found to have so many cached tokens."""
        self._started.append((num_tokens, num_cached))

    def predict_s(self, num_tokens: int, now_s: float) -> float | None:
        """Seconds to the first token of a prompt of this length, if it came now; None if nothing is known."""
        raw = self.predict_raw_s(num_tokens, now_s)
        return None if raw is None else raw * self._correction

    def predict_raw_s(self, num_tokens: int, now_s: float) -> float | None:
        """The same before correction."""
        prices = self._prices
        if prices is None:
            return None
        share = self._cached_share
        queue = PromptQueue(prices, is_decoding=self._is_busy and self._is_decoding)
        seconds = 0.0
        if self._is_busy:
            num_begun = self._num_begun
            for length in self._there:
                done = min(num_begun, length)
                num_begun -= done
                queue.add(done or _cached(length, share), length)
            # A run of decode steps is cut short by who comes: half a step, on average.
            whole_s = queue.take_step() - (now_s - self._begun_s) if queue else prices.base_s / 2
            seconds += max(0.0, whole_s)
            for length in self._since:
                queue.add(_cached(length, share), length)
        queue.add(_cached(num_tokens, share), num_tokens)
        while queue:
            seconds += queue.take_step()
        return seconds

    @property
    def _cached_share(self) -> float:
        """Of the tokens of prompts, those that were found in the cache."""
        num_tokens = sum(tokens for tokens, _ in self._started)
        return sum(cached for _, cached in self._started) / num_tokens if num_tokens else 0.0

    @property
    def _correction(self) -> float:
        return median(self._ratios) if len(self._ratios) >= _LEAST_LEARNED else 1.0


def _cached(length: int, share: float) -> int:
    """Where a prompt begins to be computed. Its last token always is."""
    return min(round(length * share), length - 1)
