"""Server-sent events out of bytes. Source: the event stream section of the HTML standard."""

from __future__ import annotations

from typing import Final

_LINE_ENDS: Final = (b"\n", b"\r")


class EventParser:
    """Splits bytes into the data of events, wherever the packets were cut. Other fields and comments are skipped."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._skips_newline = False

    def feed(self, part: bytes) -> list[bytes]:
        """Take the next bytes; returns the data of every event that is whole now."""
        if self._skips_newline and part:
            part = part.removeprefix(b"\n")  # the second half of a "\r\n" that was cut in two
            self._skips_newline = False
        lines = (self._rest + part).splitlines(keepends=True)
        self._rest = b""
        if lines and not lines[-1].endswith(_LINE_ENDS):
            self._rest = lines.pop()
        elif lines:
            self._skips_newline = lines[-1].endswith(b"\r")
        return [data for line in lines if (data := self._take(line.rstrip(b"\r\n"))) is not None]

    def _take(self, line: bytes) -> bytes | None:
        if not line:
            data, self._data = self._data, []
            return b"\n".join(data) if data else None
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        return None
