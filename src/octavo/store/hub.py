"""Files of the Hugging Face hub, or of the mirror that HF_ENDPOINT names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

import httpx

from octavo.errors import StoreError
from octavo.store.blobs import BlobWriter
from octavo.store.catalog import HubSource
from octavo.store.web import Progress, download, explained, shown

_PUBLIC_HUB: Final = "https://huggingface.co"


def fetch_file(
    source: HubSource,
    sha256: str,
    writer: BlobWriter,
    client: httpx.Client,
    environ: Mapping[str, str],
    progress: Progress | None,
) -> str:
    """Write a file of the hub; returns where it came from, in words.

    The hub says a large file's digest beforehand: a wrong one is refused before the download. Raises StoreError.
    """
    endpoint = (environ.get("HF_ENDPOINT") or _PUBLIC_HUB).rstrip("/")
    url = httpx.URL(
        f"{endpoint}/{source.repo}/resolve/{quote(source.revision, safe='')}/{quote(source.file)}"
    )
    token = environ.get("HF_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with explained(url):
        head = client.head(url, headers=headers, follow_redirects=False)
        if head.is_error:
            head.raise_for_status()
    announced = head.headers.get("x-linked-etag", "").strip('"')
    if len(announced) == len(sha256) and announced != sha256:
        raise StoreError(f"{shown(url)} has SHA-256 {announced} instead of {sha256}")
    download(client, url, writer.write, what=source.file, progress=progress, headers=headers)
    return f"{source.repo} of {shown(endpoint)}"
