"""Cases of the area sampling."""

from __future__ import annotations

import json

import pytest
from fastapi import FastAPI

from tests.cases.served import CHAT, COMPLETIONS, HI, all_at_once, chat, completion, finish, text
from tests.server.wire import error_of, post

PROMPTS = tuple(f"Topic {i}: " + "and then " * (i % 7) for i in range(16))


def generated(answer: dict) -> list[str]:  # type: ignore[type-arg]
    return answer["choices"][0]["logprobs"]["tokens"]  # type: ignore[no-any-return]


def test_smp_01_greedy_text_does_not_depend_on_the_batch(smollm2: FastAPI) -> None:
    one = {
        "messages": [{"role": "user", "content": "Count from 1 to 20."}],
        "temperature": 0,
        "max_tokens": 24,
    }
    others = [
        {"messages": [{"role": "user", "content": p}], "temperature": 0, "max_tokens": 24}
        for p in PROMPTS
    ]
    alone = text(chat(smollm2, **one))
    bodies = [body for pair in zip([one] * 16, others, strict=True) for body in pair]
    answers = all_at_once(smollm2, CHAT, bodies)
    assert {text(answer) for answer in answers[::2]} == {alone}


def test_smp_02_a_seed_gives_one_text_whatever_the_neighbours(smollm2: FastAPI) -> None:
    one = {"prompt": "Once upon a time", "temperature": 0.9, "seed": 42, "max_tokens": 24}
    unseeded = [{"prompt": p, "max_tokens": 24} for p in PROMPTS[:7]]
    seeded = [{**body, "seed": i} for i, body in enumerate(unseeded)]
    texts = {text(completion(smollm2, **one))}
    for others in (unseeded, seeded):
        texts.add(text(all_at_once(smollm2, COMPLETIONS, [one, *others])[0]))
    assert len(texts) == 1


def test_smp_03_choices_of_one_seed_differ_and_repeat(smollm2: FastAPI) -> None:
    body = {"prompt": "Once upon a time", "n": 4, "temperature": 1.2, "max_tokens": 16}

    def texts(seed: int) -> list[str]:
        return [c["text"] for c in completion(smollm2, **body, seed=seed)["choices"]]

    first = texts(7)
    assert first == texts(7)
    assert len(set(first)) >= 2
    for seed in (0, 2**31 - 1, -1):
        assert len(texts(seed)) == 4
    assert error_of(post(smollm2, COMPLETIONS, {**body, "seed": "7"}))["param"] == "seed"


def test_smp_05_repetition_penalty_never_rewards_a_repeat(smollm2: FastAPI) -> None:
    body = {"prompt": "dog dog dog dog", "temperature": 0, "max_tokens": 20}
    tokens = generated(completion(smollm2, **body, repetition_penalty=100.0, logprobs=0))
    assert len(tokens) == len(set(tokens)) == 20
    neutral = completion(smollm2, **body, repetition_penalty=1.0)
    assert text(neutral) == text(completion(smollm2, **body))


def test_smp_06_frequency_penalty_is_subtracted_per_occurrence(smollm2: FastAPI) -> None:
    bias = {"905": 100, "1000": 60}
    body = {"prompt": "x", "temperature": 0, "max_tokens": 64, "logit_bias": bias, "logprobs": 0}
    tokens = generated(completion(smollm2, **body, frequency_penalty=2.0))
    run = next(i for i, t in enumerate(tokens) if t != " world")
    assert 24 <= run <= 32
    assert (
        tokens[run]
        == completion(smollm2, **{**body, "logit_bias": {"1000": 100}})["choices"][0]["logprobs"][
            "tokens"
        ][0]
    )
    assert generated(completion(smollm2, **body)) == [" world"] * 64
    assert generated(completion(smollm2, **body, presence_penalty=2.0)) == [" world"] * 64
    with_prompt = {**body, "prompt": "x" + " world" * 50, "max_tokens": 1}
    assert generated(completion(smollm2, **with_prompt, frequency_penalty=2.0)) == [" world"]


@pytest.mark.parametrize(
    "field",
    [
        '"temperature": NaN',
        '"temperature": 1e999',
        '"temperature": -0.1',
        '"temperature": "NaN"',
        '"top_p": -1',
        '"top_p": 1.5',
        '"min_p": 2',
        '"top_k": -5',
        '"repetition_penalty": 0',
        '"repetition_penalty": 1e999',
        '"presence_penalty": 3',
        '"frequency_penalty": NaN',
    ],
)
def test_smp_07_a_value_out_of_range_is_refused_by_name(smollm2: FastAPI, field: str) -> None:
    content = (json.dumps(HI)[:-1] + ", " + field + "}").encode()
    assert error_of(post(smollm2, CHAT, content=content))["param"] == field.split('"')[1]
    assert finish(chat(smollm2, max_tokens=1)) == "length"


def test_smp_09_no_end_token_before_min_tokens(smollm2: FastAPI) -> None:
    body = {
        "prompt": "Hello",
        "temperature": 0,
        "max_tokens": 32,
        "logit_bias": {"2": 100},
        "logprobs": 0,
    }
    answer = completion(smollm2, **body, min_tokens=4)
    assert finish(answer) == "stop"
    assert answer["usage"]["completion_tokens"] == 5
    assert generated(answer)[4] == "<|im_end|>"
    assert "<|im_end|>" not in generated(answer)[:4]
    none = completion(smollm2, **body, min_tokens=0)
    assert (text(none), none["usage"]["completion_tokens"]) == ("", 1)
    assert error_of(post(smollm2, COMPLETIONS, {**body, "min_tokens": 33}))["param"] == "min_tokens"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {"49152": 5}),
        ("logit_bias", {"999999": -100}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"abc": 1}),
        ("logit_bias", {"5": 1000}),
        ("stop_token_ids", [151645]),
    ],
)
def test_smp_10_ids_outside_the_vocabulary_are_refused(
    smollm2: FastAPI, field: str, value: object
) -> None:
    assert error_of(post(smollm2, CHAT, {**HI, field: value}))["param"] == field


@pytest.mark.parametrize("bias", [{}, None])
def test_smp_10_no_bias_is_no_error(smollm2: FastAPI, bias: object) -> None:
    assert finish(chat(smollm2, logit_bias=bias, max_tokens=1)) == "length"


def test_smp_11_a_bias_of_minus_100_bans(smollm2: FastAPI) -> None:
    body = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 8, "logprobs": 1}
    first = completion(smollm2, **body)
    banned = generated(first)[0]
    [token_id] = post(smollm2, "/tokenize", {"prompt": banned}).json()["tokens"]
    for extra in ({}, {"temperature": 1, "top_k": 1, "seed": 1}):
        answer = completion(smollm2, **{**body, "logit_bias": {str(token_id): -100}, **extra})
        assert banned not in generated(answer)
    assert text(completion(smollm2, **body, logit_bias={str(token_id): 0})) == text(first)
