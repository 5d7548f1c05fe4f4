"""The search itself against others: every sequence there is, and Hugging Face's."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from octavo.api.beam_search import BeamSearch
from octavo.errors import InvalidRequest
from octavo.messages import AddRequest, ChoiceOutput, TokenScore
from octavo.params import MAX_BEAM_WIDTH, BeamSearchParams

Scorer = Callable[[tuple[int, ...]], np.ndarray]
"""Log-probabilities of the token after a sequence."""


def run(
    scorer: Scorer, params: BeamSearchParams, *, eos: Sequence[int] = (), n: int | None = None
) -> list[ChoiceOutput]:
    width = params.beam_width
    request = AddRequest("s", [1], params.sampling(width if n is None else n), list(eos))
    search = BeamSearch(request, params, len(scorer(())))
    while steps := search.next_steps():
        assert len(steps) <= width
        for step in reversed(steps):  # the order in which they are answered does not matter
            [known] = step.output_token_ids or [[]]
            assert step.params.max_tokens == len(known) + 1
            assert not step.eos_token_ids
            logprobs = scorer(tuple(known))
            top = np.argsort(-logprobs, kind="stable")[: step.num_candidates]
            score = TokenScore(
                int(top[0]), float(logprobs[top[0]]), 1, top.tolist(), logprobs[top].tolist()
            )
            search.take(ChoiceOutput(step.request_id, 0, [int(top[0])], [score]))
    return search.outputs()


def logprob(output: ChoiceOutput) -> float:
    return sum(score.logprob for score in output.scores)


def random_scorer(vocab_size: int, seed: int) -> Scorer:
    def score(sequence: tuple[int, ...]) -> np.ndarray:
        logits = 2 * np.random.default_rng([seed, 7, *sequence]).standard_normal(vocab_size)
        logprobs: np.ndarray = logits - np.log(np.exp(logits).sum())
        return logprobs

    return score


def every_sequence(
    scorer: Scorer, vocab_size: int, length: int, eos: int
) -> list[tuple[float, tuple[int, ...]]]:
    """All sequences that end with `eos` or have `length` tokens, with their log-probabilities."""
    found = []
    for size in range(1, length + 1):
        for ids in itertools.product(range(vocab_size), repeat=size):
            is_whole = eos not in ids[:-1] and (ids[-1] == eos or size == length)
            if is_whole:
                found.append(
                    (sum(float(scorer(ids[:i])[token]) for i, token in enumerate(ids)), ids)
                )
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0, -1.0])
def test_a_search_wide_enough_finds_the_best_of_all_sequences(
    seed: int, length_penalty: float
) -> None:
    scorer = random_scorer(4, seed)
    # Where long sequences gain, "never" waits for them; else what is short and good was seen before.
    params = BeamSearchParams(
        beam_width=64, max_tokens=3, length_penalty=length_penalty, early_stopping="never"
    )
    found = run(scorer, params, eos=[2], n=8)
    ranked = sorted(
        every_sequence(scorer, 4, 3, eos=2), key=lambda one: -one[0] / len(one[1]) ** length_penalty
    )
    assert [tuple(one.token_ids) for one in found] == [ids for _, ids in ranked[:8]]
    for output, (expected, ids) in zip(found, ranked, strict=False):
        assert logprob(output) == pytest.approx(expected, abs=1e-12)
        assert output.finish_reason == ("stop" if ids[-1] == 2 else "length")


def test_width_1_is_greedy() -> None:
    scorer = random_scorer(11, seed=3)
    greedy: tuple[int, ...] = ()
    for _ in range(9):
        greedy += (int(np.argmax(scorer(greedy))),)
    [found] = run(scorer, BeamSearchParams(beam_width=1, max_tokens=9))
    assert tuple(found.token_ids) == greedy


def test_an_end_that_is_not_among_the_first_is_no_answer() -> None:
    """The end token is third best everywhere: two beams have better ones, so nothing ends before its length."""

    def score(sequence: tuple[int, ...]) -> np.ndarray:
        return np.log(np.array([0.4, 0.4, 0.15, 0.05]))

    found = run(score, BeamSearchParams(beam_width=2, max_tokens=4), eos=[2])
    assert [output.finish_reason for output in found] == ["length", "length"]
    assert all(2 not in output.token_ids for output in found)


def test_early_stopping_ends_with_the_first_that_fill_the_width() -> None:
    """A long sequence would have been better by length, and only who is patient sees it."""

    def score(sequence: tuple[int, ...]) -> np.ndarray:
        ends = 0.5 if len(sequence) < 2 else 0.001
        rest = 1 - ends
        return np.log(np.array([rest * 0.98, rest * 0.02, ends]))

    def length(early_stopping: object) -> int:
        params = BeamSearchParams(
            beam_width=1,
            max_tokens=30,
            length_penalty=2.0,
            early_stopping=early_stopping,  # type: ignore[arg-type]
        )
        return len(run(score, params, eos=[2])[0].token_ids)

    assert length(True) == length(False) == 1
    assert length("never") == 30


def test_the_scores_of_a_token_are_its_own() -> None:
    scorer = random_scorer(30, seed=1)
    for output in run(scorer, BeamSearchParams(beam_width=5, max_tokens=6), eos=[4]):
        for i, score in enumerate(output.scores):
            expected = scorer(tuple(output.token_ids[:i]))
            assert score.token_id == output.token_ids[i]
            assert score.logprob == expected[score.token_id]
            assert score.rank == 1 + (expected > score.logprob).sum()
            assert len(score.top_ids) == 10


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
@pytest.mark.parametrize(
    ("width", "eos", "length_penalty"),
    [
        (1, [3], 1.0),
        (3, [3], 1.0),
        (3, [3], 2.0),
        (4, [3, 5], 0.0),
        (4, [3, 5], -1.5),
        (4, [], 1.0),
    ],
)
def test_equals_hugging_face(
    hugging_face: object, width: int, eos: list[int], length_penalty: float, early_stopping: object
) -> None:
    torch = pytest.importorskip("torch")
    model = hugging_face

    @functools.cache
    def scorer(sequence: tuple[int, ...]) -> np.ndarray:
        with torch.no_grad():
            logits = model(torch.tensor([[1, *sequence]])).logits[0, -1]  # type: ignore[operator]
        logprobs: np.ndarray = torch.log_softmax(logits, -1).double().numpy()
        return logprobs

    expected = model.generate(  # type: ignore[attr-defined]
        torch.tensor([[1]]),
        attention_mask=torch.ones(1, 1, dtype=torch.long),
        num_beams=width,
        num_return_sequences=width,
        do_sample=False,
        max_new_tokens=8,
        eos_token_id=eos or None,
        pad_token_id=0,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
    ).tolist()
    params = BeamSearchParams(
        beam_width=width,
        max_tokens=8,
        length_penalty=length_penalty,
        early_stopping=early_stopping,  # type: ignore[arg-type]
    )
    found = [output.token_ids for output in run(scorer, params, eos=eos)]
    assert found == [ids[1 : 1 + len(own)] for ids, own in zip(expected, found, strict=True)]
    for ids, own in zip(expected, found, strict=True):
        assert set(ids[1 + len(own) :]) <= {0, *eos[:1]}, "more than padding"


@pytest.fixture(scope="module")
def hugging_face() -> object:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.set_num_threads(1)
    torch.manual_seed(5)
    config = transformers.LlamaConfig(
        vocab_size=12,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=0.6,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    return transformers.LlamaForCausalLM(config).eval()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("beam_width", 0),
        ("beam_width", MAX_BEAM_WIDTH + 1),
        ("beam_width", True),
        ("max_tokens", 0),
        ("temperature", 0.7),
        ("length_penalty", math.inf),
        ("length_penalty", 11),
        ("early_stopping", "always"),
        ("early_stopping", 1),
        ("ignore_eos", "no"),
    ],
)
def test_a_wrong_value_is_named(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=field) as caught:
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 5, field: value})  # type: ignore[arg-type]
    assert caught.value.param == field
