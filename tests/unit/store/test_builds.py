"""Where builds lie, and that they go with their model."""

from __future__ import annotations

import hashlib
from pathlib import Path

from octavo.store.blobs import BlobStore
from octavo.store.builds import (
    blob_build_path,
    build_path,
    build_size,
    builds_of_files,
    remove_build,
    stored_digest,
)
from octavo.store.manifest import Manifest, remove_model, write_manifest
from octavo.store.name import ModelName


def stored(home: Path, *names: str) -> tuple[Path, str]:
    """A blob under some names."""
    digest = hashlib.sha256(b"model").hexdigest()
    store = BlobStore(home)
    with store.writer(digest, 5) as writer:
        writer.write(b"model")
    for name in names:
        write_manifest(store, ModelName.parse(name), Manifest(name, digest, 5, "a test"))
    return store.path(digest), digest


def test_a_blob_and_a_file_elsewhere_have_builds_of_their_own(tmp_path: Path) -> None:
    blob, digest = stored(tmp_path, "a")
    assert stored_digest(tmp_path, blob) == digest
    assert build_path(tmp_path, blob) == blob_build_path(tmp_path, digest)
    link = tmp_path / "link.gguf"
    link.symlink_to(blob)
    assert build_path(tmp_path, link) == build_path(tmp_path, blob)
    one, two = (build_path(tmp_path, tmp_path / name) for name in ("1.gguf", "2.gguf"))
    assert one != two
    assert one == build_path(tmp_path, tmp_path / "x" / ".." / "1.gguf")
    assert stored_digest(tmp_path, tmp_path / "1.gguf") is None
    assert {p.parent for p in (one, two, blob_build_path(tmp_path, digest))} == {tmp_path / "builds"}  # fmt: skip


def test_a_build_goes_with_the_last_name_of_its_model(tmp_path: Path) -> None:
    _, digest = stored(tmp_path, "a", "b")
    build = blob_build_path(tmp_path, digest)
    build.parent.mkdir()
    build.write_bytes(b"12345")
    assert build_size(build) == 5
    assert remove_model(tmp_path, ModelName.parse("a"))
    assert build.exists()
    assert remove_model(tmp_path, ModelName.parse("b"))
    assert build_size(build) is None


def test_builds_of_files_are_counted_and_removed(tmp_path: Path) -> None:
    assert builds_of_files(tmp_path) == (0, 0)
    build = build_path(tmp_path, tmp_path / "1.gguf")
    build.parent.mkdir()
    build.write_bytes(b"123")
    blob_build_path(tmp_path, "0" * 64).write_bytes(b"12345")
    assert builds_of_files(tmp_path) == (1, 3)
    assert remove_build(build)
    assert not remove_build(build)
