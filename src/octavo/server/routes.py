"""The routes that generate nothing: models, tokens, health, metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec
from fastapi import Request, Response

from octavo import __version__
from octavo.api.async_llm import MAX_INLINE_CHARACTERS
from octavo.api.logprobs import token_text
from octavo.api.processor import ChatOptions
from octavo.api.trace import MAX_TRACES
from octavo.errors import InvalidRequest
from octavo.server.body import BodyReader, warning_header
from octavo.server.errors import ApiError
from octavo.server.keys import caller_of
from octavo.server.metrics import CONTENT_TYPE
from octavo.server.openai_models import ChatRequest, DetokenizeRequest, TokenizeRequest
from octavo.server.state import ServerState

_TOKENIZE_READER: Final = BodyReader(TokenizeRequest)
_DETOKENIZE_READER: Final = BodyReader(DetokenizeRequest)


async def list_models(request: Request) -> Response:
    """GET /v1/models."""
    server = _server(request)
    names = (server.model_name, *server.aliases)
    return _json({"object": "list", "data": [server.model_card(name) for name in names]})


async def get_model(request: Request, model_id: str) -> Response:
    """GET /v1/models/{id}."""
    server = _server(request)
    server.check_model(model_id)
    return _json(server.model_card(model_id))


async def explain(request: Request, request_id: str) -> Response:
    """GET /v1/requests/{id}/explain: where the time of a request went that ended not long ago."""
    caller = caller_of(request.scope)
    tenant = "" if caller is None else caller.tenant
    explanation = _server(request).llm.explain(request_id, tenant=tenant)
    if explanation is None:
        raise ApiError(
            HTTPStatus.NOT_FOUND,
            f"there is no record of this request: it runs still, or {MAX_TRACES} others ended after it",
            param="request_id",
            code="request_not_found",
        )
    return _json(explanation.as_json())


async def reset_prefix_cache(request: Request) -> Response:
    """POST /reset_prefix_cache: forget what is stored of earlier prompts, as in vLLM. A body is not read."""
    await _server(request).llm.reset_prefix_cache()
    return Response()


async def tokenize(request: Request) -> Response:
    """POST /tokenize: token ids of a text or of a conversation, as in vLLM."""
    server = _server(request)
    parsed = await _TOKENIZE_READER.read(request)
    body = parsed.value
    server.check_model(body.model)
    processor = server.llm.processor
    if body.messages:
        chat = ChatRequest(messages=body.messages)
        options = ChatOptions(
            tools=body.tools or None,
            add_generation_prompt=body.add_generation_prompt and not body.continue_final_message,
            continue_final_message=body.continue_final_message,
        )
        ids = await asyncio.to_thread(processor.render, chat.checked_messages(), options)
    elif body.prompt is None:
        raise InvalidRequest("prompt or messages is required", param="prompt")
    elif len(body.prompt) > MAX_INLINE_CHARACTERS:
        ids = await asyncio.to_thread(
            processor.encode, body.prompt, add_special=body.add_special_tokens
        )
    else:
        ids = processor.encode(body.prompt, add_special=body.add_special_tokens)
    answer = {"count": len(ids), "max_model_len": server.llm.info.max_model_len, "tokens": ids}
    if body.return_token_strs:
        token_bytes = server.llm.get_tokenizer().token_bytes
        answer["token_strs"] = [token_text(token_bytes(token_id)) for token_id in ids]
    return _json(answer, parsed.warnings)


async def detokenize(request: Request) -> Response:
    """POST /detokenize: the text of token ids, control tokens included."""
    server = _server(request)
    parsed = await _DETOKENIZE_READER.read(request)
    body = parsed.value
    server.check_model(body.model)
    server.llm.processor.check_token_ids(body.tokens, "tokens")
    text = await asyncio.to_thread(
        server.llm.get_tokenizer().decode, body.tokens, skip_special_tokens=False
    )
    return _json({"prompt": text}, parsed.warnings)


async def health(request: Request) -> Response:
    """GET /health: 200 while the engine can answer, else 503."""
    if not _server(request).llm.is_alive:
        raise ApiError(
            HTTPStatus.SERVICE_UNAVAILABLE, "the engine is not running", code="engine_dead"
        )
    return _json({"status": "ok"})


async def ready(request: Request) -> Response:
    """GET /ready: 200 while new requests are wanted; 503 when draining or broken, so that balancers go elsewhere."""
    if _server(request).is_draining:
        raise ApiError(
            HTTPStatus.SERVICE_UNAVAILABLE, "the server is shutting down", code="draining"
        )
    return await health(request)


async def metrics(request: Request) -> Response:
    """GET /metrics: Prometheus text."""
    return Response(_server(request).metrics.text(), media_type=CONTENT_TYPE)


async def version(request: Request) -> Response:
    """GET /version."""
    return _json({"version": __version__})


async def root(request: Request) -> Response:
    """GET /: a line that says what runs here."""
    return Response("Octavo is running\n", media_type="text/plain")


def _server(request: Request) -> ServerState:
    server: ServerState = request.app.state.server
    return server


def _json(value: Any, warnings: Sequence[str] = ()) -> Response:
    headers = warning_header(warnings)
    return Response(msgspec.json.encode(value), headers=headers, media_type="application/json")
