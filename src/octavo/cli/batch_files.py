"""The two files of a batch: requests read line by line, results written whole lines at a time and found again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from octavo.errors import InvalidRequest

_CHUNK_BYTES: Final = 1 << 20


class _Error(msgspec.Struct):
    line: int | None = None


class _Result(msgspec.Struct):
    custom_id: str | None
    error: _Error | None = None


def digest(custom_id: str) -> bytes:
    """Stands for an id where millions are remembered."""
    return hashlib.blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def read_lines(path: Path, max_bytes: int) -> Iterator[tuple[int, bytes]]:
    """(number, line) of each line that is not blank; of one above `max_bytes` only its first part, one byte too long."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(max_bytes + 1):
            number += 1
            rest = line
            while not rest.endswith(b"\n") and len(rest) > max_bytes:
                rest = file.readline(max_bytes + 1)
            if line.strip():
                yield number, line


def count_lines(path: Path) -> int:
    """Lines of a file, the last one also without a line break. Takes no more memory for a larger file."""
    count, last = 0, b"\n"
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            count += chunk.count(b"\n")
            last = chunk[-1:]
    return count + (last != b"\n")


class Results:
    """The output file. What an earlier run wrote is kept and known; half a line at its end is dropped.

    Invariant: the file holds whole lines only, also after an error while writing.
    """

    def __init__(self, path: Path) -> None:
        """Open for appending, create if need be. Raises: OSError, InvalidRequest if it holds something else."""
        self.answered: set[bytes] = set()
        self.refused_lines: set[int] = set()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            self._end = self._read(path)
            os.ftruncate(self._fd, self._end)
        except BaseException:
            os.close(self._fd)
            raise

    @property
    def num_lines(self) -> int:
        """Lines that an earlier run wrote."""
        return self._num_found

    def append(self, line: bytes) -> None:
        """Write one line, which ends with a line break. Raises: OSError; then nothing of it is left."""
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except BaseException:
            os.ftruncate(self._fd, self._end)
            raise
        self._end += len(line)

    def _read(self, path: Path) -> int:
        """Take note of the lines that are there; returns where the last whole one ends."""
        end = self._num_found = 0
        with path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._note(line, path)
                end += len(line)
        return end

    def _note(self, line: bytes, path: Path) -> None:
        self._num_found += 1
        try:
            result = msgspec.json.decode(line, type=_Result)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise InvalidRequest(
                f"{path}: line {self._num_found} is no result of a batch; choose another --output-file",
                param="output_file",
            ) from None
        if result.error is not None and result.error.line is not None:
            self.refused_lines.add(result.error.line)
        elif result.custom_id is not None:
            self.answered.add(digest(result.custom_id))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._fd)
