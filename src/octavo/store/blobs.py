"""Content-addressed files: a blob is complete and verified, or it does not exist.

<home>/blobs/sha256-<64 hex>          verified content, never changed
<home>/blobs/partial-<random>         being written; removed on failure, and by a later pull if its writer died
<home>/manifests/<name>/<tag>         which blob a model is, and where it came from
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from octavo.errors import StoreError

_DIGEST: Final = re.compile(r"[0-9a-f]{64}\Z")
_PARTIAL: Final = "partial-"
_ABANDONED_S: Final = 24 * 3600.0
_SPARE_BYTES: Final = 16 << 20


class LocalFailure(StoreError):
    """This machine is at fault, so that no other source of the model would do better."""


def open_new(path: Path) -> BinaryIO:
    """Open `path` for writing; the seam through which tests let a disk run full."""
    return path.open("wb")


class BlobStore:
    """The blobs below one home directory. Safe for several processes at once: each writes its own partial file, and
    the last step is an atomic rename to a name that says what the content is."""

    def __init__(self, home: Path, *, open_file: Callable[[Path], BinaryIO] = open_new) -> None:
        self.home = home
        self._folder = home / "blobs"
        self._open_file = open_file

    def path(self, digest: str) -> Path:
        """Where the blob with this SHA-256 (64 hex digits) is, or will be."""
        if not _DIGEST.match(digest):
            raise StoreError(f"not a SHA-256 digest: {digest[:80]!r}")
        return self._folder / f"sha256-{digest}"

    def find(self, digest: str, size_bytes: int) -> Path | None:
        """The path of a blob that is there in full, else None."""
        path = self.path(digest)
        try:
            return path if path.stat().st_size == size_bytes else None
        except OSError:
            return None

    def check_space(self, num_bytes: int) -> None:
        """Raise LocalFailure unless `num_bytes` more fit on the disk."""
        with self.explained():
            self._folder.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self._folder).free
        if free < num_bytes + _SPARE_BYTES:
            raise LocalFailure(
                f"not enough space in {self.home}: {num_bytes} bytes are needed and {free} are free "
                "(OCTAVO_HOME names another place)"
            )

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn a failing disk into a LocalFailure that says what happened and where."""
        try:
            yield
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            advice = (
                "free some space or set" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "set"
            )
            raise LocalFailure(
                f"cannot write to {self.home}: {reason} ({advice} OCTAVO_HOME to another place)"
            ) from error

    @contextmanager
    def scratch(self) -> Iterator[tuple[Path, BinaryIO]]:
        """A new file in the store, open for writing; it is removed at the end unless it was renamed."""
        with self.explained():
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=_PARTIAL, dir=self._folder)
            os.close(handle)
        path = Path(name)
        try:
            with self.explained():
                file = self._open_file(path)
            try:
                yield path, file
            finally:
                # Closing flushes, and a full disk says so again; the error on its way is the one to report.
                with suppress(OSError):
                    file.close()
        finally:
            path.unlink(missing_ok=True)

    @contextmanager
    def writer(self, digest: str, size_bytes: int) -> Iterator[BlobWriter]:
        """Write a blob; it appears under its digest only if all of it was written and its digest is right."""
        target = self.path(digest)
        with self.scratch() as (path, file):
            writer = BlobWriter(self, file, size_bytes)
            yield writer
            writer.check(digest)
            with self.explained():
                file.flush()
                os.fsync(file.fileno())
                path.chmod(0o644)
                path.replace(target)

    def remove_abandoned(self) -> None:
        """Delete partial files whose writer died more than a day ago."""
        with suppress(OSError):
            for path in self._folder.glob(f"{_PARTIAL}*"):
                with suppress(OSError):
                    if time.time() - path.stat().st_mtime > _ABANDONED_S:
                        path.unlink()


class BlobWriter:
    """Receives the bytes of one blob and counts and hashes them."""

    def __init__(self, store: BlobStore, file: BinaryIO, size_bytes: int) -> None:
        self._store = store
        self._file = file
        self._size_bytes = size_bytes
        self._hash = hashlib.sha256()
        self.num_written = 0

    def write(self, chunk: bytes) -> None:
        """Append bytes. Raises StoreError if there are more than announced."""
        self.num_written += len(chunk)
        if self.num_written > self._size_bytes:
            raise StoreError(
                f"the download is longer than the {self._size_bytes} bytes it should have"
            )
        self._hash.update(chunk)
        with self._store.explained():
            self._file.write(chunk)

    def check(self, digest: str) -> None:
        """Raise StoreError unless size and SHA-256 are as announced."""
        if self.num_written != self._size_bytes:
            raise StoreError(
                f"the download has {self.num_written} bytes instead of {self._size_bytes}"
            )
        if self._hash.hexdigest() != digest:
            raise StoreError(
                f"the download has SHA-256 {self._hash.hexdigest()} instead of {digest}"
            )
