"""Where builds lie: packed weights of stored models and of the user's own files.

<home>/builds/sha256-<64 hex>.octavo     of the blob of that name; removed with it
<home>/builds/path-<32 hex>.octavo       of a file elsewhere, by a hash of its absolute path: a later build of what
                                         stands there then takes its place
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from octavo.errors import StoreError

_SUFFIX: Final = ".octavo"
_BLOB: Final = "sha256-"


def stored_digest(home: Path, model: Path) -> str | None:
    """The SHA-256 of a file that is a blob of the store, None for any other."""
    path = model.resolve()
    is_blob = path.parent == (home / "blobs").resolve() and path.name.startswith(_BLOB)
    return path.name.removeprefix(_BLOB) if is_blob else None


def build_path(home: Path, model: Path) -> Path:
    """Where the build of a model file is, or will be."""
    digest = stored_digest(home, model)
    if digest is not None:
        return blob_build_path(home, digest)
    name = hashlib.sha256(str(model.resolve()).encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return home / "builds" / f"path-{name}{_SUFFIX}"


def blob_build_path(home: Path, digest: str) -> Path:
    """Where the build of a stored blob is, or will be."""
    return home / "builds" / f"{_BLOB}{digest}{_SUFFIX}"


def remove_build(path: Path) -> bool:
    """Delete a build. False if there is none; raises StoreError if the system does not let it go."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreError(f"cannot remove {path}: {error.strerror or error}") from error
    return True


def builds_of_files(home: Path) -> tuple[int, int]:
    """How many builds there are of files outside the store, and their bytes together."""
    sizes = [build_size(path) or 0 for path in (home / "builds").glob(f"path-*{_SUFFIX}")]
    return len(sizes), sum(sizes)


def build_size(path: Path) -> int | None:
    """Bytes of a build, None if there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return None
