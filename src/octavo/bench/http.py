"""One HTTP/1.1 response out of bytes. Source: RFC 9112."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, assert_never

from octavo.errors import OctavoError

_MAX_HEAD_BYTES: Final = 65536
_MAX_LINE_BYTES: Final = 1024


class BadResponse(OctavoError):
    """What the server sent is not the response it should be."""


class _State(Enum):
    HEAD = auto()
    CHUNK_SIZE = auto()
    CHUNK = auto()
    CHUNK_END = auto()
    TRAILER = auto()
    LENGTH = auto()
    UNTIL_CLOSE = auto()
    COMPLETE = auto()


class ResponseParser:
    """Status, headers and body of one response, wherever the packets were cut.

    `status` is 0 until the head is there. Header names are lower case; of a repeated header the last one counts.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._is_http_1_0 = False
        self._buffer = bytearray()
        self._state = _State.HEAD
        self._num_left = 0

    @property
    def is_complete(self) -> bool:
        """Whether the whole body is there."""
        return self._state is _State.COMPLETE

    @property
    def keeps_alive(self) -> bool:
        """Whether the connection can carry another request."""
        is_closing = "close" in self.headers.get("connection", "").lower()
        return self.is_complete and not (is_closing or self._is_http_1_0 or self._buffer)

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; returns what they add to the body. Raises: BadResponse."""
        self._buffer += data
        parts = []
        while (part := self._step()) is not None:
            parts.append(part)
        return b"".join(parts)

    def end(self) -> None:
        """The connection was closed. Raises: BadResponse if the body is not whole."""
        if self._state is _State.UNTIL_CLOSE:
            self._state = _State.COMPLETE
            self.headers["connection"] = "close"
        if not self.is_complete:
            raise BadResponse("the server closed the connection in the middle of a response")

    def _step(self) -> bytes | None:
        """Body bytes, or b"" for progress without any; None if more bytes are needed."""
        match self._state:
            case _State.HEAD:
                return self._read_head()
            case _State.CHUNK_SIZE:
                return self._read_chunk_size()
            case _State.CHUNK:
                return self._read_counted(_State.CHUNK_END)
            case _State.CHUNK_END:
                return self._read_chunk_end()
            case _State.TRAILER:
                return self._read_trailer()
            case _State.LENGTH:
                return self._read_counted(_State.COMPLETE)
            case _State.UNTIL_CLOSE:
                return self._take(len(self._buffer)) if self._buffer else None
            case _State.COMPLETE:
                return None
            case _:
                assert_never(self._state)

    def _read_head(self) -> bytes | None:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > _MAX_HEAD_BYTES:
                raise BadResponse(f"the head of a response is longer than {_MAX_HEAD_BYTES} bytes")
            return None
        status_line, *lines = self._take(end + 4)[:-4].decode("latin-1").split("\r\n")
        version, _, rest = status_line.partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
            raise BadResponse(f"not an HTTP/1.1 response: {status_line[:80]!r}")
        if rest.startswith("1"):  # an interim response: the real one follows
            return b""
        self.status, self._is_http_1_0 = int(rest[:3]), version == "HTTP/1.0"
        pairs = (line.partition(":") for line in lines)
        self.headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        self._state = self._body_state()
        return b""

    def _body_state(self) -> _State:
        if self.status in (204, 304):
            return _State.COMPLETE
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            return _State.CHUNK_SIZE
        length = self.headers.get("content-length")
        if length is None:
            return _State.UNTIL_CLOSE
        if not (length.isascii() and length.isdigit()):
            raise BadResponse(f"content-length {length[:40]!r} is not a number")
        self._num_left = int(length)
        return _State.LENGTH if self._num_left else _State.COMPLETE

    def _read_chunk_size(self) -> bytes | None:
        line = self._line()
        if line is None:
            return None
        digits = line.partition(b";")[0].strip()
        try:
            self._num_left = int(digits, 16)
        except ValueError:
            raise BadResponse(f"{bytes(digits[:40])!r} is not the size of a chunk") from None
        if self._num_left < 0:
            raise BadResponse("a chunk has a negative size")
        self._state = _State.CHUNK if self._num_left else _State.TRAILER
        return b""

    def _read_counted(self, after: _State) -> bytes | None:
        if not self._buffer:
            return None
        part = self._take(min(self._num_left, len(self._buffer)))
        self._num_left -= len(part)
        if not self._num_left:
            self._state = after
        return part

    def _read_chunk_end(self) -> bytes | None:
        if len(self._buffer) < 2:
            return None
        if self._take(2) != b"\r\n":
            raise BadResponse("a chunk is longer than its size")
        self._state = _State.CHUNK_SIZE
        return b""

    def _read_trailer(self) -> bytes | None:
        line = self._line()
        if line == b"":
            self._state = _State.COMPLETE
        return None if line is None else b""

    def _line(self) -> bytes | None:
        """The next line without its end, None if it is not whole yet."""
        end = self._buffer.find(b"\r\n")
        if end < 0:
            if len(self._buffer) > _MAX_LINE_BYTES:
                raise BadResponse("a line between two chunks does not end")
            return None
        return self._take(end + 2)[:-2]

    def _take(self, count: int) -> bytes:
        part = bytes(self._buffer[:count])
        del self._buffer[:count]
        return part
