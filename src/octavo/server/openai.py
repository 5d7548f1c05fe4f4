"""The generating routes of the OpenAI API."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from fastapi import Request, Response

from octavo.api.outputs_processor import Event, RequestState
from octavo.api.processor import Prepared, RequestOptions
from octavo.errors import InvalidRequest
from octavo.outputs import CompletionOutput, Finished, RequestOutput, TextDelta
from octavo.params import SamplingParams
from octavo.server.answer import Batch, best_of, chunks, collect
from octavo.server.body import BodyReader, Parsed, warning_header
from octavo.server.keys import Caller, caller_of
from octavo.server.openai_format import (
    CompletionLogprobs,
    chat_logprobs,
    metrics_of,
    prompt_logprobs,
    usage_object,
    usage_of,
)
from octavo.server.openai_models import ChatRequest, CompletionRequest, SamplingFields
from octavo.server.sse import DONE, ChunkEncoder, EventStream, unless_disconnected
from octavo.server.state import ServerState

_DEFAULT_COMPLETION_TOKENS: Final = 16
CHAT_READER: Final = BodyReader(ChatRequest)
COMPLETION_READER: Final = BodyReader(CompletionRequest)
_NOTHING: Final = TextDelta(0, "")
_encode = msgspec.json.encode


async def chat_completions(request: Request) -> Response:
    """POST /v1/chat/completions."""
    server: ServerState = request.app.state.server
    parsed = await CHAT_READER.read(request)
    prepared, answer = await prepare_chat(server, parsed, caller_of(request.scope))
    return await _respond(request, server, prepared, answer, is_stream=parsed.value.stream)


async def completions(request: Request) -> Response:
    """POST /v1/completions."""
    server: ServerState = request.app.state.server
    parsed = await COMPLETION_READER.read(request)
    prepared, answer = await prepare_completion(server, parsed, caller_of(request.scope))
    return await _respond(request, server, prepared, answer, is_stream=parsed.value.stream)


async def prepare_chat(
    server: ServerState, parsed: Parsed[ChatRequest], caller: Caller | None = None
) -> tuple[list[Prepared], ChatAnswer]:
    """The engine's request for a chat body, and what encodes its answer. Raises: ApiError, InvalidRequest."""
    body = parsed.value
    server.check_model(body.model)
    answer = ChatAnswer(server, body, _warnings(parsed, caller))
    answer.has_metrics |= body.include_metrics
    try:
        params = body.sampling()
        prepared = await server.llm.prepare_chat(
            body.checked_messages(),
            params,
            answer.id,
            chat=body.chat(),
            options=_allowed(caller, body.options(), params),
        )
    except InvalidRequest as error:
        if error.param == "max_tokens":
            error.param = body.max_tokens_field
        raise
    return [prepared], answer


async def prepare_completion(
    server: ServerState, parsed: Parsed[CompletionRequest], caller: Caller | None = None
) -> tuple[list[Prepared], CompletionAnswer]:
    """The engine's requests for a completion body, and what encodes their answer. Raises: ApiError, InvalidRequest."""
    body = parsed.value
    server.check_model(body.model)
    answer = CompletionAnswer(server, body, _warnings(parsed, caller))
    answer.has_metrics |= body.include_metrics
    params = body.sampling()
    prepared = await server.llm.prepare(
        body.prompts(),
        params,
        options=_allowed(
            caller, body.options(default_max_tokens=_DEFAULT_COMPLETION_TOKENS), params
        ),
        request_id=answer.id,
    )
    return prepared, answer


async def _respond(
    request: Request,
    server: ServerState,
    prepared: Sequence[Prepared],
    answer: ChatAnswer | CompletionAnswer,
    *,
    is_stream: bool,
) -> Response:
    num_tokens = sum(len(one.request.prompt_token_ids) for one in prepared)
    caller = caller_of(request.scope)
    predicted_s = server.llm.predict_first_token_s(num_tokens)
    if predicted_s is not None:
        answer.headers["x-octavo-predicted-ttft-ms"] = f"{1000 * predicted_s:.0f}"
    if is_stream:
        return EventStream(
            chunks(server, prepared, answer.encode, answer.end, caller=caller), answer.headers
        )
    results = await unless_disconnected(request.receive, collect(server, prepared, caller))
    content = _encode(answer.whole(results))
    return Response(content, headers=answer.headers, media_type="application/json")


