"""KV blocks as files, one a block, found by what is in them (docs/design/disk-tier.md).

    <dir>/<namespace, 32 hex>/namespace.json              which model and kernels these blocks are of
    <dir>/<namespace>/<2 hex>/<digest, 32 hex>.kv         a block
    <dir>/<namespace>/<2 hex>/<digest, 32 hex>.pin        empty: the block is not to be evicted

A block's digest stands for its namespace, its salt, and all tokens up to its end. A file is believed only if every byte
of it is right.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import stat
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

BLOCK_SUFFIX: Final = ".kv"
PIN_SUFFIX: Final = ".pin"
NAMESPACE_FILE: Final = "namespace.json"

_MAGIC: Final = b"OCTVKV\x00\x01"  # the last byte is the version of this format
_HEADER: Final = struct.Struct("<8s16s16s16sII64s")
_SUM_BYTES: Final = 16
_NAME: Final = re.compile(r"[0-9a-f]{32}")


class Link(NamedTuple):
    """A block in its prefix: `at` blocks and `parent` come before it. `key`: its tokens, as the tree has them."""

    digest: bytes
    parent: bytes
    at: int
    key: bytes


class Header(NamedTuple):
    """What a block's file says of itself."""

    namespace: bytes
    link: Link
    num_bytes: int


def chain(namespace: bytes, salt: str | None, keys: Iterable[bytes]) -> Iterator[Link]:
    """The links of a prefix, from its first full block on."""
    told = b"\0" if salt is None else b"\1" + salt.encode("utf-8", "surrogatepass")
    parent = _digest(namespace + told)
    for at, key in enumerate(keys):
        digest = _digest(parent + key)
        yield Link(digest, parent, at, key)
        parent = digest


def namespace_of(facts: Mapping[str, str]) -> bytes:
    """The digest of everything that decides a block's bits, besides its tokens and salt."""
    return _digest(json.dumps(dict(facts), sort_keys=True).encode())


def is_digest_name(name: str) -> bool:
    """Whether a file or folder may be named after a digest."""
    return _NAME.fullmatch(name) is not None


def folders_in(folder: Path, is_ours: Callable[[str], bool]) -> list[Path]:
    """Folders with such names; none if somebody removed the folder itself. Raises: OSError."""
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        return [
            Path(entry.path)
            for entry in entries
            if is_ours(entry.name) and entry.is_dir(follow_symlinks=False)
        ]
    return []


def read_header(path: Path) -> Header | None:
    """The header of a block's file, None if it is none. Checks no checksum."""
    try:
        with path.open("rb") as file:
            magic, namespace, *link, num_bytes, key = _HEADER.unpack(file.read(_HEADER.size))
    except (OSError, struct.error):
        return None
    digest, parent, at = link
    if magic != _MAGIC or digest.hex() != path.stem:
        return None
    return Header(namespace, Link(digest, parent, at, key), num_bytes)


class BlockFiles:
    """The blocks of one namespace. Any number of threads and processes may use one directory."""

    def __init__(
        self, directory: Path, facts: Mapping[str, str], block_bytes: int, model_name: str = ""
    ) -> None:
        """Makes the folders. `facts` become the namespace; `model_name` is for people.

        Raises: OSError if the folders cannot be made or written to.
        """
        self.directory = directory
        self.namespace = namespace_of(facts)
        self.file_bytes = _HEADER.size + block_bytes + _SUM_BYTES
        self._block_bytes = block_bytes
        self._folder = directory / self.namespace.hex()
        self._about = {"model": model_name, "block_bytes": block_bytes, "facts": dict(facts)}
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._make_folder()

    def names(self) -> set[bytes]:
        """Digests of the blocks that are there. Raises: OSError."""
        found = set()
        for shard in folders_in(self._folder, lambda name: len(name) == 2):
            with suppress(FileNotFoundError), os.scandir(shard) as files:
                for file in files:
                    name, suffix = os.path.splitext(file.name)
                    if suffix == BLOCK_SUFFIX and is_digest_name(name):
                        found.add(bytes.fromhex(name))
        return found

    def path(self, digest: bytes) -> Path:
        """Where a block's file is, or would be."""
        name = digest.hex()
        return self._folder / name[:2] / (name + BLOCK_SUFFIX)

    def write(self, link: Link, block: Bytes, used_ns: int) -> None:
        """Store a block: under its name there is all of it, or what was there before.

        `used_ns` is the time of the request it belongs to, for all blocks of a prefix the same. Raises: OSError.
        """
        path = self.path(link.digest)
        temporary = path.with_name(f"{path.stem}.{secrets.token_hex(6)}.tmp")
        try:
            with open(self._create(temporary), "wb", buffering=0) as file:
                header = self._header(link)
                for part in (header, block.data, _checksum(header, block)):
                    _write_all(file.fileno(), memoryview(part))
            _set_time(temporary, link.at, used_ns)
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise

    def read(self, link: Link) -> Bytes | None:
        """A block's bytes; None if it is not there, or its file is not what was written, to the last byte."""
        data = np.empty(self.file_bytes, np.uint8)
        if not _read_file(self.path(link.digest), data.data):
            return None
        header, block = data[: _HEADER.size], data[_HEADER.size : -_SUM_BYTES]
        expected = self._header(link)
        if header.tobytes() != expected:
            return None
        return block if data[-_SUM_BYTES:].tobytes() == _checksum(expected, block) else None

    def touch(self, link: Link, used_ns: int) -> bool:
        """Note that a block was used again, at a time as in `write`. False if it is gone."""
        try:
            _set_time(self.path(link.digest), link.at, used_ns)
        except FileNotFoundError:
            return False
        return True

    def _header(self, link: Link) -> bytes:
        return _HEADER.pack(
            _MAGIC,
            self.namespace,
            link.digest,
            link.parent,
            link.at,
            self._block_bytes,
            link.key,
        )

    def _create(self, path: Path) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            return os.open(path, flags, 0o600)
        except FileNotFoundError:
            # The first block of its shard; or somebody emptied the directory. One that is gone altogether may be a
            # file system that is not mounted: that is left alone.
            self._make_folder()
            path.parent.mkdir(mode=0o700, exist_ok=True)
            return os.open(path, flags, 0o600)

    def _make_folder(self) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        about = self._folder / NAMESPACE_FILE
        if not about.exists():
            temporary = about.with_name(f"{NAMESPACE_FILE}.{secrets.token_hex(6)}.tmp")
            temporary.write_text(json.dumps(self._about, indent=1))
            temporary.replace(about)


def _set_time(path: Path, at: int, used_ns: int) -> None:
    # Of one prefix the end is a little older, so that it goes first: what comes after a gap is not found.
    time_ns = used_ns - 1000 * at
    os.utime(path, ns=(time_ns, time_ns))


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _checksum(header: bytes, block: Bytes) -> bytes:
    # SHA-256 has instructions of its own on most CPUs: twice as fast as BLAKE2 there.
    total = hashlib.sha256(header)
    total.update(block.data)
    return total.digest()[:_SUM_BYTES]


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _read_file(path: Path, into: memoryview) -> bool:
    """Fill `into` from a file of exactly that size. False if that is not what is there."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # never waits for a pipe
    except OSError:
        return False
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size != len(into):
            return False
        while into:
            num_bytes = os.readv(fd, [into])
            if num_bytes == 0:
                return False
            into = into[num_bytes:]
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
