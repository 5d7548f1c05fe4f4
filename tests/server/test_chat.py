from __future__ import annotations

import json
import re

import pytest

from tests.server.wire import error_of, events, fake_app, parse_events, post
from tests.unit.api.fakes import END, START, WORLD, FakeClient, always, ids_of, token

URL = "/v1/chat/completions"
HI = [{"role": "user", "content": "Hi"}]
PROMPT_TOKENS = 20


def normal(data: bytes) -> str:
    """A transcript without what differs between runs."""
    text = re.sub(r"chatcmpl-[0-9a-f]{32}|cmpl-[0-9a-f]{32}", "ID", data.decode())
    return re.sub(r'"created":\d+', '"created":0', text)


def test_an_answer_has_the_shape_of_the_openai_api() -> None:
    response = post(
        fake_app(always("Hello")), URL, {"model": "fake", "messages": HI, "max_tokens": 9}
    )
    assert response.status_code == 200
    body = response.json()
    assert body["object"] == "chat.completion"
    assert body["model"] == "fake"
    assert body["id"] == response.headers["x-request-id"]
    [choice] = body["choices"]
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": "Hello"},
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": None,
    }
    assert body["usage"] == {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": 6,
        "total_tokens": PROMPT_TOKENS + 6,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    assert "x-octavo-warning" not in response.headers


def test_a_stream_is_this_transcript() -> None:
    body = {
        "messages": HI,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 9,
    }
    response = post(fake_app(always("a\n")), URL, body)
    head = (
        'data: {"id":"ID","object":"chat.completion.chunk","created":0,"model":"fake",'
        '"system_fingerprint":"octavo-0.1.0-fake","choices":['
    )
    tail = '],"usage":null}\n\n'
    assert normal(response.content) == "".join(
        (
            head
            + '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
            + tail,
            head
            + '{"index":0,"delta":{"content":"a"},"logprobs":null,"finish_reason":null}'
            + tail,
            head
            + '{"index":0,"delta":{"content":"\\n"},"logprobs":null,"finish_reason":null}'
            + tail,
            head
            + '{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop","stop_reason":null}'
            + tail,
            head + '],"usage":{"prompt_tokens":20,"completion_tokens":3,"total_tokens":23,'
            '"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}}}\n\n',
            "data: [DONE]\n\n",
        )
    )
    assert response.headers["cache-control"] == "no-cache"
    assert "content-length" not in response.headers


@pytest.mark.parametrize("options", [{}, {"include_usage": False}, None])
def test_usage_is_not_sent_when_nobody_asked(options: object) -> None:
    response = post(
        fake_app(always("a")), URL, {"messages": HI, "stream": True, "stream_options": options}
    )
    assert all("usage" not in chunk for chunk in events(response))


def test_streamed_choices_are_told_apart() -> None:
    app = fake_app(lambda request, index: [*ids_of("abc"[index] * 2), END])
    body = {
        "messages": HI,
        "n": 3,
        "seed": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    *chunks, last = events(post(app, URL, body))
    for index, letter in enumerate("abc"):
        own = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert [c["delta"] for c in own] == [
            {"role": "assistant", "content": ""}, {"content": letter}, {"content": letter}, {},
        ]  # fmt: skip
        assert [c["finish_reason"] for c in own] == [None, None, None, "stop"]
    assert last["usage"]["completion_tokens"] == 9


def test_a_character_in_parts_makes_one_chunk() -> None:
    app = fake_app(lambda request, index: [262, 0xA6, 263, END])
    contents = [
        c["choices"][0]["delta"].get("content")
        for c in events(post(app, URL, {"messages": HI, "stream": True}))
    ]
    assert contents == ["", "\N{LLAMA}", None]


def test_logprobs_have_tokens_bytes_and_alternatives() -> None:
    app = fake_app(lambda request, index: [262, 0xA6, 263, END])
    body = {"messages": HI, "logprobs": True, "top_logprobs": 1, "max_tokens": 9}
    choice = post(app, URL, body).json()["choices"][0]
    content = choice["logprobs"]["content"]
    assert b"".join(bytes(e["bytes"]) for e in content).decode() == choice["message"]["content"]
    assert [e["token"] for e in content] == [
        r"bytes:\xf0\x9f",
        r"bytes:\xa6",
        r"bytes:\x99",
        "<|end|>",
    ]
    assert content[1]["top_logprobs"] == [
        {"token": r"bytes:\xa6", "logprob": -0.25, "bytes": [0xA6]}
    ]
    streamed = events(post(app, URL, {**body, "stream": True}))
    parts = [c["choices"][0]["logprobs"] for c in streamed]
    assert [e for part in parts if part for e in part["content"]] == content


def test_prompt_logprobs_are_listed_by_token_id() -> None:
    body = post(fake_app(always("a")), URL, {"messages": HI, "prompt_logprobs": 1}).json()
    first, second, *rest = body["prompt_logprobs"]
    assert first is None
    assert second[str(ord("u"))] == {"logprob": -0.25, "rank": 1, "decoded_token": "u"}
    assert len(rest) == PROMPT_TOKENS - 2


def test_unknown_fields_and_shadowed_limits_are_warned_of() -> None:
    body = {
        "messages": HI,
        "max_tokens": 9,
        "max_completion_tokens": 2,
        "mystery": 1,
        "x\r\ny": 2,
        "user": "u",
    }
    response = post(fake_app(token(WORLD)), URL, body)
    assert response.json()["usage"]["completion_tokens"] == 2
    assert response.headers["x-octavo-warning"] == (
        r"ignored unknown fields: mystery, x\r\ny; max_completion_tokens wins over max_tokens"
    )


def test_prefill_continues_the_last_message() -> None:
    client = FakeClient(always("!"))
    messages = [*HI, {"role": "assistant", "content": "Hello"}]
    body = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    app = fake_app(client)  # kept: an application that goes away closes its engine
    assert post(app, URL, body).json()["choices"][0]["message"]["content"] == "!"
    assert client.requests[0].prompt_token_ids[-5:] == ids_of("Hello")
    without_flag = {"messages": messages, "continue_final_message": True}
    assert post(app, URL, without_flag).status_code == 200
    assert client.requests[1].prompt_token_ids == client.requests[0].prompt_token_ids


def test_tools_reach_the_template_unless_switched_off() -> None:
    template = "{% if tools %}T{% endif %}{{ messages[0].content }}"
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    for choice, expected in ((None, "THi"), ("auto", "THi"), ("none", "Hi")):
        client = FakeClient(always("x"))
        body = {"messages": HI, "tools": [tool], "tool_choice": choice}
        assert post(fake_app(client, chat_template=template), URL, body).status_code == 200
        assert client.requests[0].prompt_token_ids == ids_of(expected)


def test_developer_is_system_and_parts_are_text() -> None:
    client = FakeClient(always("x"))
    body = {
        "messages": [
            {
                "role": "developer",
                "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}],
            }
        ]
    }
    assert post(fake_app(client), URL, body).status_code == 200
    assert client.requests[0].prompt_token_ids[:12] == [START, *ids_of("system\nA\nB"), END]


def test_a_template_cannot_come_with_the_request() -> None:
    client = FakeClient(always("x"))
    body = {
        "messages": HI,
        "chat_template": "EVIL",
        "chat_template_kwargs": {"chat_template": "EVIL", "messages": []},
    }
    response = post(fake_app(client), URL, body)
    assert response.status_code == 200
    assert len(client.requests[0].prompt_token_ids) == PROMPT_TOKENS
    assert "chat_template" in response.headers["x-octavo-warning"]


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_completion_tokens": 500}, "max_completion_tokens"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"n": 129}, "n"),
        ({"n": 1.5}, "n"),
        ({"stop": [1]}, "stop[0]"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"temperature": True}, "temperature"),
    ],
)
def test_a_bad_field_is_named(extra: dict[str, object], param: str) -> None:
    assert error_of(post(fake_app(always("x")), URL, {"messages": HI, **extra}))["param"] == param


