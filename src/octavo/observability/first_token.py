"""When a request will have its first token, by what steps have cost so far."""

from __future__ import annotations

import math

import msgspec


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


def predict_first_token_s(
    prices: StepPrices, num_own: int, num_ahead: int, *, is_decoding: bool
) -> float:
    """Seconds until a prompt of `num_own` tokens is computed, `num_ahead` of others before it.

    `is_decoding`: whether requests decode meanwhile, which cuts prompts to short steps.
    """
    price = prices.token_s + prices.context_s * num_own / 2
    num_tokens = num_own + num_ahead
    if not is_decoding:
        return num_tokens * price
    room = max(0.0, prices.max_step_s - prices.base_s)
    fitting = room / price if price > 0 else math.inf
    chunk = min(max(fitting, 16.0), float(prices.max_tokens))
    num_steps = math.ceil(num_tokens / chunk)
    # The step at hand is half over, on average.
    return num_tokens * price + (num_steps + 0.5) * prices.base_s
