"""OpenTelemetry spans with the semantic attributes of generative AI. Imported only where traces are wanted.

Attributes: semantic conventions for generative AI, status "development", as of 2026-05. What is in a request is left out
unless OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT is true.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from octavo import __version__
from octavo.params import SamplingParams
from octavo.server.reporting import HttpRequest
from octavo.server.span_content import content_attributes

_OPERATIONS: Final = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion"}

_TIMEOUT_S: Final = 3
"""For a batch of spans, retries among it: how long a collector that is gone may hold up the end of the server."""

_MAX_SEED: Final = 2**53
"""What a client writes. Seeds drawn here have 64 bits: more than an attribute holds."""

Attributes = dict[str, Any]


def otlp_tracer(endpoint: str) -> Tracer:
    """A tracer that sends its spans to `endpoint` from a thread of its own; what is left is sent at exit."""
    provider = TracerProvider(
        resource=Resource.create({"service.name": "octavo", "service.version": __version__})
    )
    provider.add_span_processor(
        BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=_TIMEOUT_S))
    )
    return provider.get_tracer("octavo", __version__)


class SpanReport:
    """One span for each generating request; its parent is the one that the client names in `traceparent`."""

    def __init__(self, tracer: Tracer, model_name: str, *, captures_content: bool = False) -> None:
        self.wants_content = captures_content
        self._tracer = tracer
        self._model_name = model_name
        self._propagator = TraceContextTextMapPropagator()

    def ended(self, request: HttpRequest) -> None:
        """Make the span of a request that is over."""
        operation = _OPERATIONS.get(request.path)
        if operation is None:
            return
        attributes = self._attributes(operation, request)
        if self.wants_content:
            attributes |= content_attributes(bytes(request.received), bytes(request.sent))
        span = self._tracer.start_span(
            f"{operation} {self._model_name}",
            context=self._propagator.extract(dict(request.headers)),
            kind=SpanKind.SERVER,
            attributes=attributes,
            start_time=request.started_ns,
        )
        if request.error_type is not None:
            span.set_status(Status(StatusCode.ERROR))
        span.end(end_time=request.started_ns + int(1e9 * request.elapsed_s))

    def _attributes(self, operation: str, request: HttpRequest) -> Attributes:
        address, port = request.server
        attributes: Attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "octavo",
            "gen_ai.request.model": self._model_name,
            "gen_ai.request.stream": request.is_stream,
            "gen_ai.output.type": "text",
            "server.address": address,
            "server.port": port,
            "error.type": request.error_type,
        }
        if request.states:
            attributes |= _of_params(request.states[0].params) | self._of_answer(request)
        return {name: value for name, value in attributes.items() if value not in (None, ())}

    def _of_answer(self, request: HttpRequest) -> Attributes:
        states = request.states
        usages = [state.usage for state in states]
        first = [s.metrics.first_token_s for s in states if s.metrics.first_token_s is not None]
        attributes: Attributes = {
            "gen_ai.response.id": states[0].request_id,
            "gen_ai.response.model": self._model_name,
            "gen_ai.response.finish_reasons": tuple(request.finish_reasons),
            "gen_ai.response.time_to_first_chunk": min(first) if first else None,
            "gen_ai.usage.input_tokens": sum(usage.prompt_tokens for usage in usages),
            "gen_ai.usage.output_tokens": sum(usage.completion_tokens for usage in usages),
            "gen_ai.usage.cache_read.input_tokens": sum(usage.cached_tokens for usage in usages),
        }
        parts: Mapping[str, float] = states[0].trace.parts()
        return attributes | {f"octavo.part.{name}": value for name, value in parts.items()}


def _of_params(params: SamplingParams) -> Attributes:
    return {
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.top_k": params.top_k or None,
        "gen_ai.request.seed": params.seed if (params.seed or 0) <= _MAX_SEED else None,
        "gen_ai.request.stop_sequences": tuple(params.stop),
        "gen_ai.request.frequency_penalty": params.frequency_penalty,
        "gen_ai.request.presence_penalty": params.presence_penalty,
        "gen_ai.request.choice.count": params.n if params.n > 1 else None,
    }
