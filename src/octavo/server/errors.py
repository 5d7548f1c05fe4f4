"""Errors as the OpenAI API words them. HTTP status codes exist only in `server`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from http import HTTPStatus

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from octavo.errors import CapacityError, EngineDead, InvalidRequest, OctavoError, QueueFull
from octavo.messages import MAX_WAIT_EXCEEDED

_TELLS_TOO_MUCH = re.compile(r"[/\\\n]|Traceback")
_CLIENT_CLOSED_REQUEST = 499  # never seen by anybody
_INTERNAL = "internal error; the server's log has the details"


class ApiError(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers

    def body(self) -> bytes:
        """The JSON object of the OpenAI API. ASCII, so that no text of a client can break the encoding."""
        error = {
            "message": self.message,
            "type": _error_type(self.status),
            "param": self.param,
            "code": self.code,
        }
        return json.dumps({"error": error}).encode()

    def response(self) -> Response:
        """The whole answer."""
        headers = dict(self.headers or {})
        return Response(self.body(), self.status, headers, media_type="application/json")


def failed_generation(error: str | None, code: str | None = None) -> ApiError:
    """A request that the engine could not finish. What a text of the engine may not tell stays in the log."""
    if code == MAX_WAIT_EXCEEDED:
        return ApiError(
            HTTPStatus.SERVICE_UNAVAILABLE, str(error), code=code, headers={"Retry-After": "1"}
        )
    is_public = error is not None and not _TELLS_TOO_MUCH.search(error)
    return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, error if error and is_public else _INTERNAL)


def to_api_error(error: Exception) -> ApiError:
    """The answer to any exception."""
    match error:
        case ApiError():
            return error
        case InvalidRequest():
            return ApiError(
                HTTPStatus.BAD_REQUEST, error.message, param=error.param, code=error.code
            )
        case CapacityError():
            return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, str(error), code="capacity")
        case QueueFull():
            return ApiError(
                HTTPStatus.TOO_MANY_REQUESTS,
                str(error),
                code="queue_full",
                headers={"Retry-After": str(error.retry_after_s)},
            )
        case EngineDead():
            return ApiError(
                HTTPStatus.SERVICE_UNAVAILABLE, "the engine is not running", code="engine_dead"
            )
        case HTTPException():
            status = HTTPStatus(error.status_code)
            code = "not_found" if status is HTTPStatus.NOT_FOUND else None
            return ApiError(status, status.phrase, code=code, headers=error.headers)
        case _:  # raised again by the framework, and logged by the server
            return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, _INTERNAL)


def install_handlers(app: FastAPI) -> None:
    """Answer every exception of `app` as JSON."""

    async def answer(request: Request, error: Exception) -> Response:
        return to_api_error(error).response()

    async def nobody_listens(request: Request, error: Exception) -> Response:
        return Response(status_code=_CLIENT_CLOSED_REQUEST)

    app.add_exception_handler(ClientDisconnect, nobody_listens)
    for kind in (ApiError, OctavoError, HTTPException, Exception):
        app.add_exception_handler(kind, answer)


def _error_type(status: int) -> str:
    if status == HTTPStatus.UNAUTHORIZED:
        return "authentication_error"
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return "rate_limit_error"
    return "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
