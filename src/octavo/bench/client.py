"""A small HTTP client for load: one asyncio protocol per connection, connections kept for the next request."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, cast
from urllib.parse import urlsplit

from octavo import __version__
from octavo.bench.exchange import Exchange
from octavo.bench.stats import RequestRecord
from octavo.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go. `path` is that of the API, such as "/v1"."""

    host: str
    port: int
    path: str
    is_tls: bool = False
    api_key: str | None = None

    @classmethod
    def parse(cls, url: str, api_key: str | None = None) -> Self:
        """From a URL such as "http://127.0.0.1:8000" or ".../v1". Raises: InvalidRequest."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise InvalidRequest(f"url {url!r}: {error}", param="url") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequest(
                f"url {url!r} is not one: write http://127.0.0.1:8000", param="url"
            )
        is_tls = parts.scheme == "https"
        path = parts.path.rstrip("/")
        path = path if path.endswith("/v1") else f"{path}/v1"
        return cls(parts.hostname, port or (443 if is_tls else 80), path, is_tls, api_key)

    @property
    def url(self) -> str:
        """The API's URL, as it is shown and as other clients take it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}{self.path}"

    @property
    def is_local(self) -> bool:
        """Whether the server runs on this machine, as far as its name tells."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every request."""
        headers = {"user-agent": f"octavo-bench/{__version__}"}
        return headers | ({"authorization": f"Bearer {self.api_key}"} if self.api_key else {})

    def post(self, route: str, body: bytes) -> bytes:
        """The bytes of a POST request with a JSON body."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        fields = {
            "host": f"{host}:{self.port}",
            "content-type": "application/json",
            "accept": "text/event-stream",
            "content-length": str(len(body)),
        } | self.headers
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return f"POST {self.path}{route} HTTP/1.1\r\n{head}\r\n".encode() + body


class Client:
    """Sends requests to one server, each over a connection of its own while it lasts. A context manager."""

    def __init__(self, target: Target, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._target = target
        self._clock = clock
        self._tls = ssl.create_default_context() if target.is_tls else None
        self._idle: list[_Connection] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    async def send(self, request: bytes, started_s: float) -> RequestRecord:
        """Send one request and read its streamed answer. Failures are in the record."""
        exchange = Exchange(started_s)
        try:
            while not exchange.is_done:
                connection, is_new = await self._connection()
                is_answered = await connection.run(request, exchange)
                if not is_answered and is_new:
                    exchange.fail("the server closed the connection unanswered", self._clock())
                if exchange.keeps_alive and connection.is_open:
                    self._idle.append(connection)
                else:
                    connection.abort()
        except OSError as error:
            exchange.fail(f"cannot connect: {error}", self._clock())
        return exchange.record

    async def _connection(self) -> tuple[_Connection, bool]:
        """A connection, and whether it is new: one from before may be closed by the server at any moment."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection, False
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(
            lambda: _Connection(self._clock), self._target.host, self._target.port, ssl=self._tls
        )
        return made, True


class _Connection(asyncio.Protocol):
    """One connection; carries one request at a time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.is_open = False
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._is_answered = False
        self._ended: asyncio.Future[None] | None = None

    async def run(self, request: bytes, exchange: Exchange) -> bool:
        """Send a request and wait for the end of its answer. False if the server left before the first byte of it."""
        if self._transport is None or not self.is_open:
            return False
        self._exchange, self._is_answered = exchange, False
        self._ended = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            await self._ended
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            self._exchange = None
        return self._is_answered

    def abort(self) -> None:
        """Close at once; the server sees that its client left."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        if self._exchange is None:  # nobody asked
            self.abort()
            return
        self._is_answered = True
        self._exchange.feed(data, self._clock())
        if self._exchange.is_done:
            self._end()

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the event loop."""
        self.is_open = False
        if self._exchange is not None and self._is_answered:
            self._exchange.close(self._clock())
        self._end()

    def _end(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
