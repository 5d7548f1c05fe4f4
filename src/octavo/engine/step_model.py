"""How long a step will take: learned while running, used to cut prefill so that decoding requests are not held up."""

from __future__ import annotations

import math
from collections import deque
from typing import Final, NamedTuple

import numpy as np

from octavo.observability.first_token import num_fitting

MIN_PREFILL_TOKENS: Final = 16
"""A cut never goes below this, so that prompts always advance."""

_FIRST_TRY_TOKENS: Final = 64
"""Prefill beside decoding requests before anything was measured."""

_MAX_DECODE_STEPS: Final = 64

_WINDOW: Final = 64
"""Samples kept of each kind: old ones describe another load."""

_NUM_EARLY: Final = 16
_REFIT_EVERY: Final = 8
"""Samples after which the fit is made anew; among the first few, after each."""

_NUM_RECENT: Final = 5
"""Steps of a kind whose cost tells how fast the machine is at it just now."""

_USUAL: Final = np.array([8.0, 1.0, 0.003, 1.0, 0.001])
"""What a step costs (StepLoad's order, a 1 before it) in prices of one prompt token: where nothing is known yet."""

_PRIOR_WEIGHT: Final = 0.003
"""Of `_USUAL`, in samples."""

_NEAR: Final = 0.1
"""Share by which a sample may be off and still count in full."""


class StepLoad(NamedTuple):
    """What a step has to compute: tokens, and the sums of their positions."""

    num_decoding: float = 0
    decode_positions: float = 0
    num_prefill_tokens: float = 0
    prefill_positions: float = 0


class StepModel:
    """Estimates seconds = speed * (base + prices * decode load) + speed' * prices * prefill load.

    Base and prices are a fit of least squares of the relative error over the last steps with prefill and the last
    without. None of them is negative, what the samples leave open is taken in the usual proportion, and samples far off
    count less (Huber's weights). The speeds follow the last few steps: a machine that is shared gets slower and faster by
    half within seconds, at what waits for memory (decoding) not as at what computes (prompts).
    """

    def __init__(self) -> None:
        self._decode: deque[tuple[StepLoad, float]] = deque(maxlen=_WINDOW)
        self._prefill: deque[tuple[StepLoad, float]] = deque(maxlen=_WINDOW)
        self._decode_speed = _Speed()
        self._prefill_speed = _Speed()
        self._num_samples = 0
        self._fit = np.zeros(5)
        self._decoding = StepLoad()

    def observe(self, load: StepLoad, seconds: float) -> None:
        """Learn from one step."""
        seconds = max(seconds, 1e-9)
        self._decoding = StepLoad(load.num_decoding, load.decode_positions)
        (self._prefill if load.num_prefill_tokens else self._decode).append((load, seconds))
        self._num_samples += 1
        if self._num_samples <= _NUM_EARLY or self._num_samples % _REFIT_EVERY == 0:
            self._fit = _fitted([*self._prefill, *self._decode])
            # Measured anew, by the fit that holds now.
            self._decode_speed, self._prefill_speed = _Speed(), _Speed()
            for samples in (self._decode, self._prefill):
                for sample in list(samples)[-_NUM_RECENT:]:
                    self._note_speed(*sample)
        else:
            self._note_speed(load, seconds)

    def estimate(self, load: StepLoad) -> float | None:
        """Seconds of a step, None before any was seen."""
        if not self._num_samples:
            return None
        decode_s, prefill_s = self._fitted_s(load)
        return self._decode_speed.value * decode_s + self._prefill_speed.value * prefill_s

    def prices(self, decoding: StepLoad) -> tuple[float, float, float] | None:
        """Seconds: of a step that only decodes these, of a prompt token, and of its position; None before any prefill."""
        if not self._prefill:
            return None
        *_, token_s, position_s = self._prefill_speed.value * self._fit
        return self._decode_s(decoding), float(token_s), float(position_s)

    def max_decode_steps(self, max_call_s: float) -> int:
        """Steps without prefill that fit into `max_call_s`: at least 1, and 1 until one was seen."""
        if not self._decode:
            return 1
        step_s = max(self._decode_s(self._decoding), 1e-6)
        return max(1, int(min(max_call_s / step_s, _MAX_DECODE_STEPS)))

    def max_prefill_tokens(self, max_step_s: float, position: float) -> int:
        """Prefill tokens, the first of them at `position`, that keep a step below `max_step_s`.

        At least MIN_PREFILL_TOKENS, whole multiples of it.
        """
        prices = self.prices(self._decoding)
        if prices is None:
            return _FIRST_TRY_TOKENS
        base_s, token_s, position_s = prices
        tokens = num_fitting(max_step_s - base_s, token_s + position_s * position, position_s)
        whole = int(min(tokens, 2**20)) // MIN_PREFILL_TOKENS * MIN_PREFILL_TOKENS
        return max(MIN_PREFILL_TOKENS, whole)

    def _note_speed(self, load: StepLoad, seconds: float) -> None:
        decode_s, prefill_s = self._fitted_s(load)
        if load.num_prefill_tokens == 0:
            self._decode_speed.note(seconds / decode_s)
        else:
            left_s = seconds - self._decode_speed.value * decode_s
            self._prefill_speed.note(left_s / max(prefill_s, 1e-9))

    def _decode_s(self, decoding: StepLoad) -> float:
        return self._decode_speed.value * self._fitted_s(decoding)[0]

    def _fitted_s(self, load: StepLoad) -> tuple[float, float]:
        """Seconds at the usual speed: of the step and who decodes in it, and of its prompts."""
        decode_s = float(self._fit[0] + self._fit[1:3] @ load[:2])
        return max(decode_s, 1e-9), float(self._fit[3:] @ load[2:])


class _Speed:
    """Geometric mean of the last ratios of seconds to those of the fit, the highest and the lowest left out."""

    def __init__(self) -> None:
        self._logs: deque[float] = deque(maxlen=_NUM_RECENT)
        self.value = 1.0

    def note(self, ratio: float) -> None:
        """Learn from one step."""
        self._logs.append(math.log(max(ratio, 0.01)))
        middle = sorted(self._logs)[1:-1] or self._logs
        self.value = math.exp(sum(middle) / len(middle))


def _fitted(samples: list[tuple[StepLoad, float]]) -> np.ndarray:
    """Base and prices [5], by iteratively reweighted least squares."""
    loads = np.array([(1.0, *load) for load, _ in samples])  # [samples, 5]
    seconds = np.array([seconds for _, seconds in samples])
    unit_s = float(np.median(seconds / (loads @ _USUAL)))
    # Of each sample's seconds, if all was as usual.
    shares = loads * (_USUAL * unit_s) / seconds[:, None]
    weights = np.ones(len(samples))
    prior = _PRIOR_WEIGHT * np.eye(5)
    for _ in range(4):
        weighted = shares * weights[:, None]
        matrix = shares.T @ weighted + prior
        target = weighted.sum(axis=0) + _PRIOR_WEIGHT
        factors = np.linalg.solve(matrix, target)
        is_kept = factors >= 0
        if not is_kept.all():
            factors = np.zeros(5)
            part = np.linalg.solve(matrix[np.ix_(is_kept, is_kept)], target[is_kept])
            factors[is_kept] = np.maximum(part, 0.0)
        off = np.abs(shares @ factors - 1)
        weights = np.minimum(1.0, _NEAR / np.maximum(off, 1e-6))
    fit: np.ndarray = factors * _USUAL * unit_s
    return fit
