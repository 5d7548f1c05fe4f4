"""Files out of wheels, through the package index that pip or uv is configured with.

Source: the simple repository API (PEP 503 HTML, PEP 691 JSON), wheel file names (PEP 427).
"""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urldefrag
from urllib.request import url2pathname

import httpx
import msgspec

from octavo.errors import StoreError
from octavo.store.blobs import BlobStore, BlobWriter, LocalFailure
from octavo.store.catalog import PypiSource, WheelMember
from octavo.store.index_config import IndexConfig
from octavo.store.web import Progress, download, opened, shown, with_credentials, writing

_ACCEPT: Final = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_CHUNK_BYTES: Final = 1 << 20
_MAX_PAGE_BYTES: Final = 64 << 20


def process_environment() -> Mapping[str, str]:
    """The variables through which pip, uv and the hub are configured."""
    return dict(os.environ)


@dataclass(frozen=True, slots=True)
class WheelLink:
    """A wheel that an index offers. `sha256` is "" where the index gives none."""

    filename: str
    url: httpx.URL
    sha256: str


class _Hashes(msgspec.Struct):
    sha256: str = ""


class _File(msgspec.Struct):
    filename: str
    url: str
    hashes: _Hashes = msgspec.field(default_factory=_Hashes)


class _Page(msgspec.Struct):
    files: list[_File]


class _Anchors(HTMLParser):
    """Collects (address, text) of the links of a PEP 503 page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href")
        if tag == "a" and href:
            self.links.append((href, ""))

    def handle_data(self, data: str) -> None:
        if self.links and data.strip() and not self.links[-1][1]:
            self.links[-1] = (self.links[-1][0], data.strip())


def fetch_wheels(
    source: PypiSource,
    writer: BlobWriter,
    store: BlobStore,
    client: httpx.Client,
    config: IndexConfig,
    progress: Progress | None,
) -> str:
    """Write the members of all wheels of `source`; returns where they came from, in words. Raises StoreError."""
    origins = []
    for wheel in source.wheels:
        link, index = find_wheel(wheel, client, config)
        with _local_copy(link, store, client, progress) as path:
            _copy_member(path, wheel, writer)
        origins.append(f"{link.filename} of {shown(index)}")
    return ", ".join(dict.fromkeys(origins))


def find_wheel(
    wheel: WheelMember, client: httpx.Client, config: IndexConfig
) -> tuple[WheelLink, str]:
    """The link to a wheel and the index that has it, the first of those configured. Raises StoreError."""
    failures = []
    for index in config.urls:
        try:
            links = _links(index, _normalise(wheel.project), client)
        except StoreError as error:
            failures.append(str(error))
            continue
        matches = [link for link in links if _is_wheel_of(link.filename, wheel)]
        if matches:
            return min(matches, key=lambda link: not link.filename.endswith("-none-any.whl")), index
        failures.append(f"{shown(index)} has no wheel of it")
    raise StoreError(f"{wheel.project} {wheel.version}: " + "; ".join(failures))


def _normalise(project: str) -> str:
    return re.sub(r"[-_.]+", "-", project).lower()


def _is_wheel_of(filename: str, wheel: WheelMember) -> bool:
    parts = filename.split("-")
    if not filename.endswith(".whl") or len(parts) < 5:
        return False
    return _normalise(parts[0]) == _normalise(wheel.project) and parts[1] == wheel.version


def _links(index: str, project: str, client: httpx.Client) -> list[WheelLink]:
    if index.startswith("file:"):
        return _links_of_folder(_path_of(index) / project, index)
    try:
        origin, url = httpx.URL(index), httpx.URL(f"{index}/{project}/")
    except httpx.InvalidURL:
        raise StoreError("a configured package index has an address that is none") from None
    page = bytearray()
    with opened(client, url, {"Accept": _ACCEPT}) as response:
        for chunk in response.iter_bytes(_CHUNK_BYTES):
            page += chunk
            if len(page) > _MAX_PAGE_BYTES:
                raise StoreError(f"{shown(url)} is larger than an index page can be")
    is_json = "json" in response.headers.get("content-type", "")
    base = response.url.copy_with(username=None, password=None)
    return [
        WheelLink(link.filename, with_credentials(base.join(link.url), origin), link.sha256)
        for link in (
            _parse_json(bytes(page), url)
            if is_json
            else _parse_html(page.decode("utf-8", "replace"))
        )
    ]


def _links_of_folder(folder: Path, index: str) -> list[WheelLink]:
    """A file: index: a folder per project with an index.html, or with the wheels themselves."""
    try:
        page = folder / "index.html"
        if page.is_file():
            base = httpx.URL(page.as_uri())
            links = _parse_html(page.read_text(encoding="utf-8", errors="replace"))
            return [WheelLink(link.filename, base.join(link.url), link.sha256) for link in links]
        return [
            WheelLink(path.name, httpx.URL(path.as_uri()), "") for path in sorted(folder.iterdir())
        ]
    except OSError:
        raise StoreError(f"{shown(index)} has no such project") from None


def _parse_json(page: bytes, url: httpx.URL) -> list[WheelLink]:
    try:
        files = msgspec.json.decode(page, type=_Page).files
    except msgspec.DecodeError:
        raise StoreError(
            f"{shown(url)} is not a package index: its answer has the wrong form"
        ) from None
    return [WheelLink(file.filename, httpx.URL(file.url), file.hashes.sha256) for file in files]


def _parse_html(page: str) -> list[WheelLink]:
    anchors = _Anchors()
    anchors.feed(page)
    links = []
    for href, text in anchors.links:
        address, fragment = urldefrag(href)
        filename = text or unquote(address.rsplit("/", 1)[-1])
        sha256 = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else ""
        links.append(WheelLink(filename, httpx.URL(address), sha256))
    return links


def _path_of(url: str | httpx.URL) -> Path:
    return Path(url2pathname(httpx.URL(url).path))


@contextmanager
def _local_copy(
    link: WheelLink, store: BlobStore, client: httpx.Client, progress: Progress | None
) -> Iterator[Path]:
    """The wheel as a file: downloaded and checked, and removed afterwards."""
    if link.url.scheme == "file":
        path = _path_of(link.url)
        _check_hash(path, link)
        yield path
        return
    with store.scratch() as (path, file):
        download(client, link.url, writing(store, file), what=link.filename, progress=progress)
        with store.explained():
            file.flush()
        _check_hash(path, link)
        yield path


def _check_hash(path: Path, link: WheelLink) -> None:
    if not link.sha256:
        return
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        raise StoreError(f"{link.filename} cannot be read from the index") from None
    if found != link.sha256:
        raise StoreError(f"{link.filename} has SHA-256 {found}, the index says {link.sha256}")


def _copy_member(path: Path, wheel: WheelMember, writer: BlobWriter) -> None:
    try:
        with zipfile.ZipFile(path) as archive, archive.open(wheel.member) as member:
            while chunk := member.read(_CHUNK_BYTES):
                writer.write(chunk)
    except KeyError:
        raise StoreError(f"{wheel.project} {wheel.version} has no file {wheel.member}") from None
    except LocalFailure:
        raise
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError) as error:
        raise StoreError(
            f"the wheel of {wheel.project} {wheel.version} is damaged: {error}"
        ) from None
