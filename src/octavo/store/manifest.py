"""Manifests: small JSON files that say which blob a stored model is and where it came from."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from octavo.errors import InvalidRequest
from octavo.store.blobs import BlobStore
from octavo.store.builds import blob_build_path
from octavo.store.name import ModelName


class Manifest(msgspec.Struct, frozen=True):
    """What is known of a stored model. `source` says in words where the file came from."""

    name: str
    sha256: str
    size_bytes: int
    source: str
    description: str = ""
    license: str = ""
    schema: int = 1


def _path(home: Path, name: ModelName) -> Path:
    return home / "manifests" / name.name / name.tag


def read_manifest(home: Path, name: ModelName) -> Manifest | None:
    """The manifest of a stored model; None if there is none or it cannot be read."""
    try:
        return msgspec.json.decode(_path(home, name).read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError):
        return None


def write_manifest(store: BlobStore, name: ModelName, manifest: Manifest) -> None:
    """Store a manifest in one step. Raises StoreError that names the home directory."""
    path = _path(store.home, name)
    with store.scratch() as (partial, file), store.explained():
        file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
        file.flush()
        os.fsync(file.fileno())
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.chmod(0o644)
        partial.replace(path)


def stored_path(home: Path, name: ModelName) -> Path | None:
    """The file of a stored model, if it is there in full."""
    manifest = read_manifest(home, name)
    return None if manifest is None else BlobStore(home).find(manifest.sha256, manifest.size_bytes)


def list_models(home: Path) -> list[Manifest]:
    """The manifests of all stored models, by name. Other files in the folder are passed over."""
    manifests = []
    for path in sorted((home / "manifests").glob("*/*")):
        with suppress(InvalidRequest):
            manifest = read_manifest(home, ModelName(path.parent.name, path.name))
            if manifest is not None:
                manifests.append(manifest)
    return manifests


def remove_model(home: Path, name: ModelName) -> bool:
    """Forget a stored model; its blob and build go too, unless another model is the same file. False if not stored."""
    manifest = read_manifest(home, name)
    if manifest is None:
        return False
    store = BlobStore(home)
    with store.explained():
        _path(home, name).unlink(missing_ok=True)
        if all(other.sha256 != manifest.sha256 for other in list_models(home)):
            store.path(manifest.sha256).unlink(missing_ok=True)
            blob_build_path(home, manifest.sha256).unlink(missing_ok=True)
    return True
