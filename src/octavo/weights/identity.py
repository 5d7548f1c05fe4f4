"""Which model a file is, told in milliseconds: what a build is compared with at each start."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from octavo.errors import ModelError
from octavo.weights.source import TensorInfo, WeightSource

_NUM_SAMPLES: Final = 64
_SAMPLE_BYTES: Final = 256
"""From the middle of a tensor: another training run, or another quantisation, changes every tensor."""


@dataclass(frozen=True, slots=True)
class FileStamp:
    """A file as the file system sees it."""

    num_bytes: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """The stamps of a model's files, and a hash over their tensor lists and samples of their tensors."""

    stamps: tuple[FileStamp, ...]
    fingerprint: str


def identify(source: WeightSource) -> ModelIdentity:
    """Stamps and fingerprint of an open model; reads 16 KiB of its tensors. Raises ModelError if a file is gone."""
    stamps = tuple(stamp(path) for path in source.paths)
    digest = hashlib.sha256()
    for info in source.tensors.values():
        digest.update(f"{info.name}\0{info.shape}\0{info.format.type_id}\0{info.offset}\n".encode())
    largest = sorted(source.tensors.values(), key=_size, reverse=True)[:_NUM_SAMPLES]
    for info in largest:
        data = source.tensor(info.name).data
        middle = info.num_bytes // 2
        digest.update(data[middle : middle + _SAMPLE_BYTES])
    return ModelIdentity(stamps, digest.hexdigest())


def stamp(path: Path) -> FileStamp:
    """Size and time of last change. Raises ModelError if the file is gone."""
    try:
        facts = path.stat()
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from error
    return FileStamp(facts.st_size, facts.st_mtime_ns)


def file_digest(path: Path) -> str:
    """SHA-256 of a whole file, as the store has it. Raises ModelError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from error


def _size(info: TensorInfo) -> int:
    return info.num_bytes