def test_an_error_before_the_first_token_is_no_stream() -> None:
    client = FakeClient(always("abc"))
    client.fails_at = 0
    response = post(fake_app(client), URL, {"messages": HI, "stream": True})
    assert "secret" not in error_of(response, 500)["message"]


def test_an_error_later_is_the_last_event() -> None:
    client = FakeClient(always("abc"))
    client.fails_at = 2
    response = post(fake_app(client), URL, {"messages": HI, "stream": True})
    last = json.loads(response.content.split(b"\n\n")[-2].removeprefix(b"data: "))
    assert last["error"]["type"] == "server_error"
    assert b"[DONE]" not in response.content
    assert b"secret" not in response.content
    whole = parse_events(
        b"\n\n".join(response.content.split(b"\n\n")[:-2]) + b"\n\ndata: [DONE]\n\n"
    )
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in whole) == "ab"


def test_an_explanation_comes_with_the_answer_if_the_body_asks() -> None:
    app = fake_app(always("a"))
    body = {"messages": HI, "explain": True}
    answer = post(app, URL, body).json()
    assert [one["id"] for one in answer["octavo_explain"]] == [answer["id"]]
    *_, last = events(post(app, URL, {**body, "stream": True}))
    assert [one["id"] for one in last["octavo_explain"]] == [last["id"]]
