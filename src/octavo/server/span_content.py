"""What a request and its answer say, as span attributes: only for those who asked for it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any


def content_attributes(received: bytes, sent: bytes) -> dict[str, str]:
    """The messages of a body and of its answer, whole or streamed. Nothing of what cannot be read."""
    try:
        body = json.loads(received)
        messages = body.get("messages") or _prompts(body.get("prompt"))
        attributes = {"gen_ai.input.messages": json.dumps([_message(m) for m in messages])}
        if body.get("tools"):
            attributes["gen_ai.tool.definitions"] = json.dumps(body["tools"])
        answers = [
            _message({"role": "assistant", "content": text}) | {"finish_reason": reason}
            for text, reason in _answers(_chunks(sent))
        ]
    except (ValueError, TypeError, AttributeError, KeyError):
        return {}
    return attributes | {"gen_ai.output.messages": json.dumps(answers)}


def _prompts(prompt: Any) -> list[dict[str, Any]]:
    prompts = [prompt] if isinstance(prompt, str) else prompt or []
    return [{"role": "user", "content": p} for p in prompts if isinstance(p, str)]


def _message(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content") or ""
    texts = [content] if isinstance(content, str) else [part.get("text", "") for part in content]
    parts = [{"type": "text", "content": text} for text in texts]
    return {"role": message.get("role", "user"), "parts": parts}


def _chunks(sent: bytes) -> Iterator[dict[str, Any]]:
    """The objects of an answer: one, or those of its events."""
    if not sent.startswith(b"data: "):
        yield json.loads(sent)
        return
    for event in sent.split(b"\n\n"):
        data = event.removeprefix(b"data: ")
        if data and data != b"[DONE]":
            yield json.loads(data)


def _answers(chunks: Iterable[dict[str, Any]]) -> list[tuple[str, str | None]]:
    """Text and finish reason of each choice, in order."""
    texts: dict[int, str] = {}
    reasons: dict[int, str | None] = {}
    for chunk in chunks:
        for choice in chunk.get("choices", ()):
            index = choice["index"]
            said = choice.get("message") or choice.get("delta") or {"content": choice.get("text")}
            texts[index] = texts.get(index, "") + (said.get("content") or "")
            reasons[index] = choice.get("finish_reason") or reasons.get(index)
    return [(texts[index], reasons[index]) for index in sorted(texts)]
