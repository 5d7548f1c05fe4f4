"""Tells of each HTTP request at its end, to whoever wants to know: the log, a collector of traces."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, Protocol

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.api.outputs_processor import RequestState
from octavo.observability.logs import log_fields

_log = logging.getLogger("octavo.requests")

_KNOWN_PATHS: Final = frozenset(
    ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize", "/reset_prefix_cache")
)


@dataclass(slots=True)
class HttpRequest:
    """One HTTP request, for those who report it. `states` are the engine's requests that it caused."""

    path: str
    headers: Mapping[str, str]
    server: tuple[str, int | None]
    started_ns: int = field(default_factory=time.time_ns)
    started_s: float = field(default_factory=time.perf_counter)
    elapsed_s: float = 0.0
    status: int = HTTPStatus.INTERNAL_SERVER_ERROR
    is_stream: bool = False
    states: list[RequestState] = field(default_factory=list)
    received: bytearray = field(default_factory=bytearray)
    """The body, if a report wants it."""
    sent: bytearray = field(default_factory=bytearray)
    """The body of the answer, if a report wants it."""

    @property
    def finish_reasons(self) -> list[str]:
        """How each choice ended."""
        return [reason.value for state in self.states for reason in state.finish_reasons]

    @property
    def error_type(self) -> str | None:
        """What kind of failure it was, in a word; None if it was none."""
        reasons = self.finish_reasons
        if self.status >= HTTPStatus.BAD_REQUEST:
            return str(int(self.status))
        return next((reason for reason in ("error", "abort") if reason in reasons), None)


class Report(Protocol):
    """Takes requests that ended. `wants_content`: bodies are to be kept for it."""

    wants_content: bool

    def ended(self, request: HttpRequest) -> None:
        """Take a request; called in the event loop."""
        ...


_current: ContextVar[HttpRequest | None] = ContextVar("octavo_http_request", default=None)


def note_states(states: Iterable[RequestState]) -> None:
    """Note which requests of the engine the HTTP request at hand causes. Nothing if nobody reports it."""
    request = _current.get()
    if request is not None:
        request.states.extend(states)


class Reporting:
    """ASGI middleware around all others: sees refusals too. Only POST requests are told of."""

    def __init__(self, app: ASGIApp, reports: Sequence[Report]) -> None:
        self._app = app
        self._reports = reports
        self._keeps_content = any(report.wants_content for report in reports)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        request = HttpRequest(
            path=path if path in _KNOWN_PATHS else "other",  # what else a client writes there
            headers=Headers(scope=scope),
            server=scope.get("server") or ("", None),
        )
        token = _current.set(request)
        try:
            await self._app(scope, self._receiver(request, receive), self._sender(request, send))
        finally:
            _current.reset(token)
            request.elapsed_s = time.perf_counter() - request.started_s
            for report in self._reports:
                _tell(report, request)

    def _receiver(self, request: HttpRequest, receive: Receive) -> Receive:
        async def receive_and_keep() -> Message:
            message = await receive()
            request.received += message.get("body", b"")
            return message

        return receive_and_keep if self._keeps_content else receive

    def _sender(self, request: HttpRequest, send: Send) -> Send:
        async def send_and_note(message: Message) -> None:
            if message["type"] == "http.response.start":
                request.status = message["status"]
                kind = Headers(raw=message["headers"]).get("content-type", "")
                request.is_stream = kind.startswith("text/event-stream")
            elif self._keeps_content:
                request.sent += message.get("body", b"")
            await send(message)

        return send_and_note


def _tell(report: Report, request: HttpRequest) -> None:
    try:
        report.ended(request)
    except Exception:  # the client has its answer: a report must not spoil it
        _log.exception("a report of a request failed")


class RequestLog:
    """A line per request, without anything of its content."""

    wants_content = False

    def ended(self, request: HttpRequest) -> None:
        """Write the line."""
        usages = [state.usage for state in request.states]
        first_s = [s.metrics.first_token_s for s in request.states if s.metrics.first_token_s]
        fields = {
            "id": request.states[0].request_id if request.states else None,
            "path": request.path,
            "status": int(request.status),
            "finish_reason": ",".join(dict.fromkeys(request.finish_reasons)) or None,
            "tenant": (request.states[0].trace.tenant if request.states else "") or None,
            "prompt_tokens": sum(usage.prompt_tokens for usage in usages),
            "cached_tokens": sum(usage.cached_tokens for usage in usages),
            "completion_tokens": sum(usage.completion_tokens for usage in usages),
            "ttft_ms": round(1000 * min(first_s), 3) if first_s else None,
            "total_ms": round(1000 * request.elapsed_s, 3),
        }
        shown = " ".join(f"{name}={value}" for name, value in fields.items() if value is not None)
        _log.info("%s", shown, extra=log_fields(fields))
