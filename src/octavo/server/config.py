"""What a server is started with. Imports nothing heavy: the command line reads its flags here."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final
from urllib.parse import urlsplit

from octavo.errors import InvalidRequest

ANY: Final = "*"
DEFAULT_MAX_BODY_BYTES: Final = 4 * 2**20
"""A prompt of 131,072 tokens is half a megabyte of English, 0.9 as token ids, 1.5 as escaped Chinese."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Where a server listens, how many may wait, and how long it drains."""

    host: str = field(default="127.0.0.1", metadata={"help": "address to listen on"})
    port: int = field(default=8000, metadata={"help": "port to listen on; 0 takes any free one"})
    max_queued_requests: int = field(
        default=1024,
        metadata={"help": "requests that may wait for their first token; more get 429"},
    )
    max_queued_tokens: int | None = field(
        default=None,
        metadata={"help": "tokens of the prompts that may wait for it; one prompt always may"},
    )
    replay: bool = field(
        default=True,
        metadata={"help": "requests of an engine process that dies go on in the next one"},
    )
    grace_s: int = field(
        default=30, metadata={"help": "seconds that running requests have left when told to stop"}
    )


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
            if origin not in (ANY, "null") and not _is_origin(origin):
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


DEFAULT_SECURITY: Final = SecurityConfig()


def _is_origin(text: str) -> bool:
    parts = urlsplit(text)
    return bool(parts.scheme and parts.netloc) and not (parts.path or parts.query)
