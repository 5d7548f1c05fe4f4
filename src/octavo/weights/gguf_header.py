"""The GGUF header: version, counts, key/value pairs, tensor list. Nothing in it is believed before it is checked.

A header may be hostile: each count and length is compared with the bytes left in the file before anything of its size
is allocated or read. What is kept in memory is thus bounded by a small multiple of the header's own size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from mmap import mmap
from operator import attrgetter

import numpy as np

from octavo.dtypes import FORMAT_BY_TYPE_ID, QuantFormat
from octavo.weights.gguf_cursor import Cursor, shown
from octavo.weights.gguf_format import (
    ALIGNMENT_KEY,
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_ARRAY_DEPTH,
    MAX_DIMS,
    OTHER_TENSOR_TYPES,
    SCALAR_DTYPES,
    SUPPORTED_VERSIONS,
    ValueType,
)
from octavo.weights.tensor_info import TensorInfo

# The least bytes one entry can take: they turn a count into a bound before the loop starts.
_MIN_PAIR_BYTES = 8 + 1 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8
_MIN_STRING_BYTES = 8
_MIN_ARRAY_BYTES = 4 + 8


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """All of a GGUF file but the tensor data. `data_start` is the byte that tensor offsets count from."""

    version: int
    metadata: Mapping[str, object]
    tensors: tuple[TensorInfo, ...]
    alignment: int
    data_start: int


def parse_header(data: mmap, path: str) -> GGUFHeader:
    """Read and check the header of a file that starts with the magic.

    Raises: CorruptWeights naming field and byte offset; UnsupportedArchitecture for a version, byte order or tensor
    type that is not read.
    """
    cursor = Cursor(data, path)
    cursor.skip(len(MAGIC), "magic")
    version = _version(cursor)
    num_tensors = cursor.count("tensor count", _MIN_TENSOR_BYTES)
    num_pairs = cursor.count("key/value count", _MIN_PAIR_BYTES)
    metadata: dict[str, object] = {}
    for index in range(num_pairs):
        start = cursor.pos
        key = cursor.name(f"key {index}")
        if key in metadata:
            raise cursor.error("this key stands twice", f"key {shown(key)}", start)
        metadata[key] = _value(cursor, f"key {shown(key)}")
    alignment = _alignment(cursor, metadata)
    entries: dict[str, _Entry] = {}
    for index in range(num_tensors):
        entry = _tensor_entry(cursor, index, alignment)
        if entry.name in entries:
            raise cursor.error("this tensor stands twice", entry.field, entry.start)
        entries[entry.name] = entry
    data_start = -(-cursor.pos // alignment) * alignment
    tensors = _placed(cursor, list(entries.values()), data_start)
    return GGUFHeader(version, metadata, tensors, alignment, data_start)


def _version(cursor: Cursor) -> int:
    start = cursor.pos
    version = cursor.u32("version")
    supported = " and ".join(map(str, SUPPORTED_VERSIONS))
    if version in SUPPORTED_VERSIONS:
        return version
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if version > 0xFFFF and swapped <= 0xFFFF:
        raise cursor.unsupported(
            f"big-endian file (GGUF version {swapped}, read as 0x{version:08x});"
            f" supported is little-endian, versions {supported}",
            "version",
            start,
        )
    raise cursor.unsupported(
        f"GGUF version {version} is not supported, versions {supported} are", "version", start
    )


def _value(cursor: Cursor, field: str, depth: int = 0) -> object:
    """One value, type number first. `depth` counts the arrays around it."""
    start = cursor.pos
    kind = _value_type(cursor, f"{field} type")
    if kind is ValueType.ARRAY:
        return _array(cursor, field, depth + 1)
    if kind is ValueType.STRING:
        return cursor.strings(1, field)[0]
    start = cursor.pos
    return _numbers(cursor, kind, 1, field, start)[0].item()


def _array(cursor: Cursor, field: str, depth: int) -> object:
    """The array whose element type stands at the cursor; `depth` is 1 for the outermost."""
    start = cursor.pos
    if depth > MAX_ARRAY_DEPTH:
        raise cursor.error(f"arrays nested deeper than {MAX_ARRAY_DEPTH}", field, start)
    kind = _value_type(cursor, f"{field} element type")
    length_field = f"{field} array length"
    if kind is ValueType.STRING:
        return cursor.strings(cursor.count(length_field, _MIN_STRING_BYTES), field)
    if kind is ValueType.ARRAY:
        count = cursor.count(length_field, _MIN_ARRAY_BYTES)
        return [_array(cursor, field, depth + 1) for _ in range(count)]
    count = cursor.count(length_field, SCALAR_DTYPES[kind].itemsize)
    return _numbers(cursor, kind, count, field, cursor.pos)


def _value_type(cursor: Cursor, field: str) -> ValueType:
    start = cursor.pos
    number = cursor.u32(field)
    if number > max(ValueType):
        raise cursor.error(f"value type {number}, 0 to {int(max(ValueType))} exist", field, start)
    return ValueType(number)


def _numbers(cursor: Cursor, kind: ValueType, count: int, field: str, start: int) -> np.ndarray:
    if kind is not ValueType.BOOL:
        return cursor.array(SCALAR_DTYPES[kind], count, field)
    flags = cursor.array(SCALAR_DTYPES[ValueType.UINT8], count, field)
    if (flags > 1).any():
        at = int(np.argmax(flags > 1))
        raise cursor.error(f"bool of value {flags[at]}, 0 or 1 allowed", field, start + at)
    return flags.astype(np.bool_)


def _alignment(cursor: Cursor, metadata: Mapping[str, object]) -> int:
    value = metadata.get(ALIGNMENT_KEY, DEFAULT_ALIGNMENT)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0 or value % 8:
        raise cursor.error(
            f"alignment {value!r}, a positive multiple of 8 allowed", ALIGNMENT_KEY, cursor.pos
        )
    return value


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tensor as listed; `offset` counts from the start of the data, `start` is the byte of the entry itself."""

    name: str
    shape: tuple[int, ...]
    format: QuantFormat
    offset: int
    start: int

    @property
    def field(self) -> str:
        return f"tensor {shown(self.name)}"


