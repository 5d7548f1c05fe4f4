"""Cases of the area logprobs."""

from __future__ import annotations

import math

import pytest
from fastapi import FastAPI

from tests.cases.served import (
    CHAT,
    COMPLETIONS,
    HI,
    chat,
    completion,
    forcing,
    stream,
    text,
    token_ids,
)
from tests.server.wire import error_of, post

COLOUR = [{"role": "user", "content": "Name a colour."}]


def content_of(answer: dict) -> list[dict]:  # type: ignore[type-arg]
    return answer["choices"][0]["logprobs"]["content"]  # type: ignore[no-any-return]


def test_lgp_01_each_route_has_its_own_shape(smollm2: FastAPI) -> None:
    body = {"max_tokens": 3, "temperature": 0}
    plain = content_of(chat(smollm2, **body, logprobs=True))
    assert [set(entry) for entry in plain] == [{"token", "logprob", "bytes", "top_logprobs"}] * 3
    assert all(entry["top_logprobs"] == [] for entry in plain)
    with_top = content_of(chat(smollm2, **body, logprobs=True, top_logprobs=3))
    assert [len(entry["top_logprobs"]) for entry in with_top] == [3, 3, 3]
    legacy = completion(smollm2, prompt="Hello", **body, logprobs=2)["choices"][0]["logprobs"]
    assert {name: len(values) for name, values in legacy.items()} == {
        "tokens": 3,
        "token_logprobs": 3,
        "top_logprobs": 3,
        "text_offset": 3,
    }


def test_lgp_02_alternatives_are_sorted_and_hold_the_chosen_token(smollm2: FastAPI) -> None:
    answer = chat(smollm2, logprobs=True, top_logprobs=5, max_tokens=20, temperature=0)
    for entry in content_of(answer):
        top = entry["top_logprobs"]
        values = [one["logprob"] for one in top]
        assert values == sorted(values, reverse=True)
        assert values[0] <= 0
        assert len({(one["token"], tuple(one["bytes"])) for one in top}) == 5
        assert sum(math.exp(value) for value in values) <= 1.001
        assert {k: entry[k] for k in ("token", "logprob", "bytes")} == top[0]


def test_lgp_03_bytes_rebuild_the_text(smollm2: FastAPI) -> None:
    ids = token_ids(smollm2, "\N{LLAMA}é")
    answer = chat(smollm2, **forcing(ids), logprobs=True, top_logprobs=2)
    rebuilt = b"".join(bytes(entry["bytes"]) for entry in content_of(answer))
    assert rebuilt == text(answer).encode() == "\N{LLAMA}é".encode()


def test_lgp_05_a_stream_has_the_same_logprobs(smollm2: FastAPI) -> None:
    body = {
        "messages": COLOUR,
        "logprobs": True,
        "top_logprobs": 1,
        "max_tokens": 16,
        "temperature": 0,
    }
    *chunks, last = stream(smollm2, CHAT, **body, stream_options={"include_usage": True})
    parts = [c["choices"][0]["logprobs"] for c in chunks]
    streamed = [entry for part in parts if part for entry in part["content"]]
    whole = content_of(chat(smollm2, **body))
    assert [e["token"] for e in streamed] == [e["token"] for e in whole]
    assert [e["logprob"] for e in streamed] == pytest.approx(
        [e["logprob"] for e in whole], abs=1e-4
    )
    assert len(streamed) == last["usage"]["completion_tokens"]


@pytest.mark.parametrize(
    ("path", "extra", "param"),
    [
        (CHAT, {"top_logprobs": 3}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        (CHAT, {"logprobs": "yes"}, "logprobs"),
        (COMPLETIONS, {"logprobs": 49152}, "logprobs"),
        (COMPLETIONS, {"logprobs": -1}, "logprobs"),
        (COMPLETIONS, {"prompt": " world" * 4000, "prompt_logprobs": -1}, "prompt_logprobs"),
    ],
)
def test_lgp_06_bad_arguments_are_refused(
    smollm2: FastAPI, path: str, extra: dict[str, object], param: str
) -> None:
    base = HI if path == CHAT else {"prompt": "x"}
    assert error_of(post(smollm2, path, {**base, **extra}))["param"] == param


def test_lgp_07_echo_has_the_first_token_and_right_offsets(smollm2: FastAPI) -> None:
    prompt = "The quick brown fox jumps over the lazy dog."
    answer = completion(smollm2, prompt=prompt, echo=True, logprobs=1, max_tokens=4, temperature=0)
    logprobs = answer["choices"][0]["logprobs"]
    tokens = logprobs["tokens"]
    assert (len(tokens), tokens[0]) == (14, "The")
    assert "".join(tokens) == text(answer)
    assert logprobs["text_offset"] == [len("".join(tokens[:i])) for i in range(14)]
    assert logprobs["text_offset"][:3] == [0, 3, 9]
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert all(math.isfinite(value) for value in logprobs["token_logprobs"][1:])


def test_lgp_08_prompt_logprobs_stay_the_same(smollm2: FastAPI, small_context: FastAPI) -> None:
    prompt = " world" * 40 + " The quick brown fox."
    body = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}

    def values(app: FastAPI) -> list[float | None]:
        return completion(app, **body)["choices"][0]["logprobs"]["token_logprobs"]  # type: ignore[no-any-return]

    first = values(smollm2)
    assert first[0] is None
    assert None not in first[1:]
    completion(smollm2, **{**body, "prompt": " world" * 40 + " Another end."})
    for again in (values(smollm2), values(smollm2), values(small_context)):
        assert again[1:] == pytest.approx(first[1:], abs=1e-3)


def test_lgp_10_logprobs_are_those_of_the_raw_distribution(smollm2: FastAPI) -> None:
    body = {"prompt": "The capital of France is", "max_tokens": 1, "logprobs": 5}

    def top(**extra: float) -> dict[str, float]:
        return completion(smollm2, **body, **extra)["choices"][0]["logprobs"]["top_logprobs"][0]  # type: ignore[no-any-return]

    greedy = top(temperature=0)
    assert greedy[" Paris"] == pytest.approx(-0.26, abs=0.15)
    assert greedy[" the"] == pytest.approx(-2.74, abs=0.15)
    assert greedy[" London"] == pytest.approx(-4.38, abs=0.15)
    for extra in ({"temperature": 0.5}, {"top_p": 0.1}, {"top_k": 1}):
        assert top(seed=1, **extra) == pytest.approx(greedy, abs=1e-4)  # type: ignore[arg-type]
