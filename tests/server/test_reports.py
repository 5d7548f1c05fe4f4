"""What is told of requests at their end: a line in the log, never what is in them."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from octavo.observability.config import QUIET, ObservabilityConfig
from octavo.observability.logs import LogFormat, setup_logging
from octavo.server.reporting import HttpRequest, Reporting
from tests.server.wire import events, fake_app, post
from tests.unit.api.fakes import WORLD, FakeClient, always, token

CHAT = "/v1/chat/completions"
URL = "/v1/completions"
HI = {"messages": [{"role": "user", "content": "Hi"}]}
LOGS = ObservabilityConfig(log_requests=True)


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """What the requests' logger wrote, as JSON."""
    found = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    return [line for line in found if line["logger"] == "octavo.requests"]


def logged(script: Any, *, observability: ObservabilityConfig = LOGS, **options: Any) -> FastAPI:
    """An application; from here on what is logged goes to stderr as JSON."""
    setup_logging("DEBUG", is_server=True, log_format=LogFormat.JSON)
    return fake_app(script, observability=observability, **options)


def test_a_request_has_one_line_with_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    app = logged(always("Hello"))
    answer = post(app, CHAT, HI)
    [line] = lines_of(capsys)
    assert line["id"] == answer.json()["id"]
    assert (line["level"], line["path"], line["status"]) == ("INFO", CHAT, 200)
    assert (line["finish_reason"], line["completion_tokens"], line["cached_tokens"]) == (
        "stop",
        6,
        0,
    )
    assert line["prompt_tokens"] == answer.json()["usage"]["prompt_tokens"]
    assert 0 < line["ttft_ms"] <= line["total_ms"]
    assert line["tenant"] is None
    assert f"id={line['id']} path={CHAT} status=200 finish_reason=stop" in line["message"]


def test_streams_and_several_prompts_have_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    app = logged(token(WORLD))
    events(post(app, URL, {"prompt": ["x", "yz"], "max_tokens": 3, "stream": True}))
    [line] = lines_of(capsys)
    assert (line["prompt_tokens"], line["completion_tokens"]) == (3, 6)
    assert line["finish_reason"] == "length"


def test_refusals_and_failures_have_their_status(capsys: pytest.CaptureFixture[str]) -> None:
    client = FakeClient(always("Hello"))
    app = logged(client, api_key="sesame")
    key = {"authorization": "Bearer sesame"}
    post(app, CHAT, HI)
    post(app, CHAT, {"messages": []}, headers=key)
    post(app, "/v1/%0anope", {}, headers=key)
    client.fails_at = 2
    post(app, URL, {"prompt": "x"}, headers=key)
    refused, invalid, unknown, failed = lines_of(capsys)
    assert (refused["status"], refused["id"], refused["ttft_ms"]) == (401, None, None)
    assert invalid["status"] == 400
    assert (unknown["status"], unknown["path"]) == (404, "other")
    assert (failed["status"], failed["finish_reason"]) == (500, "error")


def test_a_client_that_leaves_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    app = logged(lambda request, index: [WORLD] * 90)

    async def leave() -> None:
        sent = 0

        async def receive() -> dict[str, Any]:
            nonlocal sent
            sent += 1
            if sent == 1:
                body = b'{"prompt": "x", "max_tokens": 90}'
                return {"type": "http.request", "body": body, "more_body": False}
            await asyncio.sleep(0)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            pass

        scope = {"type": "http", "method": "POST", "path": URL, "raw_path": URL.encode(),
                 "headers": [], "query_string": b"", "http_version": "1.1", "scheme": "http",
                 "root_path": "", "server": ("127.0.0.1", 80), "client": None}  # fmt: skip
        await app(scope, receive, send)  # type: ignore[arg-type]

    asyncio.run(leave())
    [line] = lines_of(capsys)
    assert (line["status"], line["finish_reason"]) == (499, "abort")


def test_without_the_flag_nothing_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    post(logged(always("Hello"), observability=QUIET), CHAT, HI)
    assert lines_of(capsys) == []


def test_a_report_that_fails_spoils_no_answer(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken:
        wants_content = False

        def ended(self, request: HttpRequest) -> None:
            raise RuntimeError("it broke")

    app = logged(always("Hello"), observability=QUIET)
    app.add_middleware(Reporting, reports=[Broken()])
    assert post(app, CHAT, HI).status_code == 200
    [line] = lines_of(capsys)
    assert line["level"] == "ERROR"
    assert "it broke" in line["exception"]


MARKER = "Xq7-marker"
SECRET = "sk-Zz9-secret"


def every_kind(app: FastAPI, client: FakeClient) -> list[httpx.Response]:
    """Requests that end in all the ways there are, each with the marker in it."""
    key = {"authorization": f"Bearer {SECRET}"}
    said = {"messages": [{"role": "user", "content": MARKER}]}
    answers = [
        post(app, CHAT, said, headers=key),
        post(app, CHAT, {**said, "stream": True, "logprobs": True}, headers=key),
        post(
            app, URL, {"prompt": MARKER, "echo": True, "logprobs": 1, "explain": True}, headers=key
        ),
        post(app, URL, {"prompt": MARKER, "stop": MARKER, "user": MARKER}, headers=key),
        post(app, URL, {"prompt": MARKER * 50}, headers=key),
        post(app, CHAT, {"messages": [{"role": MARKER, "content": {MARKER: 1}}]}, headers=key),
        post(app, CHAT, {**said, "temperature": MARKER, MARKER: MARKER}, headers=key),
        post(app, CHAT, {**said, "model": MARKER}, headers=key),
        post(app, CHAT, content=MARKER.encode(), headers=key),
        post(app, "/tokenize", {"prompt": MARKER}, headers=key),
        post(app, CHAT, said, headers={"authorization": f"Bearer {SECRET}x"}),
        post(app, CHAT, said, headers={"x-api-key": f"{SECRET}x"}),
    ]
    client.fails_at = 2
    answers.append(post(app, URL, {"prompt": MARKER}, headers=key))
    client.close()
    return [*answers, post(app, URL, {"prompt": MARKER}, headers=key)]


@pytest.mark.parametrize("log_format", LogFormat)
def test_no_log_at_any_level_has_prompts_answers_or_keys(
    capsys: pytest.CaptureFixture[str], log_format: LogFormat
) -> None:
    setup_logging("DEBUG", is_server=True, log_format=log_format)
    others = logging.getLogger()
    caught = logging.StreamHandler()  # of libraries; to the captured stderr too
    others.addHandler(caught)
    before, others.level = others.level, logging.DEBUG
    try:
        client = FakeClient(always(MARKER))
        app = fake_app(client, api_key=SECRET, observability=LOGS)
        statuses = {answer.status_code for answer in every_kind(app, client)}
    finally:
        others.removeHandler(caught)
        others.level = before
    assert statuses >= {200, 400, 401, 404, 500, 503}
    written = capsys.readouterr()
    assert written.err.count("octavo.requests") == 14
    for secret in (MARKER, MARKER.encode().hex(), SECRET):
        assert secret not in written.err + written.out
