"""How long a step will take: learned while running, used to cut prefill so that decoding requests are not held up."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

import numpy as np

MIN_PREFILL_TOKENS: Final = 16
"""A cut never goes below this, so that prompts always advance."""

_FIRST_TRY_TOKENS: Final = 64
"""Prefill beside decoding requests before anything was measured."""

_MAX_DECODE_STEPS: Final = 64

_WINDOW: Final = 32
"""Samples kept of each kind: old ones describe another load."""


class StepModel:
    """Estimates seconds = base + tokens * (per_token + per_context * context), context being the mean position.

    `base` is the median of recent steps without prefill. The two others are a Theil-Sen fit over recent steps with
    prefill (medians of slopes and of what they leave): up to a quarter of the samples may be wild, as on a machine
    that is shared, without moving the estimate.
    """

    def __init__(self) -> None:
        self._decode_s: deque[float] = deque(maxlen=_WINDOW)
        self._prefill: deque[tuple[int, float, float]] = deque(maxlen=_WINDOW)
        self._fit: tuple[float, float, float] | None = None

    def observe(self, num_prefill_tokens: int, context: float, seconds: float) -> None:
        """Learn from one step. `context` is the mean position of its prefill tokens."""
        if num_prefill_tokens == 0:
            self._decode_s.append(seconds)
        elif num_prefill_tokens >= MIN_PREFILL_TOKENS or not self._prefill:
            # A few tokens cost as much as none: they say nothing of the price of one.
            self._prefill.append((num_prefill_tokens, context, seconds))
        else:
            return
        self._fit = None

    def estimate(self, num_prefill_tokens: int, context: float) -> float | None:
        """Seconds of a step, None before any prefill was seen."""
        if not self._prefill:
            return None
        base, per_token, per_context = self._fitted()
        return base + num_prefill_tokens * (per_token + per_context * context)

    def prices(self) -> tuple[float, float, float] | None:
        """Base, price per token and price per token and position, in seconds. None before any prefill was seen."""
        return self._fitted() if self._prefill else None

    def max_decode_steps(self, max_call_s: float) -> int:
        """Steps without prefill that fit into `max_call_s`: at least 1, and 1 until one was seen."""
        if not self._decode_s:
            return 1
        return max(1, int(min(max_call_s / max(self._decode_median(), 1e-6), _MAX_DECODE_STEPS)))

    def max_prefill_tokens(self, max_step_s: float, context: float) -> int:
        """Prefill tokens, the first of them at position `context`, that keep a step below `max_step_s`.

        At least MIN_PREFILL_TOKENS, whole multiples of it.
        """
        if not self._prefill:
            return _FIRST_TRY_TOKENS
        base, per_token, per_context = self._fitted()
        # The mean position of n tokens from `context` is context + n / 2: solve n * (price + slope * n) = room.
        room = max(0.0, max_step_s - base)
        price = per_token + per_context * context
        slope = per_context / 2
        root = price + math.sqrt(price * price + 4 * slope * room)
        tokens = 2 * room / root if root > 0 else math.inf
        whole = int(min(tokens, 2**20)) // MIN_PREFILL_TOKENS * MIN_PREFILL_TOKENS
        return max(MIN_PREFILL_TOKENS, whole)

    def _decode_median(self) -> float:
        ordered = sorted(self._decode_s)
        return ordered[len(ordered) // 2]

    def _fitted(self) -> tuple[float, float, float]:
        if self._fit is None:
            self._fit = self._solve()
        return self._fit

    def _solve(self) -> tuple[float, float, float]:
        base = self._decode_median() if self._decode_s else 0.0
        tokens, contexts, seconds = np.array(self._prefill, np.float64).T
        price = np.maximum(seconds - base, 0.0) / tokens  # [samples]
        gaps = contexts[:, None] - contexts[None, :]  # [samples, samples]
        # Samples from about the same place say nothing of a slope: their noise would be all of it.
        is_apart = gaps > 64.0
        slopes = (price[:, None] - price[None, :])[is_apart] / gaps[is_apart]
        per_context = max(0.0, float(np.median(slopes))) if slopes.size else 0.0
        per_token = max(0.0, float(np.median(price - per_context * contexts)))
        return base, per_token, per_context