class _Answer:
    """What both routes' answers have in common. One object serves one HTTP request."""

    def __init__(
        self,
        server: ServerState,
        body: SamplingFields,
        prefix: str,
        kinds: tuple[str, str],
        headers: Mapping[str, str],
    ) -> None:
        self.id = f"{prefix}-{uuid.uuid4().hex}"
        self.headers = {**headers, "x-request-id": self.id}
        self.has_metrics = server.observability.enable_per_request_metrics
        self._has_usage = body.includes_usage
        self._counts_in_every_chunk = body.counts_in_every_chunk
        self._num_tokens: dict[int, int] = {}
        self._head: dict[str, Any] = {
            "id": self.id,
            "object": kinds[1] if body.stream else kinds[0],
            "created": int(time.time()),
            "model": server.model_name,
            "system_fingerprint": server.fingerprint,
        }
        self._encoder = ChunkEncoder(self._head, has_usage=self._has_usage)

    def end(self, states: Sequence[RequestState]) -> bytes:
        """What follows the last choice of a stream."""
        last = {"usage": usage_of(states)} if self._has_usage else {}
        last |= self._extras(states)
        return (self._encoder.last(last) if last else b"") + DONE

    def _extras(self, states: Sequence[RequestState]) -> dict[str, Any]:
        """What else was asked for."""
        return _explained(states) | (metrics_of(states) if self.has_metrics else {})

    def _finish_chunk(
        self, index: int, content: bytes, end: Finished, usage: bytes | None
    ) -> bytes:
        finish = b'"%b","stop_reason":%b' % (end.reason.value.encode(), _encode(end.stop_reason))
        return self._encoder.choice(index, content, finish=finish, usage=usage)

    def _usage_now(self, state: RequestState, index: int, event: Event) -> bytes | None:
        """The tokens of one choice up to this event; None unless the client wants them in every chunk."""
        if not self._counts_in_every_chunk:
            return None
        num_new = len(event.token_ids) if isinstance(event, TextDelta) else 0
        num_tokens = self._num_tokens[index] = self._num_tokens.get(index, 0) + num_new
        num_prompt = len(state.prompt_token_ids)
        return _encode(usage_object(num_prompt, num_tokens, state.num_cached_tokens))


