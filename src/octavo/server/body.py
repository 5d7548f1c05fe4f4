"""Request bodies: read under a limit, decoded strictly, off the event loop when large."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Generic, TypeVar, get_type_hints

import msgspec
from fastapi import Request

from octavo.errors import InvalidRequest
from octavo.server.errors import ApiError
from octavo.server.structure import StructureScan, check_structure, slices

_MAX_INLINE_BYTES: Final = 64 * 2**10
_MAX_NAMED_FIELDS: Final = 8

_T = TypeVar("_T", bound=msgspec.Struct)
_WHERE = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)
_HALF_CHARACTER = re.compile(rb"\\u[dD][89a-fA-F]")
_MISSING = re.compile(r"missing required field `(.+?)`")


@dataclass(frozen=True, slots=True)
class Parsed(Generic[_T]):
    """A decoded body and the fields it had that nobody knows."""

    value: _T
    unknown: tuple[str, ...]

    @property
    def warnings(self) -> list[str]:
        """What the client should know, as texts for a header."""
        if not self.unknown:
            return []
        names = ", ".join(
            ascii(name)[1:33].rstrip("'") for name in self.unknown[:_MAX_NAMED_FIELDS]
        )
        rest = len(self.unknown) - _MAX_NAMED_FIELDS
        return [f"ignored unknown fields: {names}" + (f" and {rest} more" if rest > 0 else "")]


class BodyReader(Generic[_T]):
    """Reads bodies of one kind."""

    def __init__(self, cls: type[_T]) -> None:
        self._cls = cls
        self._known = frozenset(cls.__struct_fields__)
        hints = get_type_hints(cls)
        self._int_fields = [name for name in self._known if hints[name] in (int, int | None)]

    async def read(self, request: Request) -> Parsed[_T]:
        """Read and decode the body of a request. Raises: ApiError 413 if it is too large, InvalidRequest.

        Its structure is judged while it comes: of a body that is refused for it, no more is read.
        """
        limit = _max_body_bytes(request)
        announced = request.headers.get("content-length", "")
        if announced.isdigit() and int(announced[:20]) > limit:
            raise _too_large(limit)
        data = bytearray()
        scan = StructureScan()
        async for part in request.stream():
            data += part
            if len(data) > limit:  # as much as was read, and no more
                raise _too_large(limit)
            for piece in slices(part):
                scan.feed(piece)
                if len(data) > _MAX_INLINE_BYTES:
                    await asyncio.sleep(0)
        if len(data) > _MAX_INLINE_BYTES:
            return await asyncio.to_thread(self._parse, bytes(data))
        return self._parse(bytes(data))

    def decode(self, data: bytes) -> Parsed[_T]:
        """JSON in UTF-8 -> the struct. A null field has its default; "5" is no number.

        NaN and Infinity, which JSON does not have, are let through here so that the field's own check can name it.
        Raises: InvalidRequest.
        """
        check_structure(data)
        return self._parse(data)

    def _parse(self, data: bytes) -> Parsed[_T]:
        """`decode` of what has a sound structure."""
        try:
            body = json.loads(data.decode())
            if _HALF_CHARACTER.search(data):
                json.dumps(
                    body, ensure_ascii=False
                ).encode()  # fails unless all have their other halves
            if not isinstance(body, dict):
                raise InvalidRequest(f"the body must be a JSON object, not {_json_type(body)}")
            given = {name: value for name, value in body.items() if value is not None}
            self._round_integers(given)
            value = msgspec.convert(given, self._cls, strict=True)
        except RecursionError:
            raise InvalidRequest("the body is nested too deeply") from None
        except msgspec.ValidationError as error:
            raise _invalid(str(error)) from None
        except InvalidRequest:
            raise
        except ValueError as error:
            raise InvalidRequest(f"the body is not valid JSON in UTF-8: {_reason(error)}") from None
        return Parsed(value, tuple(name for name in given if name not in self._known))

    def _round_integers(self, given: dict[str, Any]) -> None:
        """Write 1e18 and 5.0 as whole numbers where those are wanted: JSON does not tell them apart."""
        for name in self._int_fields:
            value = given.get(name)
            if isinstance(value, float) and value.is_integer():
                given[name] = int(value)


def warning_header(warnings: Iterable[str]) -> dict[str, str]:
    """The header that tells these to the client; none if there is nothing to tell."""
    text = "; ".join(warnings)
    return {"x-octavo-warning": text} if text else {}


def _invalid(message: str) -> InvalidRequest:
    """msgspec's message -> ours, with the path of the field as `param`."""
    found = _WHERE.match(message)
    what, path = (found["what"], found["path"]) if found else (message, None)
    missing = _MISSING.search(what)
    if missing:
        path = f"{path}.{missing[1]}" if path else missing[1]
        return InvalidRequest(f"{path} is required", param=path)
    what = what.replace("`", "").replace("Expected", "expected")
    return InvalidRequest(f"{path}: {what}" if path else what, param=path)


def _reason(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos}"
    if isinstance(error, UnicodeEncodeError):
        return "a lone surrogate is no character"
    return "not UTF-8" if isinstance(error, UnicodeDecodeError) else "a number is too long"


def _json_type(value: object) -> str:
    names: Mapping[type, str] = {list: "an array", str: "a string", bool: "a boolean"}
    return "null" if value is None else names.get(type(value), "a number")


def _max_body_bytes(request: Request) -> int:
    limit: int = request.app.state.server.access.max_body_bytes
    return limit


def _too_large(limit: int) -> ApiError:
    return ApiError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"the body is larger than {limit} bytes (--max-body-bytes)",
        code="request_too_large",
        headers={"connection": "close"},
    )