def _tensor_entry(cursor: Cursor, index: int, alignment: int) -> _Entry:
    start = cursor.pos
    name = cursor.name(f"name of tensor {index}")
    field = f"tensor {shown(name)}"
    at = cursor.pos
    num_dims = cursor.u32(f"{field} dimension count")
    if not 1 <= num_dims <= MAX_DIMS:
        raise cursor.error(
            f"{num_dims} dimensions, 1 to {MAX_DIMS} allowed", f"{field} dimension count", at
        )
    at = cursor.pos
    dims = [cursor.u64(f"{field} dimension {i}") for i in range(num_dims)]
    if 0 in dims:
        raise cursor.error(f"a dimension of {dims} is 0", f"{field} dimensions", at)
    at = cursor.pos
    tensor_format = _tensor_format(cursor, field)
    if dims[0] % tensor_format.block_len:
        raise cursor.error(
            f"rows of {dims[0]} are not whole blocks of {tensor_format.block_len} ({tensor_format.name})",
            f"{field} dimensions",
            at,
        )
    at = cursor.pos
    offset = cursor.u64(f"{field} offset")
    if offset % alignment:
        raise cursor.error(
            f"offset {offset} is not a multiple of the alignment {alignment}", f"{field} offset", at
        )
    return _Entry(name, tuple(reversed(dims)), tensor_format, offset, start)


def _tensor_format(cursor: Cursor, field: str) -> QuantFormat:
    start = cursor.pos
    number = cursor.u32(f"{field} type")
    if number in FORMAT_BY_TYPE_ID:
        return FORMAT_BY_TYPE_ID[number]
    readable = " ".join(f.name for f in QuantFormat)
    if number in OTHER_TENSOR_TYPES:
        raise cursor.unsupported(
            f"tensor type {number} ({OTHER_TENSOR_TYPES[number]}) is not supported; supported: {readable}",
            f"{field} type",
            start,
        )
    raise cursor.error(
        f"tensor type {number} does not exist; supported: {readable}", f"{field} type", start
    )


def _placed(cursor: Cursor, entries: list[_Entry], data_start: int) -> tuple[TensorInfo, ...]:
    """The tensors with their place in the file, each inside it and none over another."""
    infos = []
    for entry in entries:
        offset = data_start + entry.offset
        num_bytes = entry.format.num_bytes(prod(entry.shape))
        end = offset + num_bytes
        if end > cursor.size:
            raise cursor.error(
                f"truncated or incomplete, or a wrong offset: the data ends at byte {end},"
                f" the file has {cursor.size} bytes",
                entry.field,
                offset,
            )
        infos.append(TensorInfo(entry.name, entry.shape, entry.format, num_bytes, offset))
    in_order = sorted(infos, key=attrgetter("offset"))
    for before, after in pairwise(in_order):
        if before.offset + before.num_bytes > after.offset:
            raise cursor.error(
                f"its data overlaps that of {shown(before.name)}, which ends at byte"
                f" {before.offset + before.num_bytes}",
                f"tensor {shown(after.name)}",
                after.offset,
            )
    return tuple(infos)
