"""The HTTP application: routes, error answers, and nothing that blocks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from fastapi import FastAPI, Response
from starlette.middleware.cors import CORSMiddleware

from octavo import __version__
from octavo.api.async_llm import AsyncLLM
from octavo.observability.config import QUIET, ObservabilityConfig
from octavo.server import openai, routes
from octavo.server.errors import install_handlers
from octavo.server.gate import Gate
from octavo.server.metrics import Metrics
from octavo.server.openai_models import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from octavo.server.openapi import ERRORS, describe_body
from octavo.server.security import OPEN, Access
from octavo.server.state import ServerState
from octavo.server.telemetry import install_reports

_GET: Final[tuple[tuple[str, Callable[..., Awaitable[Response]]], ...]] = (
    ("/v1/models", routes.list_models),
    ("/v1/models/{model_id:path}", routes.get_model),
    ("/v1/requests/{request_id}/explain", routes.explain),
    ("/health", routes.health),
    ("/ready", routes.ready),
    ("/metrics", routes.metrics),
    ("/version", routes.version),
    ("/", routes.root),
)
_POST: Final[tuple[tuple[str, Callable[..., Awaitable[Response]], type[msgspec.Struct]], ...]] = (
    ("/v1/chat/completions", openai.chat_completions, ChatRequest),
    ("/v1/completions", openai.completions, CompletionRequest),
    ("/tokenize", routes.tokenize, TokenizeRequest),
    ("/detokenize", routes.detokenize, DetokenizeRequest),
)

_EXPOSED_HEADERS: Final = (
    "x-request-id",
    "x-octavo-warning",
    "x-octavo-predicted-ttft-ms",
    "retry-after",
)


def create_app(
    llm: AsyncLLM,
    *,
    model_name: str | None = None,
    access: Access = OPEN,
    observability: ObservabilityConfig = QUIET,
) -> FastAPI:
    """An application that serves `llm` under `model_name`, or under several names with commas between them.

    It does not close the model.

    Bodies are read by the routes themselves: FastAPI only routes, and describes them in /openapi.json. There is no
    documentation page, which would load scripts from elsewhere, and no CORS but for the origins of `access`.
    """
    name, *aliases = _names(model_name or llm.info.model_name)
    app = FastAPI(
        title="Octavo",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    metrics = Metrics(name, llm.stats, llm.info, lambda: llm.supervision)
    llm.watch(metrics)
    server = ServerState(
        llm,
        name,
        metrics,
        access=access,
        aliases=tuple(aliases),
        observability=observability,
    )
    app.state.server = server
    for path, handler in _GET:
        app.add_api_route(
            path, handler, methods=["GET"], responses=dict(ERRORS), response_model=None
        )
    # Ollama's clients ask for HEAD / to see whether anybody is there.
    app.add_api_route(
        "/",
        routes.root,
        methods=["HEAD"],
        responses=dict(ERRORS),
        response_model=None,
        include_in_schema=False,
    )
    for path, handler, body in _POST:
        app.add_api_route(
            path,
            handler,
            methods=["POST"],
            responses=dict(ERRORS),
            response_model=None,
            openapi_extra=describe_body(body),
        )
    app.add_api_route(
        "/reset_prefix_cache",
        routes.reset_prefix_cache,
        methods=["POST"],
        responses=dict(ERRORS),
        response_model=None,
    )
    install_handlers(app)
    app.add_middleware(Gate, server=server)
    if access.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=sorted(access.origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=list(_EXPOSED_HEADERS),
        )
    install_reports(app, observability, name)
    return app


def _names(joined: str) -> list[str]:
    return [name.strip() for name in joined.split(",") if name.strip()] or [joined]
