"""A checked walk over the bytes of a GGUF header."""

from __future__ import annotations

import struct
from mmap import mmap

import numpy as np

from octavo.errors import CorruptWeights, UnsupportedArchitecture
from octavo.weights.gguf_format import MAX_NAME_BYTES

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_SHOWN_CHARS = 80


class Cursor:
    """A position in the file that only moves forward and never past the end."""

    __slots__ = ("_data", "_path", "pos", "size")

    def __init__(self, data: mmap, path: str) -> None:
        self._data = data
        self._path = path
        self.pos = 0
        self.size = len(data)

    def error(self, message: str, field: str, offset: int | None = None) -> CorruptWeights:
        """The error to raise for `field`, which starts at `offset` (here, if not given)."""
        at = self.pos if offset is None else offset
        return CorruptWeights(message, path=self._path, field=field, offset=at)

    def unsupported(self, message: str, field: str, offset: int) -> UnsupportedArchitecture:
        """The error to raise for something sound that is not read."""
        return UnsupportedArchitecture(f"{self._path}: {message} [{field} at byte {offset}]")

    def skip(self, num_bytes: int, field: str) -> int:
        """Move over `num_bytes` and return where they start."""
        start = self.pos
        if num_bytes > self.size - start:
            raise self.error(
                f"truncated or incomplete: {num_bytes} bytes needed, {self.size - start} left in a file of"
                f" {self.size} bytes",
                field,
            )
        self.pos = start + num_bytes
        return start

    def u32(self, field: str) -> int:
        value: int = _U32.unpack_from(self._data, self.skip(4, field))[0]
        return value

    def u64(self, field: str) -> int:
        value: int = _U64.unpack_from(self._data, self.skip(8, field))[0]
        return value

    def count(self, field: str, item_bytes: int) -> int:
        """A u64 that counts items of at least `item_bytes` each, all still to come."""
        start = self.pos
        value = self.u64(field)
        if value * item_bytes > self.size - self.pos:
            raise self.error(
                f"truncated or incomplete: {value} entries need at least {value * item_bytes} bytes,"
                f" {self.size - self.pos} left in a file of {self.size} bytes",
                field,
                start,
            )
        return value

    def name(self, field: str) -> str:
        """A key or tensor name: not empty, of limited length, valid UTF-8."""
        start = self.pos
        length = self.u64(f"{field} length")
        if not 1 <= length <= MAX_NAME_BYTES:
            raise self.error(f"length {length}, 1 to {MAX_NAME_BYTES} allowed", field, start)
        at = self.skip(length, field)
        try:
            return str(self._data[at : at + length], "utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"not UTF-8: {error.reason}", field, at) from None

    def strings(self, count: int, field: str) -> list[str]:
        """`count` strings. A tight loop on locals: a vocabulary has hundreds of thousands."""
        data, pos, size, unpack = self._data, self.pos, self.size, _U64.unpack_from
        texts: list[str] = []
        append = texts.append
        try:
            for _ in range(count):
                (length,) = unpack(data, pos)
                start = pos + 8
                end = start + length
                if end > size:
                    break
                try:
                    append(data[start:end].decode())  # a fifth faster than with an error handler
                except UnicodeDecodeError:
                    append(data[start:end].decode("utf-8", "surrogateescape"))
                pos = end
        except struct.error:
            pass  # a length that lies across the end of the file: reported below
        if len(texts) < count:
            item = f"{field} item {len(texts)}" if count > 1 else field
            raise self.error(
                f"truncated or incomplete: a string ends beyond the file's {size} bytes", item, pos
            )
        self.pos = pos
        return texts

    def array(self, dtype: np.dtype[np.generic], count: int, field: str) -> np.ndarray:
        """`count` numbers, copied out of the mapping so that it can be closed."""
        start = self.skip(count * dtype.itemsize, field)
        if not count:
            return np.empty(0, dtype)
        return np.frombuffer(self._data, dtype, count, start).copy()


def shown(name: str) -> str:
    """A name fit for a message."""
    return repr(name if len(name) <= _SHOWN_CHARS else name[:_SHOWN_CHARS] + "…")
