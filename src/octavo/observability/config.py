"""What a server tells of its requests: to their clients, to its log, to a collector of traces."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Final
from urllib.parse import urlsplit

from octavo.errors import InvalidRequest

_NEEDED: Final = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservabilityConfig:
    """All of it is off unless asked for. Raises: InvalidRequest for an endpoint that cannot be used."""

    enable_per_request_metrics: bool = field(
        default=False,
        metadata={
            "help": "put the metrics of the request into every answer, as include_metrics does"
        },
    )
    log_requests: bool = field(
        default=False,
        metadata={"help": "log a line per request at its end; never what is in it"},
    )
    otlp_traces_endpoint: str | None = field(
        default=None,
        metadata={
            "help": "URL that OpenTelemetry traces are sent to, such as http://localhost:4318/v1/traces; "
            "needs octavo[otel]"
        },
    )

    def __post_init__(self) -> None:
        endpoint = self.otlp_traces_endpoint
        if endpoint is None:
            return
        if urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).netloc:
            raise InvalidRequest(
                f"otlp_traces_endpoint must be an http or https URL, got {endpoint!r}",
                param="otlp_traces_endpoint",
            )
        if not _has_opentelemetry():
            raise InvalidRequest(
                "otlp_traces_endpoint needs OpenTelemetry: pip install 'octavo[otel]'",
                param="otlp_traces_endpoint",
            )


def _has_opentelemetry() -> bool:
    try:
        return all(find_spec(name) for name in _NEEDED)
    except ModuleNotFoundError:
        return False


QUIET: Final = ObservabilityConfig()
"""Tells nothing."""
