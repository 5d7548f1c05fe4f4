"""What every request passes first: the key, and the refusal of new work while draining."""

from __future__ import annotations

import hmac
from http import HTTPStatus
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.server.errors import ApiError
from octavo.server.state import ServerState

_OPEN_PATHS: Final = frozenset(("/", "/health", "/ready", "/version"))
"""Reachable without key, and while draining. All else is closed, whatever the path looks like."""


class Gate:
    """ASGI middleware in front of all routes."""

    def __init__(self, app: ASGIApp, server: ServerState) -> None:
        self._app = app
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await refusal.response()(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        if scope["path"] in _OPEN_PATHS:
            return None
        key = self._server.api_key
        if key is not None and not _has_key(Headers(scope=scope), key):
            return ApiError(
                HTTPStatus.UNAUTHORIZED,
                "a valid key is needed: Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        if self._server.is_draining and scope["method"] == "POST":
            return ApiError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "the server is shutting down",
                code="draining",
                headers={"retry-after": "5", "connection": "close"},
            )
        return None


def _has_key(headers: Headers, key: str) -> bool:
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        given = headers.get("x-api-key", "")
    return hmac.compare_digest(given.strip().encode(), key.encode())
