"""Cases of the area stop/limits."""

from __future__ import annotations

import pytest
from fastapi import FastAPI

from tests.cases.served import (
    CHAT,
    COMPLETIONS,
    HI,
    WORLD,
    chat,
    completion,
    deltas,
    finish,
    forcing,
    stream,
    text,
    token_ids,
)
from tests.server.wire import error_of, post


def test_stp_01_a_stop_string_that_starts_inside_a_token(smollm2: FastAPI) -> None:
    ids = token_ids(smollm2, "ABCDEFGHIJ")
    assert len(ids) >= 4
    body = {**forcing(ids), "max_tokens": 20, "stop": ["FGHIJ"]}
    answer = chat(smollm2, **body)
    assert (text(answer), finish(answer)) == ("ABCDE", "stop")
    assert answer["usage"]["completion_tokens"] == len(ids)
    parts = deltas(stream(smollm2, CHAT, **body))
    assert "".join(parts) == "ABCDE"
    assert not any("F" in part for part in parts)


def test_stp_03_any_piece_of_the_text_stops_it(smollm2: FastAPI) -> None:
    body = {"prompt": "List of fruits:", "temperature": 0, "max_tokens": 24}
    whole = text(completion(smollm2, **body))
    for i in range(10):
        start, length = 3 + i * (len(whole) - 12) // 10, 2 + i % 5
        stop = whole[start : start + length]
        answer = completion(smollm2, **body, stop=[stop])
        assert text(answer) == whole[: whole.index(stop)]
        assert finish(answer) == "stop"
        assert answer["choices"][0]["stop_reason"] == stop
        covering = whole[: whole.index(stop) + len(stop)]
        assert answer["usage"]["completion_tokens"] <= len(token_ids(smollm2, covering)) + 1
        if i < 3:
            assert "".join(deltas(stream(smollm2, COMPLETIONS, **body, stop=[stop]))) == text(
                answer
            )


@pytest.mark.parametrize("stop", ["", [""], ["", "x"]])
@pytest.mark.parametrize("is_stream", [False, True])
def test_stp_05_an_empty_stop_string_is_refused(
    smollm2: FastAPI, stop: object, is_stream: bool
) -> None:
    body = {**HI, "max_tokens": 8, "stop": stop, "stream": is_stream}
    assert error_of(post(smollm2, CHAT, body))["param"] == "stop"


@pytest.mark.parametrize("stop", [None, []])
def test_stp_05_no_stop_string_is_no_error(smollm2: FastAPI, stop: object) -> None:
    assert text(chat(smollm2, max_tokens=8, temperature=0, stop=stop))


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({**WORLD, "max_tokens": 1}, (" world", "length", 1)),
        ({**WORLD, "max_tokens": 7}, (" world" * 7, "length", 7)),
        ({"logit_bias": {"2": 100}, "max_tokens": 1}, ("", "stop", 1)),
        ({**WORLD, "max_tokens": 3, "stop": [" world world world"]}, ("", "stop", 3)),
    ],
)
def test_stp_06_the_finish_reason_is_the_true_one(
    smollm2: FastAPI, extra: dict[str, object], expected: tuple[str, str, int]
) -> None:
    body = {"prompt": "x", "temperature": 0, **extra}
    answer = completion(smollm2, **body)
    assert (text(answer), finish(answer), answer["usage"]["completion_tokens"]) == expected
    chunks = stream(smollm2, COMPLETIONS, **body)
    assert ("".join(deltas(chunks)), finish(chunks[-1])) == expected[:2]


def test_stp_07_max_tokens_0_generates_nothing(smollm2: FastAPI) -> None:
    body = {"prompt": "Hello world", "max_tokens": 0}
    scored = completion(smollm2, **body, echo=True, logprobs=1)
    assert (text(scored), finish(scored)) == ("Hello world", "length")
    logprobs = scored["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["Hello", " world"]
    assert logprobs["token_logprobs"][0] is None
    assert scored["usage"]["completion_tokens"] == 0
    plain = completion(smollm2, **body)
    assert (text(plain), finish(plain)) == ("", "length")
    assert (plain["usage"]["prompt_tokens"], plain["usage"]["completion_tokens"]) == (2, 0)
    assert error_of(post(smollm2, CHAT, {**HI, "max_tokens": 0}))["param"] == "max_tokens"
    assert (
        error_of(post(smollm2, COMPLETIONS, {"prompt": "x", "max_tokens": -1}))["param"]
        == "max_tokens"
    )


def test_stp_08_max_completion_tokens_wins(smollm2: FastAPI) -> None:
    def count(**limits: int) -> int:
        return chat(smollm2, **WORLD, **limits)["usage"]["completion_tokens"]  # type: ignore[no-any-return]

    assert count(max_completion_tokens=3) == 3
    assert count(max_completion_tokens=3, max_tokens=9) == 3
    assert count(max_tokens=4) == 4
    both = post(smollm2, CHAT, {**HI, **WORLD, "max_completion_tokens": 3, "max_tokens": 9})
    assert "max_completion_tokens" in both.headers["x-octavo-warning"]


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({**WORLD, "stop_token_ids": [905], "max_tokens": 9}, ("", "stop", 1)),
        ({"logit_bias": {"2": 100}, "stop": ["<|im_end|>"], "max_tokens": 9}, ("", "stop", 1)),
        ({"logit_bias": {"2": 100}, "ignore_eos": True, "max_tokens": 5}, ("", "length", 5)),
    ],
)
def test_stp_09_stop_tokens_stop_and_are_not_shown(
    smollm2: FastAPI, extra: dict[str, object], expected: tuple[str, str, int]
) -> None:
    answer = completion(smollm2, **{"prompt": "x", "temperature": 0, **extra})
    assert (text(answer), finish(answer), answer["usage"]["completion_tokens"]) == expected
