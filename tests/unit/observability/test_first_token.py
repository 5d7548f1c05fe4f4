"""The time to the first token, predicted."""

from __future__ import annotations

import pytest

from octavo.observability.first_token import StepPrices, predict_first_token_s

PRICES = StepPrices(base_s=0.02, token_s=0.001, context_s=0.0, max_step_s=0.1, max_tokens=512)


def test_alone_a_prompt_costs_its_tokens_and_those_before_it() -> None:
    assert predict_first_token_s(PRICES, 300, 0, is_decoding=False) == pytest.approx(0.3)
    assert predict_first_token_s(PRICES, 300, 700, is_decoding=False) == pytest.approx(1.0)


def test_beside_decoding_requests_every_chunk_costs_a_decode_step_more() -> None:
    # Chunks of 80 tokens: (0.1 - 0.02) / 0.001.
    seconds = predict_first_token_s(PRICES, 300, 100, is_decoding=True)
    assert seconds == pytest.approx(0.4 + 5.5 * 0.02)


def test_positions_far_back_cost_more() -> None:
    prices = StepPrices(0.0, 0.001, 1e-6, 0.1, 512)
    assert predict_first_token_s(prices, 2000, 0, is_decoding=False) == pytest.approx(4.0)


def test_a_decode_step_longer_than_allowed_leaves_the_least_chunk() -> None:
    slow = StepPrices(0.5, 0.001, 0.0, 0.1, 512)
    assert predict_first_token_s(slow, 32, 0, is_decoding=True) == pytest.approx(0.032 + 2.5 * 0.5)
