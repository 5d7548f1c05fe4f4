"""Writes a build in one pass; it appears under its name only when all of it is on the disk."""

from __future__ import annotations

import errno
import glob
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import numpy.typing as npt

from octavo.dtypes import HostTensor, QuantFormat
from octavo.errors import StoreError
from octavo.weights.build_file import (
    ALIGNMENT,
    BLOCK_BYTES,
    DATA_OFFSET,
    BuildTensor,
    Directory,
    Prefix,
    encode_tail,
)

Checksums = Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.uint64]]
"""Checksums of data, one for each MiB."""

_BUFFER_BYTES: Final = 16 * BLOCK_BYTES
_PARTIAL: Final = ".partial-"
_ABANDONED_S: Final = 24 * 3600.0


def open_new(path: Path) -> BinaryIO:
    """Open `path` for writing; the seam through which tests let a disk run full."""
    return path.open("wb")


class BuildWriter:
    """Takes tensors one after the other, then the directory. Holds a buffer of 16 MiB, not the tensors."""

    def __init__(self, file: BinaryIO, checksums: Checksums) -> None:
        self._file = file
        self._checksums = checksums
        self._buffer = np.zeros(_BUFFER_BYTES, np.uint8)
        self._num_buffered = 0
        self._num_flushed = 0
        self._sums: list[npt.NDArray[np.uint64]] = []
        self.tensors: list[BuildTensor] = []
        file.write(bytes(DATA_OFFSET))  # no magic before all of the rest is there

    @property
    def data_bytes(self) -> int:
        """Bytes of data so far."""
        return self._num_flushed + self._num_buffered

    def add(
        self, source: HostTensor, held_format: QuantFormat, held: npt.NDArray[np.uint8]
    ) -> None:
        """Append a tensor as it is held. Raises OSError."""
        self.tensors.append(
            BuildTensor(
                source.name,
                source.shape,
                source.format.type_id,
                held_format.type_id,
                self.data_bytes,
                held.size,
            )
        )
        self._append(held)
        self._append(np.zeros(-held.size % ALIGNMENT, np.uint8))

    def finish(self, packed_layout: int, directory: Directory) -> None:
        """Write what follows the data, then the first page. Raises OSError."""
        self._flush()
        sums = np.concatenate(self._sums) if self._sums else np.empty(0, np.uint64)
        tail = encode_tail(sums, directory)
        self._file.write(tail)
        data_bytes = self.data_bytes
        prefix = Prefix(
            packed_layout,
            DATA_OFFSET + data_bytes + len(tail),
            data_bytes,
            hashlib.sha256(tail).digest(),
        )
        self._file.seek(0)
        self._file.write(prefix.encode())

    def _append(self, data: npt.NDArray[np.uint8]) -> None:
        while data.size:
            taken = data[: _BUFFER_BYTES - self._num_buffered]
            self._buffer[self._num_buffered : self._num_buffered + taken.size] = taken
            self._num_buffered += taken.size
            data = data[taken.size :]
            if self._num_buffered == _BUFFER_BYTES:
                self._flush()

    def _flush(self) -> None:
        full = self._buffer[: self._num_buffered]
        if full.size:
            self._sums.append(self._checksums(full))
            self._file.write(full.data)
            self._num_flushed += full.size
            self._num_buffered = 0


@contextmanager
def replacing(
    path: Path, *, open_file: Callable[[Path], BinaryIO] = open_new
) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` at the end, in one step; after an error nothing is left of it.

    Writers do not disturb each other, the last one wins; who has the old file open keeps it.
    Raises: StoreError that names the file and what the system said.
    """
    with _explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path)
        handle, name = tempfile.mkstemp(prefix=f"{path.name}{_PARTIAL}", dir=path.parent)
        os.close(handle)
    partial = Path(name)
    try:
        with _explained(path):
            file = open_file(partial)
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
            finally:
                # Closing flushes, and a full disk says so again; the error on its way is the one to report.
                with suppress(OSError):
                    file.close()
            partial.chmod(0o644)
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        advice = (
            "free some space or name" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "name"
        )
        raise StoreError(
            f"cannot write {path}: {reason} ({advice} another place with --output)"
        ) from error


def _remove_abandoned(path: Path) -> None:
    """Delete what a writer that died more than a day ago left beside the file."""
    for old in path.parent.glob(f"{glob.escape(path.name)}{_PARTIAL}*"):
        with suppress(OSError):
            if time.time() - old.stat().st_mtime > _ABANDONED_S:
                old.unlink()
