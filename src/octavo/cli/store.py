"""`octavo pull`, `list` and `rm`: the models in the store."""

from __future__ import annotations

import json as json_
import sys
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from octavo.cli.fetch import model_file, readable_size
from octavo.config import from_env
from octavo.errors import InvalidRequest, ModelNotFound
from octavo.store.builds import (
    blob_build_path,
    build_path,
    build_size,
    builds_of_files,
    remove_build,
    stored_digest,
)
from octavo.store.catalog import CatalogEntry, load_catalog
from octavo.store.manifest import Manifest, list_models, remove_model, stored_path
from octavo.store.name import ModelName


def pull(model: str, /) -> None:
    """Fetch MODEL into the store, check its digest, and say where it came from.

    Nothing is fetched if it is there already; nothing half-fetched stays.

    Example: octavo pull smollm2

    Parameters
    ----------
    model
        Catalog name, as `octavo list` shows them.
    """
    if Path(model).expanduser().is_file():
        raise InvalidRequest(f"{model} is a file on this machine: it can be used as it is")
    path, fetched = model_file(model)
    if fetched is None:
        print(f"{model} is stored already: {path}", file=sys.stderr)


def list_(
    *,
    json: Annotated[
        bool, Parameter(help="print one JSON object", negative=(), show_default=False)
    ] = False,
) -> None:
    """List the models in the store, and those of the catalog that can be pulled.

    Example: octavo list --json
    """
    home = from_env().home
    stored = [(manifest, path) for manifest in list_models(home) if (path := _file(home, manifest))]
    names = {manifest.name for manifest, _ in stored}
    available = [entry for entry in load_catalog(home).entries if entry.name not in names]
    if json:
        report = {
            "home": str(home),
            "stored": [_stored_facts(manifest, path) for manifest, path in stored],
            "available": [_available_facts(entry) for entry in available],
        }
        sys.stdout.write(json_.dumps(report, ensure_ascii=False) + "\n")
        return
    for manifest, _ in stored:
        built = build_size(blob_build_path(home, manifest.sha256))
        note = "" if built is None else f"; build of {readable_size(built)}"
        sys.stdout.write(
            f"{manifest.name:<16}{readable_size(manifest.size_bytes):>10}  stored     "
            f"{manifest.description}; from {manifest.source}{note}\n"
        )
    for entry in available:
        sys.stdout.write(
            f"{entry.name:<16}{readable_size(entry.size_bytes):>10}  available  {entry.description}\n"
        )
    count, num_bytes = builds_of_files(home)
    if count:
        sys.stdout.write(
            f"builds of {count} files outside the store: {readable_size(num_bytes)} in {home / 'builds'} "
            "(`octavo rm PATH` removes one)\n"
        )


def rm(model: str, /) -> None:
    """Remove MODEL and its build from the store. A file that another stored name shares stays.

    Of a file outside the store only the build is removed.

    Example: octavo rm smollm2

    Parameters
    ----------
    model
        Name of a stored model, as `octavo list` shows them, or the path of a .gguf file.
    """
    home = from_env().home
    if "/" in model or model.lower().endswith(".gguf"):
        _remove_build_of(home, Path(model).expanduser())
        return
    name = ModelName.parse(model)
    entry = load_catalog(home).find(name)
    names = [name] if entry is None else [name, entry.model_name]
    if not any(remove_model(home, each) for each in names):
        stored = ", ".join(manifest.name for manifest in list_models(home)) or "nothing"
        raise ModelNotFound(f"no model named {model!r} is stored; stored: {stored}")
    print(f"removed {model}", file=sys.stderr)


def _remove_build_of(home: Path, model: Path) -> None:
    """The file itself may be gone by now."""
    if stored_digest(home, model) is not None:
        raise InvalidRequest(f"{model} belongs to the store: name the model, not its file")
    if not remove_build(build_path(home, model)):
        raise ModelNotFound(f"there is no build of {model}")
    print(f"removed the build of {model}", file=sys.stderr)


def _file(home: Path, manifest: Manifest) -> Path | None:
    return stored_path(home, ModelName.parse(manifest.name))


def _stored_facts(manifest: Manifest, path: Path) -> dict[str, object]:
    build = blob_build_path(from_env().home, manifest.sha256)
    size = build_size(build)
    return {
        **msgspec.to_builtins(manifest),
        "path": str(path),
        "build": None if size is None else {"path": str(build), "size_bytes": size},
    }


def _available_facts(entry: CatalogEntry) -> dict[str, object]:
    return {
        "name": entry.name,
        "aliases": entry.aliases,
        "description": entry.description,
        "license": entry.license,
        "size_bytes": entry.size_bytes,
    }