class ChatAnswer(_Answer):
    """Encodes the answer to one chat request."""

    def __init__(self, server: ServerState, body: ChatRequest, headers: Mapping[str, str]) -> None:
        super().__init__(
            server, body, "chatcmpl", ("chat.completion", "chat.completion.chunk"), headers
        )
        self._num_top = body.top_logprobs or 0
        self._has_logprobs = body.logprobs
        self._opened: set[int] = set()

    def whole(self, results: Sequence[tuple[RequestState, RequestOutput]]) -> dict[str, Any]:
        """The answer as one object."""
        [(state, output)] = results
        answer = self._head | {
            "choices": [self._choice(completion) for completion in output.outputs],
            "usage": usage_of([state]),
            **self._extras([state]),
        }
        if output.prompt_logprobs is not None:
            answer["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs)
        return answer

    def encode(self, states: Sequence[RequestState], batch: Batch) -> Iterator[bytes]:
        """The chunks of a stream that these events make."""
        for position, event in batch:
            index = event.index
            if index not in self._opened:
                self._opened.add(index)
                content = b'"delta":{"role":"assistant","content":""}'
                usage = self._usage_now(states[position], index, _NOTHING)
                yield self._encoder.choice(index, content, usage=usage)
            usage = self._usage_now(states[position], index, event)
            match event:
                case Finished():
                    yield self._finish_chunk(index, b'"delta":{}', event, usage)
                case TextDelta() if event.text or self._has_logprobs:
                    content = b'"delta":{"content":%b}' % _encode(event.text)
                    logprobs = _encode(self._logprobs(event.logprobs))
                    yield self._encoder.choice(index, content, logprobs=logprobs, usage=usage)
                case TextDelta():
                    pass  # half a character, or a control token: nothing to show yet

    def _choice(self, completion: CompletionOutput) -> dict[str, Any]:
        return {
            "index": completion.index,
            "message": {"role": "assistant", "content": completion.text},
            "logprobs": self._logprobs(completion.logprobs or ()),
            "finish_reason": completion.finish_reason,
            "stop_reason": completion.stop_reason,
        }

    def _logprobs(self, positions: Sequence[Any]) -> dict[str, Any] | None:
        return chat_logprobs(positions, self._num_top) if self._has_logprobs else None


class CompletionAnswer(_Answer):
    """Encodes the answer to one completion request. Choices are numbered prompt by prompt: i * n + j."""

    def __init__(
        self, server: ServerState, body: CompletionRequest, headers: Mapping[str, str]
    ) -> None:
        super().__init__(server, body, "cmpl", ("text_completion", "text_completion"), headers)
        self._body = body
        self._logprobs_by_index: dict[int, CompletionLogprobs | None] = {}

    def whole(self, results: Sequence[tuple[RequestState, RequestOutput]]) -> dict[str, Any]:
        """The answer as one object."""
        n = self._body.n
        choices = [
            self._choice(i * n + j, state, completion)
            for i, (state, output) in enumerate(results)
            for j, completion in enumerate(best_of(output.outputs, n))
        ]
        states = [state for state, _ in results]
        return self._head | {
            "choices": choices,
            "usage": usage_of(states),
            **self._extras(states),
        }

    def encode(self, states: Sequence[RequestState], batch: Batch) -> Iterator[bytes]:
        """The chunks of a stream that these events make."""
        for position, event in batch:
            index = position * self._body.n + event.index
            if index not in self._logprobs_by_index:
                self._logprobs_by_index[index] = self._new_logprobs()
                if self._body.echo:
                    yield self._echo_chunk(index, states[position])
            usage = self._usage_now(states[position], index, event)
            match event:
                case Finished():
                    yield self._finish_chunk(index, b'"text":""', event, usage)
                case TextDelta() if event.text or event.logprobs:
                    builder = self._logprobs_by_index[index]
                    logprobs = None if builder is None else builder.answer(event.logprobs)
                    content = b'"text":%b' % _encode(event.text)
                    yield self._encoder.choice(
                        index, content, logprobs=_encode(logprobs), usage=usage
                    )
                case TextDelta():
                    pass

    def _choice(
        self, index: int, state: RequestState, completion: CompletionOutput
    ) -> dict[str, Any]:
        echo = state.prompt_text if self._body.echo else ""
        choice: dict[str, Any] = {
            "index": index,
            "text": echo + completion.text,
            "logprobs": self._logprobs(state, completion),
            "finish_reason": completion.finish_reason,
            "stop_reason": completion.stop_reason,
        }
        if self._body.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(state.prompt_logprobs)
        return choice

    def _logprobs(self, state: RequestState, completion: CompletionOutput) -> dict[str, Any] | None:
        builder = self._new_logprobs()
        if builder is None:
            return None
        parts = [builder.prompt(state)] if self._body.echo else []
        parts.append(builder.answer(completion.logprobs or ()))
        return {name: [item for part in parts for item in part[name]] for name in parts[0]}

    def _new_logprobs(self) -> CompletionLogprobs | None:
        return None if self._body.logprobs is None else CompletionLogprobs(self._body.logprobs)

    def _echo_chunk(self, index: int, state: RequestState) -> bytes:
        builder = self._logprobs_by_index[index]
        logprobs = None if builder is None else builder.prompt(state)
        content = b'"text":%b' % _encode(state.prompt_text)
        usage = self._usage_now(state, index, _NOTHING)
        return self._encoder.choice(index, content, logprobs=_encode(logprobs), usage=usage)


def _explained(states: Sequence[RequestState]) -> dict[str, Any]:
    """Where the time of each request went, as a field of an answer; nothing unless the body asks for it."""
    if not any(state.params.explain for state in states):
        return {}
    return {"octavo_explain": [state.trace.explanation().as_json() for state in states]}


def _warnings(
    parsed: Parsed[ChatRequest] | Parsed[CompletionRequest], caller: Caller | None
) -> dict[str, str]:
    """The header that tells what was ignored or changed of a request."""
    body = parsed.value
    by_key = [] if caller is None else caller.warnings(body.priority)
    return warning_header([*parsed.warnings, *body.warnings, *by_key])


def _allowed(
    caller: Caller | None, asked: RequestOptions, params: SamplingParams
) -> RequestOptions:
    """What a request asks, within what its key allows."""
    return asked if caller is None else caller.options(asked, params)
