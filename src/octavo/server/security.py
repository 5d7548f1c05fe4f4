"""Who may use a server, from where, and for how long a client may keep it waiting."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from octavo.errors import InvalidRequest
from octavo.server.body import DEFAULT_MAX_BODY_BYTES
from octavo.server.keys import KeyRing, read_keys, single_key

LOCALHOST: Final = "localhost"
_ANY: Final = "*"


class CacheIsolation(Enum):
    """Between whom stored prefixes are shared."""

    NONE = "none"
    TENANT = "tenant"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig:
    """Who may use a server. Raises: InvalidRequest, naming the field."""

    api_keys_file: str | None = field(
        default=None, metadata={"help": "TOML file of keys, tenants and their limits (SECURITY.md)"}
    )
    metrics_without_key: bool = field(
        default=False, metadata={"help": "answer /metrics without a key"}
    )
    cache_isolation: CacheIsolation = field(
        default=CacheIsolation.NONE,
        metadata={"help": "tenant: no tenant meets, or can measure, prefixes of another"},
    )
    allowed_origins: tuple[str, ...] = field(
        default=(), metadata={"help": "web origin whose pages may call this server; * for all"}
    )
    allowed_hosts: tuple[str, ...] = field(
        default=(), metadata={"help": "Host header answered on a loopback address, besides its own"}
    )
    ssl_keyfile: str | None = field(default=None, metadata={"help": "PEM file of the TLS key"})
    ssl_certfile: str | None = field(
        default=None, metadata={"help": "PEM file of the TLS certificate"}
    )
    ssl_ca_certs: str | None = field(
        default=None, metadata={"help": "PEM file: clients need a certificate that these signed"}
    )
    # The flag's name is part of the interface; it is in seconds.
    client_timeout: float = field(
        default=30.0,
        metadata={"help": "seconds after which a client that neither sends nor reads is dropped"},
    )
    max_connections: int = field(
        default=1024, metadata={"help": "connections open at once; more are refused"}
    )
    max_body_bytes: int = field(
        default=DEFAULT_MAX_BODY_BYTES,
        metadata={"help": "size of a request's body; a larger one gets 413"},
    )

    def __post_init__(self) -> None:
        if not 0 < self.client_timeout <= 86400:
            raise InvalidRequest(
                f"client_timeout must be above 0 and at most 86400, got {self.client_timeout}",
                param="client_timeout",
            )
        if self.max_connections < 1:
            raise InvalidRequest(
                f"max_connections must be at least 1, got {self.max_connections}",
                param="max_connections",
            )
        if self.max_body_bytes < 1024:
            raise InvalidRequest(
                f"max_body_bytes must be at least 1024, got {self.max_body_bytes}",
                param="max_body_bytes",
            )
        if (self.ssl_keyfile or self.ssl_ca_certs) and not self.ssl_certfile:
            raise InvalidRequest("ssl_certfile is needed for TLS", param="ssl_certfile")
        for origin in self.allowed_origins:
            if origin not in (_ANY, "null") and not _is_origin(origin):
                raise InvalidRequest(
                    f"allowed_origins: an origin is like https://example.com, not {origin!r}",
                    param="allowed_origins",
                )

    @property
    def scheme(self) -> str:
        """How the server is spoken to."""
        return "https" if self.ssl_certfile else "http"

    def tls_options(self) -> dict[str, Any]:
        """Arguments of the HTTP server. Raises: InvalidRequest if the files are of no use."""
        if self.ssl_certfile is None:
            return {}
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            # An encrypted key has no password here: an empty one fails at once, without asking a terminal.
            context.load_cert_chain(self.ssl_certfile, self.ssl_keyfile, password="")
            if self.ssl_ca_certs:
                context.load_verify_locations(self.ssl_ca_certs)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise InvalidRequest(
                f"ssl_certfile or its key cannot be used: {reason or error}", param="ssl_certfile"
            ) from None
        return {
            "ssl_keyfile": self.ssl_keyfile,
            "ssl_certfile": self.ssl_certfile,
            "ssl_ca_certs": self.ssl_ca_certs,
            "ssl_cert_reqs": ssl.CERT_REQUIRED if self.ssl_ca_certs else ssl.CERT_NONE,
        }


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
        if origin in self.origins or _ANY in self.origins:
            return True
        return urlsplit(origin).netloc.lower() == host.lower() != ""


OPEN: Final = Access()
DEFAULT_SECURITY: Final = SecurityConfig()


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
    guards_host = not callers and is_loopback(host) and _ANY not in config.allowed_hosts
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


def _is_origin(text: str) -> bool:
    parts = urlsplit(text)
    return bool(parts.scheme and parts.netloc) and not (parts.path or parts.query)
