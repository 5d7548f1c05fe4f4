"""The name of a model -> its file: a path, a stored model, or one that the catalog can fetch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from octavo.config import from_env
from octavo.errors import InvalidRequest, ModelNotFound
from octavo.store.catalog import Catalog, CatalogEntry, load_catalog
from octavo.store.manifest import stored_path
from octavo.store.name import ModelName

Progress = Callable[[str, int, int], None]
"""Told (what is fetched, bytes done, bytes in total or 0 if unknown) as a download goes on."""


def resolve_model(name: str, *, home: Path | None = None, progress: Progress | None = None) -> Path:
    """The file of a model; fetches a catalog model on first use.

    `name` is the path of a file, or `name[:tag]` of the store or the catalog. Raises ModelNotFound, which lists what is
    known, and StoreError if the fetch fails.
    """
    as_path = Path(name).expanduser()
    if as_path.is_file():
        return as_path
    if name.lower().endswith(".gguf") or "/" in name or "\\" in name:
        raise ModelNotFound(
            f"there is no file {name}"
            if not as_path.is_dir()
            else f"{name} is a folder, not a file"
        )
    home = from_env().home if home is None else home
    catalog = load_catalog(home)
    try:
        model_name = ModelName.parse(name)
    except InvalidRequest:
        raise _not_found(name, catalog) from None
    stored = stored_path(home, model_name)
    if stored is not None:
        return stored
    entry = catalog.find(model_name)
    if entry is None:
        raise _not_found(name, catalog)
    return stored_path(home, entry.model_name) or _pull(entry, home, progress)


def _pull(entry: CatalogEntry, home: Path, progress: Progress | None) -> Path:
    # Loaded when needed: the HTTP client takes longer to import than a stored model takes to open.
    pull = importlib.import_module("octavo.store.pull").pull
    path = pull(entry, home, progress=progress).path
    assert isinstance(path, Path)
    return path


def _not_found(name: str, catalog: Catalog) -> ModelNotFound:
    near = catalog.near(name)
    guess = f"did you mean {' or '.join(near)}? " if near else ""
    known = ", ".join(entry.name for entry in catalog.entries)
    return ModelNotFound(
        f"no model named {name!r}: {guess}Known names: {known}. The path of a .gguf file works too."
    )
