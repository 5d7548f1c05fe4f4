"""HTTP connections with limits: how long a client may take, how large a head may be, how many there may be."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES: Final = 64 * 2**10
MAX_URL_BYTES: Final = 8 * 2**10
MAX_HEADERS: Final = 200
MIN_BODY_BYTES_PER_S: Final = 16 * 2**10
"""A body that comes slower than this, and takes longer than the time-out, is too slow."""
_CHECKS_PER_TIMEOUT: Final = 4

# struct tcp_info of Linux: segments on their way, all bytes ever acknowledged, bytes not even sent.
_TCP_INFO: Final = struct.Struct("=24xI92xQ16xI")


class _RefusedError(Exception):
    """The head of a request is not accepted."""


class GuardedProtocol(HttpToolsProtocol):
    """One connection. A client that is too slow, in sending or in reading, loses it; its requests are stopped then.

    `on_drop` is told why: "slow_request", "slow_reader" or "too_many_connections".
    """

    def __init__(
        self,
        *args: Any,
        client_timeout_s: float,
        max_connections: int,
        max_body_bytes: int,
        on_drop: Callable[[str], None],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._timeout_s = client_timeout_s
        self._max_connections = max_connections
        self._max_body_bytes = max_body_bytes
        self._on_drop = on_drop
        self._refusal: HTTPStatus | None = None
        self._is_in_head = True
        self._num_head_bytes = 0
        self._num_body_bytes = 0
        self._started_s: float | None = None  # when the request began that is not complete
        self._unread = 0
        self._num_acknowledged = 0
        self._progress_s = 0.0  # when the client had read something, or all there was
        self._check: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, or refuse it if there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self._max_connections:
            self._on_drop("too_many_connections")
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections")
            return
        _watch_peer(transport, self._timeout_s)
        self._started_s = self._progress_s = self.loop.time()
        self._check = self.loop.call_later(self._timeout_s / _CHECKS_PER_TIMEOUT, self._check_peer)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop watching."""
        if self._check is not None:
            self._check.cancel()
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if isinstance(exc, TimeoutError) and is_answering:  # the kernel came first
            self._on_drop("slow_reader")
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came, unless the head of a request grows beyond its limit."""
        if self.transport.is_closing():
            return
        if self._started_s is None:
            self._started_s = self.loop.time()
        was_in_head = self._is_in_head
        super().data_received(data)
        if was_in_head and self._is_in_head and not self.transport.is_closing():
            self._num_head_bytes += len(data)
            if self._num_head_bytes > MAX_HEAD_BYTES:
                self._refuse(
                    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the headers are too large"
                )

    def on_headers_complete(self) -> None:
        """Check the size of the head: then nothing has been done for it yet."""
        num_bytes = sum(len(name) + len(value) for name, value in self.headers)
        if len(self.url) > MAX_URL_BYTES:
            self._refusal = HTTPStatus.REQUEST_URI_TOO_LONG
        elif len(self.headers) > MAX_HEADERS or num_bytes > MAX_HEAD_BYTES:
            self._refusal = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        if self._refusal is not None:
            raise _RefusedError
        self._is_in_head = False
        self._num_body_bytes = 0
        super().on_headers_complete()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; trailers, which come after the head, are dropped."""
        if self._is_in_head:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """Take a part of the body. What follows an early answer is dropped, up to a limit."""
        self._num_body_bytes += len(body)
        super().on_body(body)
        if self.cycle.response_complete and self._num_body_bytes > self._max_body_bytes:
            self.transport.close()

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._is_in_head = True
        self._num_head_bytes = 0
        self._started_s = None
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, or has too large a head."""
        status = self._refusal or HTTPStatus.BAD_REQUEST
        text = msg if self._refusal is None else "the address or the headers are too large"
        self._refuse(status, text)

    def resume_writing(self) -> None:
        """Much was read: between two looks at the buffer it may have been filled again."""
        self._progress_s = self.loop.time()
        super().resume_writing()

    def _check_peer(self) -> None:
        """Look at the client from time to time."""
        if self.transport.is_closing() and not self.transport.get_write_buffer_size():
            return
        now = self.loop.time()
        if self._has_read_on():
            self._progress_s = now
        if now - self._progress_s >= self._timeout_s:
            self._on_drop("slow_reader")
            self.transport.abort()
            return
        if self._is_sending_late(now):
            self._on_drop("slow_request")
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, "the request came too slowly")
        self._check = self.loop.call_later(self._timeout_s / _CHECKS_PER_TIMEOUT, self._check_peer)

    def _has_read_on(self) -> bool:
        """Whether the client took anything since the last look, or has nothing to take."""
        unread = self.transport.get_write_buffer_size()
        known = _unacknowledged(self.transport)
        if known is not None:  # what lies in the kernel counts too, which takes megabytes
            num_acknowledged, has_more = known
            before, self._num_acknowledged = self._num_acknowledged, num_acknowledged
            return num_acknowledged > before or not (has_more or unread)
        # Not paused, an answer may make the buffer grow although its client reads.
        is_growing = not self.flow.write_paused and not (
            self.cycle is None or self.cycle.response_complete
        )
        before, self._unread = self._unread, unread
        return unread == 0 or unread < before or is_growing

    def _is_sending_late(self, now: float) -> bool:
        if self._started_s is None or self.transport.is_closing() or self.flow.read_paused:
            return False
        allowed_s = self._timeout_s + self._num_body_bytes / MIN_BODY_BYTES_PER_S
        return now - self._started_s >= allowed_s

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        """Answer and close. Nothing is written between the parts of another answer."""
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            self.transport.write(_answer(status, message))
        self.transport.close()


def _answer(status: HTTPStatus, message: str) -> bytes:
    kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    error = {"message": message, "type": kind, "param": None, "code": status.name.lower()}
    body = json.dumps({"error": error}).encode()
    return (
        b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
        b"connection: close\r\n\r\n%b" % (status, status.phrase.encode(), len(body), body)
    )


def _unacknowledged(transport: asyncio.Transport) -> tuple[int, bool] | None:
    """Bytes that the other side's kernel took so far, and whether ours holds more; None where that is not told."""
    sock, option = transport.get_extra_info("socket"), getattr(socket, "TCP_INFO", None)
    if sock is None or option is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, option, _TCP_INFO.size)
    except OSError:
        return None
    if len(info) < _TCP_INFO.size:  # an old kernel
        return None
    num_unacknowledged, num_acknowledged, num_unsent = _TCP_INFO.unpack(info)
    return num_acknowledged, bool(num_unacknowledged or num_unsent)


def _watch_peer(transport: asyncio.Transport, timeout_s: float) -> None:
    """Let the kernel find out about a peer that is gone without a word: later than we would, who count why."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", max(1, int(timeout_s))),
        ("TCP_KEEPINTVL", max(1, int(timeout_s / 3))),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", max(1, int(2000 * timeout_s))),
    ):
        option = getattr(socket, name, None)  # some systems lack some
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
