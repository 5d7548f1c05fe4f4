"""Cases of the area detokenizer/streaming."""

from __future__ import annotations

import json

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

VARIED_PROMPTS = (
    "def f(x):\n    return",
    "Wait   .",
    "1. apples\n2. pears\n3.",
    "I don't think we'll",
    "Hello, world!",
    "for (int i = 0; i <",
    "| a | b |\n|---|---|\n|",
    "Prices: $5.00, $6",
    "\tindented\n\t",
    "She said: \"It's",
)


def test_str_01_a_character_of_several_tokens_is_never_split(smollm2: FastAPI) -> None:
    ids = token_ids(smollm2, "\N{LLAMA}é")
    assert len(ids) == 4
    parts = deltas(stream(smollm2, CHAT, **forcing(ids)))
    assert "".join(parts) == "\N{LLAMA}é"
    assert not any("\N{REPLACEMENT CHARACTER}" in part for part in parts)
    assert text(chat(smollm2, **forcing(ids))) == "\N{LLAMA}é"


@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_str_04_a_streams_text_is_the_whole_text(
    model: str, request: pytest.FixtureRequest
) -> None:
    app: FastAPI = request.getfixturevalue(model)
    for prompt in ("The capital of France is", *VARIED_PROMPTS):
        body = {"prompt": prompt, "max_tokens": 12, "temperature": 0}
        whole = completion(app, **body, echo=True, logprobs=0)
        assert prompt + "".join(deltas(stream(app, COMPLETIONS, **body))) == text(whole)
        added = len(whole["choices"][0]["logprobs"]["tokens"]) - whole["usage"]["total_tokens"]
        assert added == 0


def test_str_05_chunks_agree_and_end_once(smollm2: FastAPI) -> None:
    chunks = stream(smollm2, CHAT, max_tokens=12, temperature=0)
    assert len({(c["id"], c["created"], c["model"], c["object"]) for c in chunks}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    choices = [c["choices"][0] for c in chunks]
    assert [c["delta"].get("role") for c in choices] == ["assistant"] + [None] * (len(choices) - 1)
    ends = [c["finish_reason"] for c in choices]
    assert ends[:-1] == [None] * (len(ends) - 1)
    assert ends[-1] in ("stop", "length")
    assert choices[-1]["delta"] == {}


def test_str_06_usage_comes_last_and_only_when_asked_for(smollm2: FastAPI) -> None:
    body = {"max_tokens": 8, "temperature": 0}
    *chunks, last = stream(smollm2, CHAT, **body, stream_options={"include_usage": True})
    assert last["choices"] == []
    assert all(chunk["usage"] is None for chunk in chunks)
    usage = last["usage"]
    assert usage["prompt_tokens"] == 31
    assert usage["total_tokens"] == 31 + usage["completion_tokens"]
    assert usage["completion_tokens"] == chat(smollm2, **body)["usage"]["completion_tokens"]
    for options in ({}, {"include_usage": False}, None):
        assert all("usage" not in c for c in stream(smollm2, CHAT, **body, stream_options=options))
    refused = post(smollm2, CHAT, {**HI, **body, "stream_options": {"include_usage": True}})
    assert error_of(refused)["param"] == "stream_options"


def test_str_07_every_choice_of_a_stream_arrives_whole(smollm2: FastAPI) -> None:
    body = {"n": 3, "seed": 5, "temperature": 1.0, "max_tokens": 10}
    *chunks, last = stream(smollm2, CHAT, **body, stream_options={"include_usage": True})
    whole = chat(smollm2, **body)
    assert len(whole["choices"]) == 3
    for index in range(3):
        own = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert len([c for c in own if c["finish_reason"]]) == 1
        assert "".join(deltas(chunks, index)) == text(whole, index)
    assert last["usage"]["prompt_tokens"] == 31
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


def test_str_08_tokens_are_counted_not_chunks(smollm2: FastAPI) -> None:
    body = {"prompt": "x", "max_tokens": 5, **WORLD, "stream_options": {"include_usage": True}}
    *chunks, last = stream(smollm2, COMPLETIONS, **body)
    assert "".join(deltas(chunks)) == " world" * 5
    assert last["usage"]["completion_tokens"] == 5
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_str_09_an_error_known_before_the_first_token_is_no_stream(smollm2: FastAPI) -> None:
    error_of(post(smollm2, CHAT, {**HI, "stream": True, "max_tokens": "ten"}))
    long = [{"role": "user", "content": " world" * 20000}]
    error = error_of(post(smollm2, CHAT, {"messages": long, "stream": True}))
    assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize(("token_id", "expected"), [(2738, "\r\n"), (198, "\n")])
def test_str_10_line_breaks_do_not_break_the_framing(
    smollm2: FastAPI, token_id: int, expected: str
) -> None:
    body = {"prompt": "x", "max_tokens": 4, "temperature": 0, "logit_bias": {str(token_id): 100}}
    assert "".join(deltas(stream(smollm2, COMPLETIONS, **body))) == expected * 4


@pytest.mark.parametrize(("token_id", "reason"), [(2, "stop"), (0, "stop"), (1, "length")])
def test_str_11_control_tokens_are_never_shown(
    smollm2: FastAPI, token_id: int, reason: str
) -> None:
    body = {"max_tokens": 6, "temperature": 0, "logit_bias": {str(token_id): 100}}
    answer = chat(smollm2, **body)
    assert (text(answer), finish(answer)) == ("", reason)
    assert answer["usage"]["completion_tokens"] == (1 if reason == "stop" else 6)
    assert "<|" not in json.dumps(stream(smollm2, CHAT, **body))
