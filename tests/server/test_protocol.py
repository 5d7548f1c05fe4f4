"""What holds for every route: errors, methods, limits, keys, disconnects."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from fastapi import FastAPI

from octavo.errors import QueueFull
from octavo.messages import MAX_WAIT_EXCEEDED, AddRequest, ChoiceOutput
from octavo.server.config import DEFAULT_MAX_BODY_BYTES
from tests.server.wire import ask, error_of, fake_app, post, send
from tests.unit.api.fakes import WORLD, FakeClient, always, token

CHAT = "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "Hi"}]}


def test_models_are_listed_and_found() -> None:
    app = fake_app(always("x"))
    listed = ask(app, "GET", "/v1/models").json()
    assert listed["object"] == "list"
    [card] = listed["data"]
    assert (card["id"], card["object"], card["max_model_len"]) == ("fake", "model", 100)
    assert isinstance(card["created"], int)
    assert ask(app, "GET", "/v1/models/fake").json() == card
    assert error_of(ask(app, "GET", "/v1/models/nope"), 404)["code"] == "model_not_found"
    assert error_of(post(app, CHAT, {"model": "nope", **HI}), 404)["param"] == "model"


def test_a_model_has_vllms_card_and_answers_to_all_its_names() -> None:
    app = fake_app(always("x"), model_name="first, second")
    cards = ask(app, "GET", "/v1/models").json()["data"]
    assert [(card["id"], card["root"], card["parent"]) for card in cards] == [
        ("first", "first", None),
        ("second", "first", None),
    ]
    [permission] = cards[0]["permission"]
    assert permission["allow_sampling"] is True
    assert ask(app, "GET", "/v1/models/second").json() == cards[1]
    assert post(app, CHAT, {"model": "second", **HI}).json()["model"] == "first"
    error_of(post(app, CHAT, {"model": "first, second", **HI}), 404)


def test_tokenize_names_unknown_fields_and_writes_tokens_out() -> None:
    app = fake_app(always("x"))
    response = post(app, "/tokenize", {"prompt": "h\u00e9", "return_token_strs": True, "odd": 1})
    assert response.json()["token_strs"] == ["h", r"bytes:\xc3", r"bytes:\xa9"]
    assert response.headers["x-octavo-warning"] == "ignored unknown fields: odd"
    detokenized = post(app, "/detokenize", {"tokens": [104], "odd": 1})
    assert detokenized.headers["x-octavo-warning"] == "ignored unknown fields: odd"


def test_tokenize_and_detokenize_are_inverse() -> None:
    app = fake_app(always("x"))
    answer = post(app, "/tokenize", {"prompt": "hi"}).json()
    assert answer == {"count": 2, "max_model_len": 100, "tokens": [104, 105]}
    assert post(app, "/detokenize", {"tokens": [104, 105]}).json() == {"prompt": "hi"}
    assert post(app, "/tokenize", HI).json()["count"] == 20
    assert error_of(post(app, "/detokenize", {"tokens": [999]}))["param"] == "tokens"
    assert error_of(post(app, "/tokenize", {}))["param"] == "prompt"


def test_small_routes_answer() -> None:
    client = FakeClient(always("x"))
    app = fake_app(client)
    assert ask(app, "GET", "/health").status_code == 200
    assert ask(app, "GET", "/ready").status_code == 200
    assert ask(app, "GET", "/version").json() == {"version": "0.1.0"}
    assert ask(app, "HEAD", "/").status_code == 200
    assert ask(app, "GET", "/openapi.json").status_code == 200
    app.state.server.is_draining = True
    assert ask(app, "GET", "/health").status_code == 200
    assert error_of(ask(app, "GET", "/ready"), 503)["code"] == "draining"
    assert error_of(post(app, CHAT, HI), 503)["code"] == "draining"
    client.close()
    assert error_of(ask(app, "GET", "/health"), 503)["code"] == "engine_dead"


def test_metrics_have_vllms_names() -> None:
    app = fake_app(always("abc"))
    post(app, CHAT, HI)
    text = ask(app, "GET", "/metrics").text
    for line in (
        'vllm:num_requests_running{engine="0",model_name="fake"} 0.0',
        'vllm:num_requests_waiting{engine="0",model_name="fake"} 0.0',
        'vllm:kv_cache_usage_perc{engine="0",model_name="fake"} 0.0625',
        'octavo:kv_blocks_free{engine="0",model_name="fake"} 60.0',
        'vllm:generation_tokens_total{engine="0",model_name="fake"} 0.0',
        'vllm:request_success_total{engine="0",finished_reason="stop",model_name="fake"} 1.0',
        'vllm:time_to_first_token_seconds_count{engine="0",model_name="fake"} 1.0',
    ):
        assert line in text


def test_unknown_routes_and_methods_get_json() -> None:
    app = fake_app(always("x"))
    error_of(ask(app, "GET", "/v1/nope"), 404)
    error_of(ask(app, "GET", "/v1/models/"), 404)
    response = ask(app, "GET", CHAT)
    error_of(response, 405)
    assert response.headers["allow"] == "POST"
    assert ask(app, "POST", "/v1/models").status_code == 405
    options = ask(app, "OPTIONS", CHAT, headers={"origin": "https://evil.example"})
    assert options.status_code == 405
    assert "access-control-allow-origin" not in options.headers


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (b"", None),
        (b"not json", None),
        (b'{"model":', None),
        (b"[]", None),
        (b"null", None),
        (b"{} ", "messages"),
        (b'{"messages":{"role":"user"}}', "messages"),
        (b'{"messages":[]}', "messages"),
        (b'{"messages":"hi"}', "messages"),
        (b'{"messages":["hi"]}', "messages[0]"),
        (json.dumps(HI).encode("utf-16"), None),
        (b"[" * 100_000, None),
        (b'{"n":' + b"9" * 5000 + b"}", None),
        (b'{"messages":[{"role":"user","content":"x"}],"temperature":NaN}', "temperature"),
        (b'{"messages":[{"role":"user","content":"x"}],"temperature":1e999}', "temperature"),
        (b'{"messages":[{"role":"user","content":"x"}],"temperature":"NaN"}', "temperature"),
    ],
)
def test_a_broken_body_is_a_400_with_the_field_at_fault(content: bytes, param: str | None) -> None:
    assert error_of(post(fake_app(always("x")), CHAT, content=content))["param"] == param


def test_a_huge_body_is_refused_before_it_is_read() -> None:
    async def too_much():  # type: ignore[no-untyped-def]
        for _ in range(DEFAULT_MAX_BODY_BYTES // 2**20 + 1):
            yield b" " * 2**20

    app = fake_app(always("x"))
    announced = post(app, CHAT, content=b"{}", headers={"content-length": str(300 * 2**20)})
    assert error_of(announced, 413)["code"] == "request_too_large"
    assert error_of(post(app, CHAT, content=too_much()), 413)["code"] == "request_too_large"


def test_a_large_body_is_parsed_all_the_same() -> None:
    body = {"prompt": "x" * 90_000}
    assert (
        error_of(post(fake_app(always("x")), "/v1/completions", body))["code"]
        == "context_length_exceeded"
    )


def test_the_key_guards_everything_but_a_short_list() -> None:
    app = fake_app(always("x"), api_key="s3cret")
    for path in ("/", "/health", "/ready", "/version"):
        assert ask(app, "GET", path).status_code == 200
    for method, path in (
        ("GET", "/v1/models"),
        ("GET", "/metrics"),
        ("GET", "/openapi.json"),
        ("POST", CHAT),
        ("POST", "//v1/chat/completions"),
        ("POST", "/V1/chat/completions"),
        ("GET", "/health/"),
        ("GET", "/nope"),
    ):
        response = ask(app, method, path)
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert ask(app, method, path, headers={"authorization": "Bearer s3cre"}).status_code == 401
    for headers in ({"authorization": "Bearer s3cret"}, {"x-api-key": "s3cret"}):
        assert post(app, CHAT, HI, headers=headers).status_code == 200


def test_a_fault_of_ours_tells_nothing() -> None:
    app = fake_app(lambda request, index: 1 / 0)  # type: ignore[arg-type, return-value]

    async def main() -> Any:
        try:
            return await send(app, "POST", CHAT, HI)
        except ZeroDivisionError:
            return None  # the framework raises it again for the server's log

    response = asyncio.run(main())
    assert response is None or "zero" not in response.text


async def disconnecting(app: FastAPI, body: object, *, after: int) -> list[dict[str, Any]]:
    """Send a request as a client that goes away after `after` messages; return what was sent to it."""
    sent: list[dict[str, Any]] = []
    gone = asyncio.Event()
    if after == 0:
        gone.set()
    is_read = False

    async def receive() -> dict[str, Any]:
        nonlocal is_read
        if not is_read:
            is_read = True
            return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def take(message: Any) -> None:
        sent.append(message)
        if len(sent) >= after:
            gone.set()

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
        "path": "/v1/completions", "raw_path": b"/v1/completions", "query_string": b"", "root_path": "",
        "scheme": "http", "headers": [], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
    }  # fmt: skip
    await asyncio.wait_for(app(scope, receive, take), 5)
    return sent


@pytest.mark.parametrize(("is_stream", "after"), [(True, 3), (True, 0), (False, 0)])
def test_a_client_that_goes_away_stops_its_request(is_stream: bool, after: int) -> None:
    client = FakeClient(token(WORLD))
    app = fake_app(client)
    body = {"prompt": "x", "max_tokens": 90, "stream": is_stream}
    asyncio.run(disconnecting(app, body, after=after))
    assert not client._open
    if client.requests:
        assert client.aborted == [client.requests[0].request_id]


def test_many_streams_at_once_keep_apart() -> None:
    app = fake_app(lambda request, index: [*request.prompt_token_ids, 256])

    async def one(i: int) -> bool:
        response = await send(app, "POST", "/v1/completions", {"prompt": f"<{i}>", "stream": True})
        chunks = [
            json.loads(b[6:]) for b in response.content.split(b"\n\n") if b.startswith(b"data: {")
        ]
        return "".join(c["choices"][0]["text"] for c in chunks) == f"<{i}>"

    async def main() -> list[bool]:
        return await asyncio.gather(*(one(i) for i in range(32)))

    assert all(asyncio.run(main()))


class FullClient(FakeClient):
    """Takes no request."""

    def add(self, message: AddRequest) -> None:
        raise QueueFull("7 requests wait already, 7 may: try again in 5 s", retry_after_s=5)


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_full_queue_is_429_and_says_when_to_come_back(is_stream: bool) -> None:
    app = fake_app(FullClient(always("x")))
    body = {"prompt": "Hi", "max_tokens": 1, "stream": is_stream}
    response = post(app, "/v1/completions", body)
    assert response.headers["retry-after"] == "5"
    error = error_of(response, 429)
    assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")


class LateClient(FakeClient):
    """Begins no request in time."""

    def add(self, message: AddRequest) -> None:
        super().add(message)
        self._open.clear()
        self._outbox.append(
            ChoiceOutput(
                message.request_id,
                0,
                finish_reason="error",
                error=f"not begun within {message.max_wait_ms} ms",
                error_code=MAX_WAIT_EXCEEDED,
            )
        )


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_request_that_was_not_begun_in_time_is_503(is_stream: bool) -> None:
    body = {"prompt": "Hi", "max_tokens": 1, "stream": is_stream, "max_wait_ms": 50}
    response = post(fake_app(LateClient(always("x"))), "/v1/completions", body)
    assert response.headers["retry-after"] == "1"
    error = error_of(response, 503)
    assert (error["code"], error["message"]) == ("max_wait_exceeded", "not begun within 50 ms")
    body["max_wait_ms"] = 0
    response = post(fake_app(always("x")), "/v1/completions", body)
    assert error_of(response, 400)["param"] == "max_wait_ms"
