"""The whole directory of stored blocks: what is in it, what goes when it is full, what is pinned."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from octavo.cache.block_files import BLOCK_SUFFIX, PIN_SUFFIX, folders_in, is_digest_name

_TEMPORARY: Final = ".tmp"
_ABANDONED_NS: Final = 60 * 10**9
"""A file that is still being written after this long never will be: its process is gone."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A block's file, or one that is being written."""

    path: Path
    num_bytes: int
    last_use_ns: int
    is_pinned: bool

    @property
    def is_block(self) -> bool:
        """Whether it is complete."""
        return self.path.suffix == BLOCK_SUFFIX


def scan(directory: Path) -> list[StoredFile]:
    """All blocks in a directory, of every model. Other files are not looked at. Raises: OSError."""
    found: list[StoredFile] = []
    os.stat(directory)
    for folder in folders_in(directory, is_digest_name):
        for shard in folders_in(folder, lambda name: len(name) == 2):
            found.extend(_files_of(shard))
    return found


def make_room(directory: Path, max_bytes: int) -> list[StoredFile]:
    """Delete blocks, longest unused first, until the others take at most `max_bytes`; pinned ones stay.

    Returns: what is left. Raises: OSError.
    """
    now = time.time_ns()
    files = sorted(scan(directory), key=lambda file: file.last_use_ns)
    used = sum(file.num_bytes for file in files)
    kept = []
    for file in files:
        is_abandoned = not file.is_block and now - file.last_use_ns > _ABANDONED_NS
        if is_abandoned or (used > max_bytes and file.is_block and not file.is_pinned):
            remove(file.path)
            used -= file.num_bytes
        else:
            kept.append(file)
    return kept


def pin(path: Path) -> None:
    """Have a block stay, however long unused. Raises: OSError."""
    path.with_suffix(PIN_SUFFIX).touch(mode=0o600)


def unpin(path: Path) -> None:
    """Let a block go when its turn comes."""
    path.with_suffix(PIN_SUFFIX).unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Delete a block and its pin; somebody else may have been faster. Raises: OSError."""
    path.unlink(missing_ok=True)
    if path.suffix == BLOCK_SUFFIX:
        unpin(path)


def _files_of(shard: Path) -> Iterator[StoredFile]:
    with suppress(FileNotFoundError), os.scandir(shard) as entries:
        files = [entry for entry in entries if is_digest_name(entry.name.partition(".")[0])]
        pinned = {e.name.partition(".")[0] for e in files if e.name.endswith(PIN_SUFFIX)}
        for entry in files:
            is_named = entry.name.endswith((BLOCK_SUFFIX, _TEMPORARY))
            if not is_named or not entry.is_file(follow_symlinks=False):
                continue
            with suppress(FileNotFoundError):
                facts = entry.stat(follow_symlinks=False)
                name = entry.name.partition(".")[0]
                yield StoredFile(Path(entry.path), facts.st_size, facts.st_mtime_ns, name in pinned)
