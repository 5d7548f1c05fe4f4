"""The container of a build: packed weights, where each tensor lies in them, and which model they are of.

    0           prefix, one page: magic, versions, sizes, SHA-256 of the tail and of the prefix itself
    4096        data: tensors as the backend holds them, each from a multiple of 64 bytes on
    + data      tail: a checksum of 8 bytes for each MiB of data, then the directory as JSON, to the end of the file

docs/design/build-file.md has the whole of it. This module knows the container, not what the bytes mean to a backend.
"""

from __future__ import annotations

import hashlib
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec
import numpy as np
import numpy.typing as npt

from octavo.errors import UnusableBuild

MAGIC: Final = b"OCTBUILD"
FORMAT_VERSION: Final = 1
DATA_OFFSET: Final = 4096
ALIGNMENT: Final = 64
BLOCK_BYTES: Final = 1 << 20

PREFIX: Final = struct.Struct("<8sIIQQ32s")
"""Magic, format version, packed layout, bytes of the file, bytes of the data, SHA-256 of the tail."""

_SUM_BYTES: Final = 8
_MAX_TAIL_BYTES: Final = 1 << 30
_DIGEST_BYTES: Final = 32


class BuildPart(msgspec.Struct, frozen=True):
    """A file of the model, as it was when the build was made."""

    path: str
    num_bytes: int
    mtime_ns: int
    sha256: str


class BuildTensor(msgspec.Struct, frozen=True):
    """A tensor in the data. Formats are ggml's numbers; `offset` counts from the start of the data."""

    name: str
    shape: tuple[int, ...]
    source_format: int
    format: int
    offset: int
    num_bytes: int


class Directory(msgspec.Struct, frozen=True):
    """What the data is. `octavo` is the version that wrote it, for people."""

    octavo: str
    model: str
    fingerprint: str
    parts: tuple[BuildPart, ...]
    tensors: tuple[BuildTensor, ...]


@dataclass(frozen=True, slots=True)
class Prefix:
    """The numbers on the first page."""

    packed_layout: int
    file_bytes: int
    data_bytes: int
    tail_digest: bytes

    def encode(self) -> bytes:
        """The page."""
        head = PREFIX.pack(
            MAGIC,
            FORMAT_VERSION,
            self.packed_layout,
            self.file_bytes,
            self.data_bytes,
            self.tail_digest,
        )
        page = head.ljust(DATA_OFFSET - _DIGEST_BYTES, b"\0")
        return page + hashlib.sha256(page).digest()

    @classmethod
    def decode(cls, page: bytes) -> Self:
        """Raises UnusableBuild that says what is wrong."""
        if page[: len(MAGIC)] != MAGIC:
            raise UnusableBuild("it is not a build")
        if len(page) < DATA_OFFSET:
            raise UnusableBuild(f"it is truncated: {len(page)} bytes")
        _, version, layout, file_bytes, data_bytes, tail_digest = PREFIX.unpack_from(page)
        if version != FORMAT_VERSION:
            raise UnusableBuild(
                f"it has format version {version}, this Octavo reads {FORMAT_VERSION}"
            )
        if hashlib.sha256(page[:-_DIGEST_BYTES]).digest() != page[-_DIGEST_BYTES:]:
            raise UnusableBuild("its first page is damaged")
        return cls(layout, file_bytes, data_bytes, tail_digest)


def num_blocks(data_bytes: int) -> int:
    """Checksums of so much data."""
    return -(-data_bytes // BLOCK_BYTES)


def encode_tail(checksums: npt.NDArray[np.uint64], directory: Directory) -> bytes:
    """What follows the data."""
    return checksums.astype("<u8").tobytes() + msgspec.json.encode(directory)


class BuildFile:
    """An open build whose prefix and tail are sound; the data is not read here. A context manager."""

    def __init__(self, path: Path) -> None:
        """Open and check. Raises UnusableBuild with the reason, FileNotFoundError if there is no such file."""
        self.path = path
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise UnusableBuild(f"it cannot be read: {error.strerror or error}") from error
        try:
            self.prefix, self.checksums, self.directory = _read(self.fd)
        except OSError as error:
            self.close()
            raise UnusableBuild(f"it cannot be read: {error.strerror or error}") from error
        except BaseException:
            self.close()
            raise

    def read_data(self, offset: int, num_bytes: int) -> bytes:
        """Bytes of the data. Raises UnusableBuild if they are not there."""
        data = _pread(self.fd, DATA_OFFSET + offset, num_bytes)
        if len(data) != num_bytes:
            raise UnusableBuild("it is truncated")
        return data

    def close(self) -> None:
        """Let go of the file. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _read(fd: int) -> tuple[Prefix, npt.NDArray[np.uint64], Directory]:
    size = os.fstat(fd).st_size
    prefix = Prefix.decode(_pread(fd, 0, DATA_OFFSET))
    if size != prefix.file_bytes:
        raise UnusableBuild(f"it has {size} bytes, {prefix.file_bytes} were written")
    sum_bytes = num_blocks(prefix.data_bytes) * _SUM_BYTES
    tail_bytes = size - DATA_OFFSET - prefix.data_bytes
    if prefix.data_bytes % ALIGNMENT or not sum_bytes <= tail_bytes <= _MAX_TAIL_BYTES:
        raise UnusableBuild("its sizes contradict each other")
    tail = _pread(fd, DATA_OFFSET + prefix.data_bytes, tail_bytes)
    if hashlib.sha256(tail).digest() != prefix.tail_digest:
        raise UnusableBuild("its directory is damaged")
    try:
        directory = msgspec.json.decode(tail[sum_bytes:], type=Directory)
    except msgspec.DecodeError as error:
        raise UnusableBuild(f"its directory cannot be read: {error}") from error
    checksums = np.frombuffer(tail, "<u8", sum_bytes // _SUM_BYTES).astype(np.uint64)
    return prefix, checksums, directory


def _pread(fd: int, offset: int, num_bytes: int) -> bytes:
    """So many bytes, fewer at the end of the file."""
    parts = []
    while num_bytes:
        part = os.pread(fd, num_bytes, offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
        num_bytes -= len(part)
    return b"".join(parts)
