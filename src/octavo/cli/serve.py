"""`octavo serve`: an HTTP server that speaks the OpenAI API."""

from __future__ import annotations

import sys

from octavo.api.start import EarlyProcess
from octavo.cli.fetch import model_file
from octavo.cli.flags import with_flags
from octavo.config import (
    CacheConfig,
    ComputeConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
    from_env,
)
from octavo.observability.config import ObservabilityConfig
from octavo.server.config import SecurityConfig, ServerConfig


@with_flags(
    server=ServerConfig,
    model_options=ModelConfig,
    scheduler=SchedulerConfig,
    cache=CacheConfig,
    compute=ComputeConfig,
    security=SecurityConfig,
    observability=ObservabilityConfig,
)
def serve(
    model: str,
    /,
    *,
    server: ServerConfig,
    model_options: ModelConfig,
    scheduler: SchedulerConfig,
    cache: CacheConfig,
    compute: ComputeConfig,
    security: SecurityConfig,
    observability: ObservabilityConfig,
) -> int:
    """Serve MODEL over HTTP with the OpenAI API, until Ctrl-C.

    Fetches a catalog model on first use. With OCTAVO_API_KEY or --api-keys-file,
    clients need a key: `Authorization: Bearer KEY`. Exit codes: 0 stopped, 1 failed, 2 wrong usage,
    3 the engine died and cannot be started again, 4 not enough memory, 5 port in use, 130 interrupted.

    Example: octavo serve smollm2 --port 8000

    Parameters
    ----------
    model
        Catalog name or path of a .gguf file.
    """
    model_file(model)
    config = EngineConfig(model=model_options, scheduler=scheduler, cache=cache, compute=compute)
    with EarlyProcess() as early:
        # Imported meanwhile: the frameworks take as long as the engine's libraries.
        from octavo.server.lifecycle import run_server

        return run_server(
            config,
            server,
            api_key=from_env().api_key,
            security=security,
            observability=observability,
            early=early,
            announce=_announce,
        )


def _announce(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
