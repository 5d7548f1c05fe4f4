"""Talks to an application in this process, and reads server-sent events strictly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import httpx
from fastapi import FastAPI

from octavo.api.async_llm import AsyncLLM
from octavo.observability.config import QUIET, ObservabilityConfig
from octavo.server.app import create_app
from octavo.server.config import DEFAULT_SECURITY, SecurityConfig
from octavo.server.security import resolve_access
from tests.unit.api.fakes import TEMPLATE, FakeClient, LoopClient, Script, processor


def fake_app(
    script: Script | FakeClient,
    *,
    chat_template: str | None = TEMPLATE,
    api_key: str | None = None,
    security: SecurityConfig = DEFAULT_SECURITY,
    host: str = "0.0.0.0",  # whose names are not checked
    observability: ObservabilityConfig = QUIET,
    model_name: str | None = None,
) -> FastAPI:
    """An application over a scripted engine, named "fake"."""
    client = script if isinstance(script, FakeClient) else FakeClient(script)
    llm = AsyncLLM.from_client(
        lambda deliver: LoopClient(client, deliver),
        processor(info=client.info, chat_template=chat_template),
        lambda: not client.is_closed,
    )
    access = resolve_access(security, host, api_key)
    return create_app(llm, model_name=model_name, access=access, observability=observability)


async def send(
    app: FastAPI,
    method: str,
    path: str,
    body: object = None,
    *,
    content: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> httpx.Response:
    """One request; the whole answer."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        data = (
            content if content is not None else None if body is None else json.dumps(body).encode()
        )
        sent = {"content-type": "application/json", **(headers or {})}
        return await client.request(method, path, content=data, headers=sent, timeout=60)


def ask(app: FastAPI, method: str, path: str, body: object = None, **more: Any) -> httpx.Response:
    """`send`, from a test that is not asynchronous."""
    return asyncio.run(send(app, method, path, body, **more))


def post(app: FastAPI, path: str, body: object = None, **more: Any) -> httpx.Response:
    """POST a JSON body."""
    return ask(app, "POST", path, body, **more)


def error_of(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    """The error of an answer that must be a well-formed one."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    kind = "invalid_request_error" if status < 500 else "server_error"
    assert error["type"] == ("rate_limit_error" if status == 429 else kind)
    return error  # type: ignore[no-any-return]


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The chunks of a stream, whose framing is checked byte by byte."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return parse_events(response.content)


def parse_events(data: bytes) -> list[dict[str, Any]]:
    """The JSON objects before `data: [DONE]`."""
    *blocks, rest = data.split(b"\n\n")
    assert rest == b""
    assert all(block.startswith(b"data: ") and block.count(b"\n") == 0 for block in blocks)
    assert blocks[-1] == b"data: [DONE]"
    return [json.loads(block.removeprefix(b"data: ")) for block in blocks[:-1]]
