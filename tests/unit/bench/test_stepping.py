"""The window in which all requests decode."""

from __future__ import annotations

from octavo.bench.stepping import DecodeWindow
from octavo.messages import ChoiceOutput, StepOutputs


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
