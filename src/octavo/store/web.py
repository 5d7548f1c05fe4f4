"""HTTP for the store: certificates, credentials that are used and never shown, errors in words."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, Final

import certifi
import httpx

from octavo.errors import StoreError
from octavo.store.blobs import BlobStore

_TIMEOUT: Final = httpx.Timeout(60.0, connect=20.0)
_CHUNK_BYTES: Final = 1 << 20

Progress = Callable[[str, int, int], None]
"""Told (what is fetched, bytes done, bytes in total or 0 if unknown) as a download goes on."""


def new_client(ca_file: str | None = None) -> httpx.Client:
    """A client that trusts the system's certificates, those of certifi, and those in `ca_file`."""
    context = ssl.create_default_context()
    with suppress(OSError):
        context.load_verify_locations(certifi.where())
    if ca_file:
        try:
            context.load_verify_locations(ca_file)
        except OSError:
            raise StoreError(
                f"the certificates configured for pip cannot be read: {ca_file}"
            ) from None
    return httpx.Client(verify=context, timeout=_TIMEOUT, follow_redirects=True)


def shown(url: str | httpx.URL) -> str:
    """The address without credentials and parameters, for messages."""
    parsed = httpx.URL(url)
    port = f":{parsed.port}" if parsed.port else ""
    return f"{parsed.scheme}://{parsed.host}{port}{parsed.path}"


def with_credentials(url: httpx.URL, origin: httpx.URL) -> httpx.URL:
    """`url` with the credentials of `origin`, if it has none of its own and is on the same host."""
    same = (url.scheme, url.host, url.port) == (origin.scheme, origin.host, origin.port)
    if url.userinfo or not origin.userinfo or not same:
        return url
    return url.copy_with(username=origin.username, password=origin.password)


@contextmanager
def opened(
    client: httpx.Client, url: httpx.URL, headers: dict[str, str] | None = None
) -> Iterator[httpx.Response]:
    """The good answer to a GET, its body yet to come. Credentials leave the address before anything can log it.

    Raises StoreError.
    """
    auth = httpx.BasicAuth(url.username, url.password) if url.userinfo else None
    bare = url.copy_with(username=None, password=None)
    with explained(url), client.stream("GET", bare, headers=headers, auth=auth) as response:
        response.raise_for_status()
        yield response


@contextmanager
def explained(url: str | httpx.URL) -> Iterator[None]:
    """Turn whatever goes wrong on the way into a StoreError without credentials."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        raise StoreError(f"{shown(url)} answered {error.response.status_code}") from None
    except httpx.TimeoutException:
        raise StoreError(f"{shown(url)} did not answer in time") from None
    except (httpx.ConnectError, httpx.ProxyError) as error:
        raise StoreError(f"no connection to {shown(url)}: {_reason(error)}") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise StoreError(f"the download from {shown(url)} broke off: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    # Only low-level texts get here; they name sockets and certificates, not addresses with credentials.
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def download(
    client: httpx.Client,
    url: httpx.URL,
    write: Callable[[bytes], object],
    *,
    what: str,
    progress: Progress | None,
    headers: dict[str, str] | None = None,
) -> None:
    """Stream a file to `write`. Raises StoreError, also if fewer bytes come than announced."""
    done = 0
    with opened(client, url, headers) as response:
        announced = response.headers.get("content-length", "")
        is_encoded = "content-encoding" in response.headers
        total = int(announced) if announced.isdigit() and not is_encoded else 0
        for chunk in response.iter_bytes(_CHUNK_BYTES):
            write(chunk)
            done += len(chunk)
            if progress is not None:
                progress(what, done, total)
    if total and done != total:
        raise StoreError(f"the download from {shown(url)} broke off after {done} of {total} bytes")


def writing(store: BlobStore, file: BinaryIO) -> Callable[[bytes], None]:
    """A function that appends to `file` and explains a failing disk."""

    def write(chunk: bytes) -> None:
        with store.explained():
            file.write(chunk)

    return write
