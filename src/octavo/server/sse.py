"""Server-sent events: a response that watches its client, and chunks as bytes made without a serialiser per token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from typing import Any, Final, TypeVar

import msgspec
from fastapi import Response
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

DONE: Final = b"data: [DONE]\n\n"

_T = TypeVar("_T")


def event(value: Mapping[str, Any]) -> bytes:
    """One event that holds a JSON object. JSON escapes line breaks, so it is always one line."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


class EventStream(Response):
    """A stream of events. The status is sent with the first of them: an error before it is an ordinary answer.

    The generator is closed when the client goes away, wherever it stands.
    """

    media_type = "text/event-stream"

    def __init__(
        self, chunks: AsyncGenerator[bytes, None], headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", **(headers or {})})
        del self.headers["content-length"]  # of the empty body that Response assumes
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_disconnected(receive, self._send_all(send))
        except ClientDisconnect:
            return

    async def _send_all(self, send: Send) -> None:
        is_started = False
        try:
            async for chunk in self._chunks:
                if not is_started:
                    is_started = True
                    await send(
                        {
                            "type": "http.response.start",
                            "status": self.status_code,
                            "headers": self.raw_headers,
                        }
                    )
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await self._chunks.aclose()


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """The result of `work`, which is cancelled when the client goes away. The request's body was read before.

    Raises: ClientDisconnect.
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for each in (task, watch):
            each.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class ChunkEncoder:
    """Encodes the chunks of one stream. All that is the same in each is encoded once."""

    def __init__(self, head: Mapping[str, Any], *, has_usage: bool) -> None:
        self._head = dict(head)
        self._start = b"data: " + msgspec.json.encode(self._head)[:-1] + b',"choices":[{"index":'
        # With include_usage every chunk but the last has a null usage.
        self._end = b'}],"usage":null}\n\n' if has_usage else b"}]}\n\n"

    def choice(
        self,
        index: int,
        content: bytes,
        *,
        logprobs: bytes = b"null",
        finish: bytes = b"null",
        usage: bytes | None = None,
    ) -> bytes:
        """A chunk of one choice; `content` is its own key and value, `finish` the finish reason and what follows it.

        `usage` takes the place of the null one.
        """
        return b"".join(
            (
                self._start,
                b"%d," % index,
                content,
                b',"logprobs":',
                logprobs,
                b',"finish_reason":',
                finish,
                self._end if usage is None else b'}],"usage":%b}\n\n' % usage,
            )
        )

    def last(self, fields: Mapping[str, Any]) -> bytes:
        """The chunk that ends a stream, without choices: its token counts and what else was asked for."""
        return event(self._head | {"choices": [], **fields})
