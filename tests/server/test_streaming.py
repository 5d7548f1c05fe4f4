"""What a stream costs and tells: chunks are joined for who is slow, counts come with each if asked for."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from fastapi import FastAPI

from octavo.outputs import Finished, FinishReason, TextDelta
from octavo.server.answer import coalesced
from tests.server.wire import events, fake_app, parse_events, post
from tests.unit.api.fakes import END, FakeClient, always, ids_of

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "Hi"}]


def test_deltas_of_a_choice_become_one_and_ends_come_last() -> None:
    a, b = TextDelta(0, "a", (1,), ({1: None},)), TextDelta(0, "b", (2, 3), ({2: None}, {3: None}))  # type: ignore[dict-item]
    other, elsewhere = TextDelta(1, "x", (9,)), TextDelta(0, "y", (8,))
    end = Finished(1, FinishReason.STOP)
    batch = [(0, a), (0, other), (0, end), (1, elsewhere), (0, b)]
    joined = TextDelta(0, "ab", (1, 2, 3), ({1: None}, {2: None}, {3: None}))  # type: ignore[dict-item]
    assert coalesced(batch) == [(0, joined), (0, other), (1, elsewhere), (0, end)]
    assert coalesced([(0, a)]) == [(0, a)]


async def read_slowly(app: FastAPI, path: str, body: dict[str, Any], yields: int) -> bytes:
    """The body of a stream whose client takes each part only after the engine had `yields` turns."""
    parts: list[bytes] = []
    is_read = False

    async def receive() -> dict[str, Any]:
        nonlocal is_read
        if not is_read:
            is_read = True
            return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        parts.append(message.get("body", b""))
        for _ in range(yields):
            await asyncio.sleep(0)

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": path,
        "raw_path": path.encode(), "query_string": b"", "root_path": "", "scheme": "http", "headers": [],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
    }  # fmt: skip
    await asyncio.wait_for(app(scope, receive, send), 10)
    return b"".join(parts)


def content_of(chunks: list[dict[str, Any]], index: int) -> tuple[str, list[Any], list[Any]]:
    """Text, scores and finish reasons of one choice."""
    own = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
    text = "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in own)
    scores: list[Any] = []
    for one in (c["logprobs"] for c in own if c["logprobs"]):
        scores += one["content"] if "content" in one else zip(*one.values(), strict=True)
    return text, scores, [c["finish_reason"] for c in own if c["finish_reason"]]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": HI, "logprobs": True, "top_logprobs": 2}),
        (COMPLETIONS, {"prompt": ["x", "y"], "echo": True, "logprobs": 1}),
    ],
)
def test_a_slow_reader_gets_the_same_in_fewer_chunks(path: str, body: dict[str, Any]) -> None:
    def script(request: object, index: int) -> list[int]:
        return [*ids_of(f"{index}: some words é "), 262, 0xA6, 263, END]

    body = {**body, "n": 2, "seed": 1, "max_tokens": 40, "stream": True}
    fast = parse_events(asyncio.run(read_slowly(fake_app(script), path, body, 0)))
    slow = parse_events(asyncio.run(read_slowly(fake_app(script), path, body, 8)))
    num_choices = 2 if path == CHAT else 4
    for index in range(num_choices):
        assert content_of(slow, index) == content_of(fast, index)
        assert content_of(slow, index)[2] == ["stop"]
    assert len(slow) < len(fast) / 2


@pytest.mark.parametrize(
    ("path", "body"), [(CHAT, {"messages": HI}), (COMPLETIONS, {"prompt": "x" * 20})]
)
def test_every_chunk_counts_the_tokens_of_its_choice_if_asked(
    path: str, body: dict[str, Any]
) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    app = fake_app(lambda request, index: [*ids_of("abc"[: 2 + index]), END])
    body = {**body, "n": 2, "seed": 1, "stream": True, "stream_options": options}
    *chunks, last = events(post(app, path, body))
    for index in (0, 1):
        own = [c["usage"] for c in chunks if c["choices"][0]["index"] == index]
        counts = [usage["completion_tokens"] for usage in own]
        assert counts == sorted(counts)
        assert counts[-1] == 3 + index
        assert {usage["prompt_tokens"] for usage in own} == {20}
        assert all(u["total_tokens"] == 20 + u["completion_tokens"] for u in own)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 7


def test_counts_in_every_chunk_need_include_usage() -> None:
    options = {"continuous_usage_stats": True}
    body = {"messages": HI, "stream": True, "stream_options": options}
    assert all("usage" not in chunk for chunk in events(post(fake_app(always("a")), CHAT, body)))


def test_a_step_of_several_tokens_is_one_chunk() -> None:
    app = fake_app(FakeClient(always("abcdef"), per_step=3))
    chunks = events(post(app, CHAT, {"messages": HI, "stream": True}))
    contents = [c["choices"][0]["delta"].get("content") for c in chunks]
    assert contents == ["", "abc", "def", None]
