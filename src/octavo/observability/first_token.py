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
    """Seconds of a step = base_s + tokens * (token_s + context_s * mean position), as the engine has learned them.

    base_s is that of a step that only decodes. While requests decode, a step is held below max_step_s; it never has more
    than max_tokens.
    """

    base_s: float
    token_s: float
    context_s: float
    max_step_s: float
    max_tokens: int


def chunk_tokens(prices: StepPrices, price: float) -> float:
    """Prompt tokens of a step beside decoding requests, at `price` seconds each."""
    room = max(0.0, prices.max_step_s - prices.base_s)
    fitting = room / price if price > 0 else math.inf
    return min(max(fitting, _MIN_CHUNK), float(prices.max_tokens))


def predict_first_token_s(
    prices: StepPrices, num_own: int, num_ahead: int, *, is_decoding: bool
) -> float:
    """Seconds until a prompt of `num_own` tokens is computed, `num_ahead` of others before it, from a step's begin on.

    `is_decoding`: whether requests decode meanwhile, which cuts prompts to short steps.
    """
    price = prices.token_s + prices.context_s * num_own / 2
    num_tokens = num_own + num_ahead
    chunk = chunk_tokens(prices, price) if is_decoding else prices.max_tokens
    return num_tokens * price + math.ceil(num_tokens / chunk) * prices.base_s


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
        self._num_there = 0
        self._num_since = 0
        self._ratios: deque[float] = deque(maxlen=_NUM_LEARNED)
        self._started: deque[tuple[int, int]] = deque(maxlen=_NUM_LEARNED)

    def note_step(
        self,
        prices: StepPrices | None,
        *,
        num_decoding: int,
        num_ahead: int,
        is_busy: bool,
        now_s: float,
    ) -> None:
        """A step ended: what steps cost, requests that decode, prompt tokens that wait to be computed."""
        self._prices = prices
        self._is_decoding = num_decoding > 0
        self._is_busy = is_busy
        self._begun_s = now_s
        self._num_there, self._num_since = num_ahead, 0

    def note_arrival(self, num_tokens: int, now_s: float) -> None:
        """A prompt came."""
        if self._is_busy:
            self._num_since += num_tokens
        else:  # its step begins at once
            self._is_busy = True
            self._begun_s = now_s
            self._num_there += num_tokens

    def note_outcome(self, predicted_s: float, seconds: float) -> None:
        """Learn from a prediction of `predict_raw`."""
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
        share = self._computed_share
        num_own = max(1, round(num_tokens * share))
        if not self._is_busy:
            return predict_first_token_s(prices, num_own, 0, is_decoding=False)
        limit = float(prices.max_tokens)
        if self._is_decoding:
            limit = chunk_tokens(prices, prices.token_s + prices.context_s * num_own / 2)
        num_there = round(self._num_there * share)
        num_at_hand = min(num_there, int(limit))
        left_s = self._left_s(prices, num_at_hand, now_s)
        num_ahead = num_there - num_at_hand + round(self._num_since * share)
        will_decode = self._is_decoding or num_at_hand > 0
        return left_s + predict_first_token_s(prices, num_own, num_ahead, is_decoding=will_decode)

    @property
    def _computed_share(self) -> float:
        """Of the tokens of prompts, those that have to be computed."""
        num_tokens = sum(tokens for tokens, _ in self._started)
        num_cached = sum(cached for _, cached in self._started)
        return 1.0 if num_tokens == 0 else 1 - num_cached / num_tokens

    @property
    def _correction(self) -> float:
        return median(self._ratios) if len(self._ratios) >= _LEAST_LEARNED else 1.0

    def _left_s(self, prices: StepPrices, num_at_hand: int, now_s: float) -> float:
        """What is left of the step at hand. A run of decode steps is cut short by who comes: half a step, on average."""
        if num_at_hand == 0:
            return prices.base_s / 2
        whole_s = prices.base_s + num_at_hand * prices.token_s
        return max(0.0, whole_s - (now_s - self._begun_s))
