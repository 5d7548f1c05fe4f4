"""Writing GGUF files, version 3."""

from __future__ import annotations

import contextlib
import os
import secrets
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np

from octavo.dtypes import QuantFormat
from octavo.weights.gguf_format import (
    ALIGNMENT_KEY,
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_ARRAY_DEPTH,
    MAX_DIMS,
    MAX_NAME_BYTES,
    SCALAR_DTYPES,
    WRITTEN_VERSION,
    ValueType,
)

_INT32 = range(-(1 << 31), 1 << 31)


class WritableTensor(Protocol):
    """What is written of a tensor: a HostTensor, or anything that makes `data` when it is asked for.

    `data` is read once, in the order of the tensors, and `release` called after it.
    """

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def format(self) -> QuantFormat: ...

    @property
    def data(self) -> memoryview: ...

    @property
    def release(self) -> Callable[[], None]: ...


def write_gguf(
    path: Path,
    metadata: Mapping[str, object],
    tensors: Iterable[WritableTensor],
    alignment: int | None = None,
) -> None:
    """Write a GGUF file; it appears under its name when it is whole, or not at all.

    A value's type follows from its Python type: bool, str, float (FLOAT32), int (UINT32; INT32 if negative; 64 bits if
    it must), lists of these (ints INT32 or INT64), lists of lists. A numpy scalar or array is written in its own type.
    `alignment` None means that of the metadata, 32 if it names none.
    Raises: ValueError or TypeError for what the format cannot hold, OSError if the file cannot be written.
    """
    values = dict(metadata)
    if alignment is not None and alignment != values.get(ALIGNMENT_KEY, DEFAULT_ALIGNMENT):
        values[ALIGNMENT_KEY] = np.uint32(alignment)
    step = _alignment(values)
    listed = list(tensors)
    header = _header(values, listed, step)
    unfinished = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        with unfinished.open("xb") as file:
            _pad(file, file.write(header), step)
            for tensor in listed:
                _write_data(file, tensor, step)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            unfinished.unlink()
        raise


def _alignment(metadata: Mapping[str, object]) -> int:
    value = metadata.get(ALIGNMENT_KEY, DEFAULT_ALIGNMENT)
    if not isinstance(value, int | np.integer) or value <= 0 or value % 8:
        raise ValueError(f"alignment {value!r}: a positive multiple of 8 expected")
    return int(value)


def _header(metadata: Mapping[str, object], tensors: Sequence[WritableTensor], step: int) -> bytes:
    parts = [MAGIC, struct.pack("<IQQ", WRITTEN_VERSION, len(tensors), len(metadata))]
    for key, value in metadata.items():
        kind, body = _encode(value, key, depth=0)
        parts += [_name(key), struct.pack("<I", kind), body]
    names: set[str] = set()
    offset = 0
    for tensor in tensors:
        if tensor.name in names:
            raise ValueError(f"two tensors are named {tensor.name!r}")
        names.add(tensor.name)
        parts.append(_tensor_entry(tensor, offset))
        offset += -(-_num_bytes(tensor) // step) * step
    return b"".join(parts)


def _tensor_entry(tensor: WritableTensor, offset: int) -> bytes:
    dims = tensor.shape[::-1]
    if not 1 <= len(dims) <= MAX_DIMS or min(dims) < 1 or dims[0] % tensor.format.block_len:
        raise ValueError(f"{tensor.name}: shape {tensor.shape} cannot be {tensor.format.name}")
    sizes = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return _name(tensor.name) + sizes + struct.pack("<IQ", tensor.format.type_id, offset)


def _num_bytes(tensor: WritableTensor) -> int:
    num_elements = 1
    for size in tensor.shape:
        num_elements *= size
    return tensor.format.num_bytes(num_elements)


def _write_data(file: BinaryIO, tensor: WritableTensor, step: int) -> None:
    data = tensor.data
    if data.nbytes != _num_bytes(tensor):
        raise ValueError(f"{tensor.name}: {data.nbytes} bytes, {_num_bytes(tensor)} expected")
    file.write(data)
    _pad(file, data.nbytes, step)
    tensor.release()


def _pad(file: BinaryIO, num_bytes: int, step: int) -> None:
    file.write(bytes(-num_bytes % step))


def _name(text: str) -> bytes:
    encoded = text.encode()
    if not 1 <= len(encoded) <= MAX_NAME_BYTES:
        raise ValueError(f"a name of {len(encoded)} bytes, 1 to {MAX_NAME_BYTES} allowed")
    return struct.pack("<Q", len(encoded)) + encoded


def _text(text: str) -> bytes:
    encoded = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(encoded)) + encoded


def _encode(value: object, key: str, depth: int) -> tuple[ValueType, bytes]:
    """Type and bytes of a value; `depth` counts the arrays around it."""
    match value:
        case np.ndarray() | list() | tuple():
            if depth == MAX_ARRAY_DEPTH:
                raise ValueError(f"{key}: arrays nested deeper than {MAX_ARRAY_DEPTH}")
            return ValueType.ARRAY, _encode_array(value, key, depth + 1)
        case str():
            return ValueType.STRING, _text(value)
        case np.generic():
            number = np.asarray(value)
        case bool():
            number = np.asarray(value, np.bool_)
        case int():
            number = _integer(value, key)
        case float():
            number = np.asarray(value, np.float32)
        case _:
            raise TypeError(f"{key}: a {type(value).__name__} cannot be written")
    return _scalar_type(number.dtype, key), _little_endian(number)


def _encode_array(items: np.ndarray | Sequence[object], key: str, depth: int) -> bytes:
    """Element type, count and elements."""
    if isinstance(items, np.ndarray):
        if items.ndim != 1:
            return _encode_array(list(items), key, depth)
        kind, body = _scalar_type(items.dtype, key), _little_endian(items)
    elif all(isinstance(item, str) for item in items):
        kind, body = ValueType.STRING, b"".join(_text(str(item)) for item in items)
    elif all(isinstance(item, np.ndarray | list | tuple) for item in items):
        kind, body = ValueType.ARRAY, b"".join(_encode(item, key, depth)[1] for item in items)
    elif len({type(item) for item in items}) > 1:
        raise TypeError(f"{key}: the items of an array are of different types")
    else:
        numbers = np.asarray(items)
        if numbers.dtype == np.int64 and all(item in _INT32 for item in numbers.tolist()):
            numbers = numbers.astype(np.int32)
        elif isinstance(items[0], float) and not isinstance(items[0], np.generic):
            numbers = numbers.astype(np.float32)
        kind, body = _scalar_type(numbers.dtype, key), _little_endian(numbers)
    return struct.pack("<IQ", kind, len(items)) + body


def _integer(value: int, key: str) -> np.ndarray:
    """An int in the first type that holds it; UINT32 first, as counts and ids are read as that."""
    for dtype in (np.uint32, np.int32, np.int64, np.uint64):
        limits = np.iinfo(dtype)
        if limits.min <= value <= limits.max:
            return np.asarray(value, dtype)
    raise ValueError(f"{key}: {value} does not fit 64 bits")


def _scalar_type(dtype: np.dtype[np.generic], key: str) -> ValueType:
    for kind, layout in SCALAR_DTYPES.items():
        if dtype == layout or dtype == layout.newbyteorder():
            return kind
    raise TypeError(f"{key}: numbers of type {dtype} cannot be written")


def _little_endian(numbers: np.ndarray) -> bytes:
    return numbers.astype(numbers.dtype.newbyteorder("<"), copy=False).tobytes()
