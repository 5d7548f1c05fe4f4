"""The time to the first token, predicted."""

from __future__ import annotations

import pytest

from octavo.observability.first_token import (
    FirstTokenForecast,
    PromptQueue,
    StepPrices,
)

PRICES = StepPrices(
    base_s=0.02, token_s=0.001, position_s=0.0, max_step_s=0.1, max_tokens=512, full_tokens=64
)


def seconds_of(prices: StepPrices, *lengths: int, is_decoding: bool = False) -> float:
    queue = PromptQueue(prices, is_decoding=is_decoding)
    for length in lengths:
        queue.add(0, length)
    seconds = 0.0
    while queue:
        seconds += queue.take_step()
    return seconds


def test_alone_a_prompt_costs_its_tokens_and_those_before_it() -> None:
    assert seconds_of(PRICES, 300) == pytest.approx(0.32)
    assert seconds_of(PRICES, 600) == pytest.approx(0.64)


def test_prompts_share_a_step_until_it_is_full() -> None:
    assert seconds_of(PRICES, 30, 30, 30) == pytest.approx(0.11)
    assert seconds_of(PRICES, 64, 30, 30) == pytest.approx(0.064 + 0.06 + 2 * 0.02)


def test_beside_decoding_requests_every_chunk_costs_a_decode_step_more() -> None:
    # Chunks of 80 tokens: (0.1 - 0.02) / 0.001.
    seconds = seconds_of(PRICES, 100, 300, is_decoding=True)
    assert seconds == pytest.approx(0.4 + 5 * 0.02)


def test_positions_far_back_cost_more() -> None:
    prices = StepPrices(0.0, 0.001, 1e-6, 0.1, 512)
    assert seconds_of(prices, 2000) == pytest.approx(4.0)


def test_a_decode_step_longer_than_allowed_leaves_the_least_chunk() -> None:
    slow = StepPrices(0.5, 0.001, 0.0, 0.1, 512)
    assert seconds_of(slow, 32, is_decoding=True) == pytest.approx(0.032 + 2 * 0.5)


def forecast(**told: object) -> FirstTokenForecast:
    values = {
        "num_decoding": 0, "waiting": [], "num_begun": 0, "is_busy": True, "now_s": 10.0, **told
    }  # fmt: skip
    one = FirstTokenForecast()
    one.note_step(PRICES, **values)  # type: ignore[arg-type]
    return one


def test_nothing_is_predicted_before_anything_was_computed() -> None:
    assert FirstTokenForecast().predict_s(10, 0.0) is None


def test_what_of_the_step_at_hand_is_over_is_not_waited_for() -> None:
    busy = forecast(waiting=[100])  # a step of 0.12 s
    assert busy.predict_s(80, 10.0) == pytest.approx(0.12 + 0.1)
    assert busy.predict_s(80, 10.09) == pytest.approx(0.03 + 0.1)
    assert busy.predict_s(80, 10.5) == pytest.approx(0.1)


def test_what_is_computed_of_a_prompt_that_waits_is_not_computed_again() -> None:
    busy = forecast(waiting=[500, 100], num_begun=400)
    # What is left of the first; then who waits beside one that decodes, 80 tokens a step.
    assert busy.predict_s(80, 10.0) == pytest.approx(0.12 + 0.18 + 3 * 0.02)


def test_who_came_before_is_computed_before() -> None:
    busy = forecast(num_decoding=3)
    assert busy.predict_s(80, 10.0) == pytest.approx(0.01 + 0.1)  # half a decode step, its own
    busy.note_arrival(80, 10.0)
    assert busy.predict_s(80, 10.0) == pytest.approx(0.01 + 0.2)


def test_an_idle_engine_begins_with_who_comes_first() -> None:
    idle = forecast(is_busy=False)
    assert idle.predict_s(100, 20.0) == pytest.approx(0.12)
    idle.note_arrival(100, 20.0)
    assert idle.predict_s(80, 20.05) == pytest.approx(0.07 + 0.1)


def test_predictions_are_corrected_by_how_they_came_out() -> None:
    idle = forecast(is_busy=False)
    for seconds in (0.18, 0.18, 0.9, 0.18, 0.18):
        idle.note_outcome(0.12, seconds)
    assert idle.predict_s(100, 20.0) == pytest.approx(0.18)


def test_what_was_cached_of_the_last_prompts_is_assumed_of_the_next() -> None:
    idle = forecast(is_busy=False)
    idle.note_start(1000, 900)
    idle.note_start(1000, 700)
    assert idle.predict_s(1000, 20.0) == pytest.approx(0.02 + 0.2)
