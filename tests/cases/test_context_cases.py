"""Cases of the area context overflow."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from fastapi import FastAPI

from tests.cases.served import CHAT, COMPLETIONS, HI, WORLD, chat, completion, finish, text
from tests.server.wire import error_of, post

TOO_LONG = " world" * 300


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_ctx_01_a_prompt_that_does_not_fit_is_refused(
    small_context: FastAPI, path: str, is_stream: bool
) -> None:
    is_chat = path == CHAT
    prompt = (
        {"messages": [{"role": "user", "content": TOO_LONG}]} if is_chat else {"prompt": TOO_LONG}
    )
    error = error_of(post(small_context, path, {**prompt, "max_tokens": 4, "stream": is_stream}))
    assert error["code"] == "context_length_exceeded"
    assert "maximum context length" in error["message"]
    assert "256" in error["message"]
    assert is_chat or "300" in error["message"]
    assert finish(completion(small_context, prompt="x", max_tokens=1)) == "length"


def test_ctx_03_an_answer_without_limit_ends_with_the_context(small_context: FastAPI) -> None:
    answer = chat(small_context, **WORLD)
    assert finish(answer) == "length"
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (
        31,
        225,
        256,
    )
    assert text(answer) == " world" * 225


@pytest.mark.parametrize(
    ("max_tokens", "code"),
    [
        ("2147483648", "context_length_exceeded"),
        ("9007199254740993", "context_length_exceeded"),
        ("1e+18", "context_length_exceeded"),
        ("1.5", None),
        ('"10"', None),
    ],
)
def test_ctx_04_a_max_tokens_that_cannot_be_is_refused(
    smollm2: FastAPI, max_tokens: str, code: str | None
) -> None:
    content = (json.dumps(HI)[:-1] + f', "max_tokens": {max_tokens}}}').encode()
    error = error_of(post(smollm2, CHAT, content=content))
    assert (error["code"], error["param"]) == (code, "max_tokens")


def test_ctx_05_one_prompt_too_long_refuses_the_list_and_is_named(small_context: FastAPI) -> None:
    body = {"prompt": ["Hello", TOO_LONG, "Bye"], "max_tokens": 2}
    error = error_of(post(small_context, COMPLETIONS, body))
    assert "index 1" in error["message"]
    assert error["code"] == "context_length_exceeded"


def test_ctx_06_text_past_the_sliding_window_stays_sound(
    gemma3: FastAPI, serve_gemma3: Callable[..., Any], test_data: Path
) -> None:
    lines = (test_data / "reference_logprobs.jsonl").read_text().splitlines()
    canal = next(
        r for r in map(json.loads, lines) if r["name"] == "canal" and "gemma" in r["model"]
    )
    body = {"prompt": canal["text"], "temperature": 0, "max_tokens": 20}
    answer = completion(gemma3, **body, echo=True, logprobs=1)
    values = answer["choices"][0]["logprobs"]["token_logprobs"]
    assert answer["usage"]["prompt_tokens"] == 952
    assert fmean(values[600:900]) >= fmean(values[200:500]) - 0.2
    expected = text(answer).removeprefix(canal["text"])
    for chunk in (64, 513):
        with serve_gemma3(
            max_model_len=2048, max_num_batched_tokens=chunk, kv_cache_memory_bytes="64MiB"
        ) as other:
            assert text(completion(other, **body)) == expected
    assert text(completion(gemma3, **body)) == expected
