"""What every request passes first: host, origin, key and its limits, and the refusal of new work while draining."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.server.errors import ApiError
from octavo.server.keys import Caller, note_caller
from octavo.server.state import ServerState

_OPEN_PATHS: Final = frozenset(("/", "/health", "/ready", "/version"))
"""Reachable without key, and while draining. All else is closed, whatever the path looks like."""
_ADMIN_PATHS: Final = frozenset(("/reset_prefix_cache",))
"""What one tenant could do to all others."""
_CHANGING_METHODS: Final = frozenset(("POST", "PUT", "PATCH", "DELETE"))


class Gate:
    """ASGI middleware in front of all routes."""

    def __init__(self, app: ASGIApp, server: ServerState) -> None:
        self._app = app
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            caller = self._admit(scope)
        except ApiError as refusal:
            await refusal.response()(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            if caller is not None:
                caller.leave()

    def _admit(self, scope: Scope) -> Caller | None:
        """Whose request it is, if that is counted. Raises: ApiError."""
        headers = Headers(scope=scope)
        self._check_names(scope, headers)
        if scope["path"] in _OPEN_PATHS:
            return None
        caller = self._caller(scope, headers)
        if self._server.is_draining and scope["method"] == "POST":
            raise ApiError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "the server is shutting down",
                code="draining",
                headers={"retry-after": "5", "connection": "close"},
            )
        if caller is None:
            return None
        if scope["path"] in _ADMIN_PATHS and not caller.entry.is_admin:
            raise ApiError(
                HTTPStatus.FORBIDDEN, "this key has no is_admin = true", code="not_admin"
            )
        note_caller(scope, caller)
        if scope["method"] != "POST":
            return None
        try:
            caller.admit()
        except ApiError as refusal:
            self._server.metrics.reject(refusal.code or "")
            raise
        return caller

    def _check_names(self, scope: Scope, headers: Headers) -> None:
        access = self._server.access
        host = headers.get("host", "")
        if not access.takes_host(host):
            raise ApiError(
                HTTPStatus.FORBIDDEN,
                "this server answers to localhost: --allowed-hosts adds names",
                code="host_not_allowed",
            )
        origin = headers.get("origin")
        is_change = scope["method"] in _CHANGING_METHODS
        if origin is not None and is_change and not access.takes_origin(origin, host):
            raise ApiError(
                HTTPStatus.FORBIDDEN,
                "pages of this origin may not call this server: --allowed-origins adds origins",
                code="origin_not_allowed",
            )

    def _caller(self, scope: Scope, headers: Headers) -> Caller | None:
        access = self._server.access
        if access.keys is None or (access.has_open_metrics and scope["path"] == "/metrics"):
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            given = headers.get("x-api-key", "")
        caller = access.keys.find(given.strip())
        if caller is None:
            raise ApiError(
                HTTPStatus.UNAUTHORIZED,
                "a valid key is needed: Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        return caller
