"""Who may use a server, and from where."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from octavo.errors import InvalidRequest
from octavo.server.config import ANY, DEFAULT_MAX_BODY_BYTES, CacheIsolation, SecurityConfig
from octavo.server.keys import KeyRing, read_keys, single_key

LOCALHOST: Final = "localhost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What `SecurityConfig` comes to on one address: the keys, if any, and the names a request may use."""

    keys: KeyRing | None = None
    origins: frozenset[str] = frozenset()
    hosts: frozenset[str] | None = None
    """Host names that are answered besides the loopback ones; None: any."""
    has_open_metrics: bool = False
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES

    def takes_host(self, header: str) -> bool:
        """Whether a Host header may be meant for this server. A page of evil.example that resolves to us says evil.example."""
        if self.hosts is None:
            return True
        name = host_name(header)
        return name in self.hosts or is_loopback(name)

    def takes_origin(self, origin: str, host: str) -> bool:
        """Whether pages of an origin may change things here: its own, and those that were allowed."""
        if origin in self.origins or ANY in self.origins:
            return True
        return urlsplit(origin).netloc.lower() == host.lower() != ""


OPEN: Final = Access()


def resolve_access(config: SecurityConfig, host: str, api_key: str | None = None) -> Access:
    """The access to a server on address `host`; `api_key` is that of the environment. Raises: InvalidRequest."""
    is_isolated = config.cache_isolation is CacheIsolation.TENANT
    callers = [] if api_key is None else [single_key(api_key, is_isolated=is_isolated)]
    if config.api_keys_file is not None:
        callers += read_keys(Path(config.api_keys_file), is_isolated=is_isolated)
    if is_isolated and not callers:
        raise InvalidRequest(
            "cache_isolation: tenants come with keys: give --api-keys-file", param="cache_isolation"
        )
    # Without keys the name is all that tells a page of others from a local program.
    guards_host = not callers and is_loopback(host) and ANY not in config.allowed_hosts
    return Access(
        keys=KeyRing(callers) if callers else None,
        origins=frozenset(config.allowed_origins),
        hosts=frozenset(name.lower() for name in config.allowed_hosts) if guards_host else None,
        has_open_metrics=config.metrics_without_key,
        max_body_bytes=config.max_body_bytes,
    )


def warning(access: Access, host: str) -> str | None:
    """What the operator should know of a server on this address."""
    if access.keys is not None or is_loopback(host):
        return None
    return (
        f"WARNING: anybody who reaches {host} can use this server: "
        "set OCTAVO_API_KEY or --api-keys-file, or listen on 127.0.0.1"
    )


def host_name(header: str) -> str:
    """The name of a Host header, without port and brackets."""
    header = header.strip().lower()
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].rstrip(".")


def is_loopback(name: str) -> bool:
    """Whether a name or address is this machine alone."""
    if name == LOCALHOST or name.endswith("." + LOCALHOST):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
