"""Cases of the area errors/validation, and SEC-09 and SEC-12."""

from __future__ import annotations

import json
import re
import time

import pytest
from fastapi import FastAPI

from tests.cases.served import CHAT, COMPLETIONS, HI, WORLD, chat, completion, finish
from tests.server.wire import ask, error_of, post

BROKEN = (
    (b"not json", None),
    (b'{"model":', None),
    (b"[]", None),
    (b"null", None),
    (b"", None),
    (b"{} ", "messages"),
    (b'{"messages":{"role":"user"}}', "messages"),
    (b'{"messages":[]}', "messages"),
    (b'{"messages":[{"role":"user"}]}', "messages[0].content"),
    (b'{"messages":"hi"}', "messages"),
    (json.dumps(HI).encode("utf-16"), None),
    (b'{"messages":[{"role":"user","content":"\\ud800"}]}', None),
)
HUGE = (
    (CHAT, {**HI, "n": 1000000}),
    (COMPLETIONS, {"prompt": ["x"] * 100000}),
    (CHAT, {**HI, "logit_bias": {str(i): 1 for i in range(49152)}}),
    (CHAT, {**HI, "stop": ["x"] * 100000}),
    (CHAT, {"messages": HI["messages"] * 200000}),
    (CHAT, {**HI, "tools": [{"type": "function", "function": {"name": "f"}}] * 5000}),
    (COMPLETIONS, {"prompt": "x", "n": 100, "best_of": 1000000}),
)


def serves(app: FastAPI) -> bool:
    return finish(chat(app, max_tokens=1)) in ("stop", "length")


@pytest.mark.parametrize(("content", "param"), BROKEN)
def test_err_01_a_broken_body_is_a_400(smollm2: FastAPI, content: bytes, param: str | None) -> None:
    error = error_of(post(smollm2, CHAT, content=content))
    if param is not None:
        assert error["param"] == param
    assert serves(smollm2)


def test_err_02_an_unknown_model_is_a_404(smollm2: FastAPI) -> None:
    assert error_of(post(smollm2, CHAT, {**HI, "model": "nope"}), 404)["code"] == "model_not_found"
    listed = ask(smollm2, "GET", "/v1/models").json()
    assert listed["object"] == "list"
    [card] = listed["data"]
    assert (card["object"], type(card["created"])) == ("model", int)
    assert card["owned_by"]
    assert ask(smollm2, "GET", "/v1/models/nope").status_code == 404
    assert ask(smollm2, "GET", f"/v1/models/{card['id']}").status_code == 200


def test_err_03_nulls_are_defaults_and_unknown_fields_are_ignored(smollm2: FastAPI) -> None:
    nulls = dict.fromkeys(
        [
            "temperature",
            "top_p",
            "stop",
            "tools",
            "tool_choice",
            "logit_bias",
            "response_format",
            "seed",
            "n",
        ]
    )
    body = {
        "messages": [{"role": "user", "content": "Hi", "name": None}],
        "max_tokens": 2,
        **nulls,
        "user": "u1",
        "metadata": {"a": "b"},
        "store": False,
        "service_tier": "auto",
        "parallel_tool_calls": True,
        "reasoning_effort": "low",
        "unknown_field": 1,
    }
    response = post(smollm2, CHAT, body)
    assert response.status_code == 200
    assert response.json()["usage"]["prompt_tokens"] == 31
    assert response.headers["x-octavo-warning"] == "ignored unknown fields: unknown_field"


def test_err_05_routes_and_methods(smollm2: FastAPI) -> None:
    error_of(ask(smollm2, "GET", "/v1/nope"), 404)
    response = ask(smollm2, "POST", "/v1/models")
    error_of(response, 405)
    assert "GET" in response.headers["allow"]
    assert ask(smollm2, "GET", CHAT).status_code == 405
    body = {**HI, "max_tokens": 1}
    assert post(smollm2, CHAT, body, headers={"content-type": "text/plain"}).status_code in (
        200,
        415,
    )
    assert ask(smollm2, "OPTIONS", CHAT).status_code < 500
    assert ask(smollm2, "HEAD", "/").status_code == 200
    assert ask(smollm2, "GET", "/health").status_code == 200


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "foo"},
    ],
)
def test_err_07_only_text_is_taken(smollm2: FastAPI, part: dict[str, object]) -> None:
    content = [{"type": "text", "text": "What is this?"}, part]
    error = error_of(post(smollm2, CHAT, {"messages": [{"role": "user", "content": content}]}))
    assert error["param"] == "messages[0].content[1]"
    assert "text only" in error["message"]


def test_err_08_usage_adds_up(smollm2: FastAPI) -> None:
    answers = [
        chat(smollm2, max_tokens=2),
        completion(smollm2, prompt=["Hello world", "x", "y"], n=2, seed=1, max_tokens=3),
        completion(smollm2, prompt="x", max_tokens=9, stop=["world"], **WORLD),
        completion(smollm2, prompt="x", temperature=0, logit_bias={"2": 100}),
    ]
    for answer in answers:
        usage = answer["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert "cached_tokens" in usage["prompt_tokens_details"]
    listed = answers[1]
    assert listed["usage"]["prompt_tokens"] == 2 + 1 + 1
    assert [choice["index"] for choice in listed["choices"]] == list(range(6))
    alone = [
        completion(smollm2, prompt=p, n=2, seed=1, max_tokens=3) for p in ("Hello world", "x", "y")
    ]
    assert [c["text"] for c in listed["choices"]] == [
        c["text"] for a in alone for c in a["choices"]
    ]


@pytest.mark.parametrize("number", range(len(HUGE)))
def test_sec_09_enormous_requests_are_refused_quickly(smollm2: FastAPI, number: int) -> None:
    path, body = HUGE[number]
    content = json.dumps(body).encode()
    started = time.monotonic()
    error_of(post(smollm2, path, content=content), 400 if len(content) < 2**22 else 413)
    assert time.monotonic() - started < 3
    assert serves(smollm2)


def test_sec_09_a_body_of_300_mb_is_not_read(smollm2: FastAPI) -> None:
    response = post(smollm2, CHAT, content=b"{}", headers={"content-length": str(300_000_000)})
    assert error_of(response, 413)["code"] == "request_too_large"


def test_sec_12_errors_tell_nothing_of_the_machine(smollm2: FastAPI, gemma3: FastAPI) -> None:
    responses = [post(smollm2, CHAT, content=content) for content, _ in BROKEN]
    responses += [post(smollm2, path, body) for path, body in HUGE[:4]]
    responses += [
        ask(smollm2, "GET", path) for path in ("/v1/nope", CHAT, "/v1/models/nope", "/v1/models")
    ]
    responses += [
        post(gemma3, CHAT, HI),
        post(smollm2, CHAT, {**HI, "chat_template_kwargs": {"x": 1, "1x": 2}}),
        post(smollm2, "/detokenize", {"tokens": [-1]}),
    ]
    for response in responses:
        assert not re.search(r"Traceback|\.py\b|\.gguf|/(?:home|root|usr|tmp|work)/", response.text)
    assert "--chat-template" in responses[-3].text
