"""Start, announce, drain, stop: the life of a server process around its application."""

from __future__ import annotations

import asyncio
import errno
import functools
import gc
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Final

import uvicorn
from fastapi import FastAPI

from octavo import __version__
from octavo.api.async_llm import AsyncLLM
from octavo.api.start import EarlyProcess
from octavo.config import EngineConfig, QueueLimits
from octavo.errors import InvalidRequest
from octavo.observability.config import QUIET, ObservabilityConfig
from octavo.server.app import create_app
from octavo.server.config import DEFAULT_SECURITY, SecurityConfig, ServerConfig
from octavo.server.connection import GuardedProtocol
from octavo.server.security import resolve_access, warning

EXIT_OK: Final = 0
EXIT_ENGINE_LOST: Final = 3
EXIT_PORT_IN_USE: Final = 5
EXIT_INTERRUPTED: Final = 130
_SHUTTING_DOWN: Final = "the server is shutting down"
_BACKLOG: Final = 2048


class PortInUse(Exception):
    """Somebody else listens there."""


def run_server(
    engine: EngineConfig,
    server: ServerConfig,
    *,
    api_key: str | None = None,
    security: SecurityConfig = DEFAULT_SECURITY,
    observability: ObservabilityConfig = QUIET,
    early: EarlyProcess | None = None,
    announce: Callable[[str], None],
) -> int:
    """Serve until told to stop; return the exit code. `announce` gets the start-up line, or why there is none.

    `early` is a process that waits to be the engine.

    The port is taken before the model is loaded, and answers after. SIGTERM and Ctrl-C let running requests finish for
    `grace_s`, then end them with an error; a second one ends them at once. The engine runs in a process of its own;
    if it dies it is replaced, and if it cannot be the server ends.
    Raises: InvalidRequest, ModelError, StoreError, CapacityError, EngineDead.
    """
    is_lost = threading.Event()
    stop_lost: list[Callable[[], None]] = []

    def on_lost() -> None:
        is_lost.set()
        for stop in stop_lost:
            stop()

    access = resolve_access(security, server.host, api_key)
    tls = security.tls_options()
    try:
        with bind(server.host, server.port) as sock:
            limits = QueueLimits(server.max_queued_requests, server.max_queued_tokens)
            with AsyncLLM.supervised(
                engine, queue=limits, replays=server.replay, early=early, on_lost=on_lost
            ) as llm:
                _listen(sock)
                runner = DrainingServer(
                    create_app(llm, access=access, observability=observability),
                    server.grace_s,
                    on_ready=lambda: announce(start_line(llm, sock, security.scheme)),
                    security=security,
                    tls=tls,
                )
                risk = warning(access, server.host)
                if risk is not None:
                    announce(risk)
                stop_lost.append(runner.stop_soon)
                gc.collect()
                gc.freeze()  # or each large body has the collector walk through all there is
                if not is_lost.is_set():
                    runner.run(sockets=[sock])
            if is_lost.is_set():
                announce("the engine stopped and could not be started again: see the log")
                return EXIT_ENGINE_LOST
            return EXIT_INTERRUPTED if runner.stopped_by == signal.SIGINT else EXIT_OK
    except PortInUse:
        announce(
            f"port {server.port} on {server.host} is in use: stop the other server, or choose another --port"
        )
        return EXIT_PORT_IN_USE


def bind(host: str, port: int) -> socket.socket:
    """A socket with this address. Raises: PortInUse; InvalidRequest for an address that this machine cannot have."""
    if not 0 <= port <= 65535:
        raise InvalidRequest(f"port must be between 0 and 65535, got {port}", param="port")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InvalidRequest(f"cannot listen on {host}: {error.strerror}", param="host") from None
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUse from None
        raise InvalidRequest(
            f"cannot listen on {host} port {port}: {error.strerror}", param="host"
        ) from None
    return sock


def start_line(llm: AsyncLLM, sock: socket.socket, scheme: str = "http") -> str:
    """What is served, where, and by what."""
    host, port = sock.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    info = llm.info
    return (
        f"Octavo {__version__} serves {info.model_name} at {scheme}://{shown}:{port} "
        f"({info.kernel_table}, {info.num_threads} threads, context {info.max_model_len}, "
        f"{info.num_blocks * info.block_size} tokens of KV cache)"
    )


class DrainingServer(uvicorn.Server):
    """A server that lets running requests finish, within limits, when it is told to stop."""

    def __init__(
        self,
        app: FastAPI,
        grace_s: int,
        *,
        on_ready: Callable[[], None],
        security: SecurityConfig = DEFAULT_SECURITY,
        tls: Mapping[str, Any] | None = None,
    ) -> None:
        """`on_ready` is called once requests and signals are handled. `tls`: as of SecurityConfig.tls_options."""
        protocol = functools.partial(
            GuardedProtocol,
            client_timeout_s=security.client_timeout,
            max_connections=security.max_connections,
            max_body_bytes=security.max_body_bytes,
            on_drop=app.state.server.metrics.drop,
        )
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol,  # type: ignore[arg-type]  # uvicorn only calls it
                **(tls or {}),
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                ws="none",
                timeout_graceful_shutdown=grace_s
                + 2,  # the errors of ended requests are still sent
            )
        )
        self.stopped_by: int | None = None
        self._state = app.state.server
        self._grace_s = grace_s
        self._on_ready = on_ready
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal comes."""
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, then say so: whoever reads the line may send a signal or a request at once."""
        await super().startup(sockets)
        self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called for SIGTERM and SIGINT. uvicorn's own would raise the signal again after the end."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.stop, sig)

    def stop_soon(self) -> None:
        """Stop, there is no engine any more. Called from any thread."""
        self.should_exit = True

    def stop(self, sig: int) -> None:
        """Begin to drain; the second time, end at once. Called in the event loop."""
        llm = self._state.llm
        if self.stopped_by is not None:
            llm.end_all(_SHUTTING_DOWN)
            self.force_exit = True
            return
        self.stopped_by = sig
        self._state.is_draining = True
        self.should_exit = True
        asyncio.get_running_loop().call_later(self._grace_s, llm.end_all, _SHUTTING_DOWN)


def _listen(sock: socket.socket) -> None:
    try:
        sock.listen(_BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:  # another server was quicker to load
            raise PortInUse from None
        raise
