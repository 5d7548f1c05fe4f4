"""Answers the lines of a file in OpenAI's batch format, without HTTP: the same bodies, checks and answers."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, Protocol

import msgspec

from octavo.api.async_llm import AsyncLLM
from octavo.api.outputs_processor import RequestState
from octavo.api.processor import Prepared
from octavo.errors import EngineDead, InvalidRequest
from octavo.outputs import RequestOutput
from octavo.server.answer import collect
from octavo.server.app import create_app
from octavo.server.body import BodyReader, Parsed
from octavo.server.errors import to_api_error
from octavo.server.openai import CHAT_READER, COMPLETION_READER, prepare_chat, prepare_completion
from octavo.server.state import ServerState

MAX_LINE_BYTES: Final = 16 * 2**20
"""More than a server takes by default: nobody else waits while a line is parsed."""


class BatchRequest(msgspec.Struct, kw_only=True):
    """One line of the input."""

    custom_id: str
    method: str = "POST"
    url: str
    body: msgspec.Raw


class BadLine(Exception):
    """A line that is no request. `code` is for programs."""

    def __init__(self, code: str, message: str, custom_id: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.custom_id = custom_id


class _Answer(Protocol):
    id: str

    def whole(self, results: Sequence[tuple[RequestState, RequestOutput]]) -> dict[str, Any]: ...


_Prepare = Callable[[ServerState, Parsed[Any]], Awaitable[tuple[list[Prepared], _Answer]]]
_ROUTES: Final[Mapping[str, tuple[BodyReader[Any], _Prepare]]] = {
    "/v1/chat/completions": (CHAT_READER, prepare_chat),
    "/v1/completions": (COMPLETION_READER, prepare_completion),
}


def parse_line(line: bytes) -> BatchRequest:
    """The request of one line. What is wrong with its body is told by the answer. Raises: BadLine."""
    if len(line) > MAX_LINE_BYTES:
        raise BadLine("line_too_large", f"the line is larger than {MAX_LINE_BYTES} bytes")
    try:
        request = msgspec.json.decode(line, type=BatchRequest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        what = str(error).replace("`", "") or "it is nested too deeply"
        raise BadLine("invalid_line", f"not a line of a batch: {what}", _custom_id(line)) from None
    if request.method.upper() != "POST":
        raise BadLine(
            "invalid_method", f"method {request.method[:32]!r}: use POST", request.custom_id
        )
    if request.url not in _ROUTES:
        raise BadLine(
            "invalid_url",
            f"url {request.url[:100]!r}: a batch has {' and '.join(_ROUTES)}",
            request.custom_id,
        )
    return request


def refusal(error: BadLine, line_number: int) -> bytes:
    """The output line for a line that is no request. It carries its number, by which a later run knows it again."""
    return _line(
        error.custom_id,
        None,
        {"code": error.code, "message": error.message, "line": line_number},
    )


class BatchAnswerer:
    """Answers requests with one model. Many may be answered at once."""

    def __init__(self, llm: AsyncLLM) -> None:
        self._app = create_app(llm)  # the state, names and limits of a server
        self._server: ServerState = self._app.state.server

    async def answer(self, request: BatchRequest) -> tuple[bytes, bool]:
        """The output line, and whether it is a good answer. Raises: EngineDead."""
        request_id = ""
        try:
            reader, prepare = _ROUTES[request.url]
            parsed = reader.decode(bytes(request.body))
            if parsed.value.stream:
                raise InvalidRequest("stream: a batch has whole answers only", param="stream")
            prepared, answer = await prepare(self._server, parsed)
            request_id = answer.id
            body = answer.whole(await collect(self._server, prepared))
        except EngineDead:
            raise
        except Exception as error:
            if not self._server.llm.is_alive:
                raise EngineDead("the engine stopped: the lines so far are kept") from error
            api_error = to_api_error(error)
            response = _response(api_error.status, request_id, msgspec.Raw(api_error.body()))
            return _line(request.custom_id, response, None), False
        response = _response(HTTPStatus.OK, request_id, body)
        return _line(request.custom_id, response, None), True


def _response(status: int, request_id: str, body: object) -> dict[str, object]:
    return {
        "status_code": int(status),
        "request_id": request_id or f"req-{uuid.uuid4().hex}",
        "body": body,
    }


def _line(custom_id: str | None, response: object, error: object) -> bytes:
    value = {
        "id": f"batch_req_{uuid.uuid4().hex}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    return msgspec.json.encode(value) + b"\n"


def _custom_id(line: bytes) -> str | None:
    """The id of a line that lacks something else."""
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    found = value.get("custom_id") if isinstance(value, dict) else None
    return found if isinstance(found, str) else None
