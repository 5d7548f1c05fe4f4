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
        sys.stdout.write(
            f"{manifest.name:<16}{readable_size(manifest.size_bytes):>10}  stored     {manifest.description}; from {manifest.source}\n"
        )
    for entry in available:
        sys.stdout.write(
            f"{entry.name:<16}{readable_size(entry.size_bytes):>10}  available  {entry.description}\n"
        )


def rm(model: str, /) -> None:
    """Remove MODEL from the store. A file that another stored name shares stays.

    Example: octavo rm smollm2

    Parameters
    ----------
    model
        Name of a stored model, as `octavo list` shows them.
    """
    home = from_env().home
    name = ModelName.parse(model)
    entry = load_catalog(home).find(name)
    names = [name] if entry is None else [name, entry.model_name]
    if not any(remove_model(home, each) for each in names):
        stored = ", ".join(manifest.name for manifest in list_models(home)) or "nothing"
        raise ModelNotFound(f"no model named {model!r} is stored; stored: {stored}")
    print(f"removed {model}", file=sys.stderr)


def _file(home: Path, manifest: Manifest) -> Path | None:
    return stored_path(home, ModelName.parse(manifest.name))


def _stored_facts(manifest: Manifest, path: Path) -> dict[str, object]:
    return {**msgspec.to_builtins(manifest), "path": str(path)}


def _available_facts(entry: CatalogEntry) -> dict[str, object]:
    return {
        "name": entry.name,
        "aliases": entry.aliases,
        "description": entry.description,
        "license": entry.license,
        "size_bytes": entry.size_bytes,
    }
