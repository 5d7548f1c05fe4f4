"""GGUF files byte by byte, independent of the writer, so that tests can say things no writer would."""

from __future__ import annotations

import struct
from collections.abc import Sequence

UINT8, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 0, 5, 6, 7, 8, 9, 10
UINT32 = 4
F32, Q4_0 = 0, 2


def string(text: str | bytes) -> bytes:
    """A length and the bytes."""
    encoded = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(encoded)) + encoded


def pair(key: str, kind: int, body: bytes) -> bytes:
    """A key/value pair."""
    return string(key) + struct.pack("<I", kind) + body


def text_pair(key: str, value: str) -> bytes:
    """A pair with a string value."""
    return pair(key, STRING, string(value))


def array(kind: int, count: int, body: bytes = b"") -> bytes:
    """An array value: element type, count, elements."""
    return struct.pack("<IQ", kind, count) + body


def entry(
    name: str, dims: Sequence[int], kind: int = F32, offset: int = 0, num_dims: int | None = None
) -> bytes:
    """A line of the tensor list; `dims` innermost first."""
    count = len(dims) if num_dims is None else num_dims
    sizes = struct.pack(f"<I{len(dims)}Q", count, *dims)
    return string(name) + sizes + struct.pack("<IQ", kind, offset)


def gguf(
    pairs: Sequence[bytes] = (),
    entries: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    num_pairs: int | None = None,
    num_entries: int | None = None,
) -> bytes:
    """A whole file, data aligned to 32; the counts can be made to lie."""
    counts = struct.pack(
        "<IQQ",
        version,
        len(entries) if num_entries is None else num_entries,
        len(pairs) if num_pairs is None else num_pairs,
    )
    header = b"GGUF" + counts + b"".join(pairs) + b"".join(entries)
    return header + bytes(-len(header) % 32) + data
