"""The window in which all requests decode."""

from __future__ import annotations

import pytest

from octavo.bench.stepping import DecodeWindow
from octavo.messages import ChoiceOutput, EngineStats, StepOutputs


def step(*ids: str, tokens: int = 1, finished: str = "") -> StepOutputs:
    """Outputs of a step that gave these requests tokens."""
    outputs = [ChoiceOutput(i, 0, [7] * tokens) for i in ids]
    return StepOutputs(
        [*outputs, *([ChoiceOutput(finished, 0, finish_reason="length")] if finished else [])]
    )


def test_it_opens_with_the_last_first_token_and_counts_what_comes_after() -> None:
    window = DecodeWindow(2, 4)
    window.observe(step("a"), 1.0)
    window.observe(step("a"), 2.0)
    window.observe(step("a", "b"), 3.0)
    assert window.tokens_per_s is None
    window.observe(step("a", "b"), 4.0)
    window.observe(step("a", "b"), 5.0)
    assert window.is_over
    window.observe(step("a", "b"), 6.0)
    assert (window.num_tokens, window.tokens_per_s) == (4, 2.0)


def test_its_span_tells_what_was_spent_outside_the_model() -> None:
    opened: list[int] = []
    window = DecodeWindow(1, 5, lambda: opened.append(window.num_tokens))
    for now_s, num_steps, model_s, tokens in ((1.0, 3, 0.5, 1), (2.0, 4, 1.0, 1), (5.0, 8, 3.5, 4)):
        outputs = step("a", tokens=tokens)
        outputs.stats = EngineStats(num_steps=num_steps, model_s=model_s)
        window.observe(outputs, now_s)
    assert opened == [0]
    assert window.span is not None
    assert (window.span.seconds, window.span.model_s, window.span.num_steps) == (4.0, 3.0, 5)
    assert window.span.outside_share == pytest.approx(0.25)


def test_several_tokens_a_step_are_counted_as_such() -> None:
    window = DecodeWindow(1, 7)
    window.observe(step("a"), 0.0)
    window.observe(step("a", tokens=4), 1.0)
    window.observe(step("a", tokens=4), 2.0)
    assert (window.is_over, window.tokens_per_s) == (True, 4.0)


def test_it_ends_with_the_first_request_that_ends() -> None:
    window = DecodeWindow(2, 100)
    window.observe(step("a", "b"), 0.0)
    window.observe(step("a", "b", finished="a"), 1.0)
    window.observe(step("b"), 2.0)
    assert (window.is_over, window.tokens_per_s) == (True, 2.0)


def test_one_that_ends_before_all_began_never_opens() -> None:
    window = DecodeWindow(2, 100)
    window.observe(step("a", finished="a"), 0.0)
    assert (window.is_over, window.tokens_per_s) == (True, None)
