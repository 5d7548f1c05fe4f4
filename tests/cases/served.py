"""Requests to a served real model, and ways to force what it says."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx
from fastapi import FastAPI

from tests.server.wire import events, post, send

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HI = {"messages": [{"role": "user", "content": "Hi"}]}
WORLD = {"temperature": 0, "logit_bias": {"905": 100}}
"""Forces ' world' on smollm2, for ever."""


def completion(app: FastAPI, **body: Any) -> dict[str, Any]:
    """The answer of /v1/completions, which must be a good one."""
    return good(post(app, COMPLETIONS, body))


def chat(app: FastAPI, **body: Any) -> dict[str, Any]:
    """The answer of /v1/chat/completions to "Hi" or to `messages`, which must be a good one."""
    return good(post(app, CHAT, {**HI, **body}))


def good(response: httpx.Response) -> dict[str, Any]:
    """The body of an answer with status 200."""
    assert response.status_code == 200, response.text
    return response.json()  # type: ignore[no-any-return]


def text(answer: dict[str, Any], index: int = 0) -> str:
    """Text of one choice, of either route."""
    choice = answer["choices"][index]
    return choice["text"] if "text" in choice else choice["message"]["content"]  # type: ignore[no-any-return]


def finish(answer: dict[str, Any]) -> str:
    """Finish reason of the first choice."""
    return answer["choices"][0]["finish_reason"]  # type: ignore[no-any-return]


def stream(app: FastAPI, path: str, **body: Any) -> list[dict[str, Any]]:
    """The chunks of a streamed answer."""
    base = HI if path == CHAT else {}
    return events(post(app, path, {**base, **body, "stream": True}))


def deltas(chunks: Sequence[dict[str, Any]], index: int = 0) -> list[str]:
    """The texts of one choice of a stream, in order."""
    choices = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
    return [c["text"] if "text" in c else c["delta"].get("content", "") for c in choices]


def all_at_once(app: FastAPI, path: str, bodies: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Answers to requests that run together, in the order of the bodies."""

    async def main() -> list[httpx.Response]:
        return await asyncio.gather(*(send(app, "POST", path, body) for body in bodies))

    return [good(response) for response in asyncio.run(main())]


def token_ids(app: FastAPI, prompt: str) -> list[int]:
    """The ids of a text."""
    return good(post(app, "/tokenize", {"prompt": prompt, "add_special_tokens": False}))["tokens"]  # type: ignore[no-any-return]


def forcing(ids: Sequence[int]) -> dict[str, Any]:
    """Parameters under which a model says these ids, all different, in this order.

    The bias falls from one to the next, and the repetition penalty wipes out that of an id once it was said.
    """
    assert len(set(ids)) == len(ids) <= 5
    bias = {str(token_id): 100 - 19 * i for i, token_id in enumerate(ids)}
    return {
        "temperature": 0,
        "logit_bias": bias,
        "repetition_penalty": 100.0,
        "max_tokens": len(ids),
    }
