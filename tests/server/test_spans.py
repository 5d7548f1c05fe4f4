"""OpenTelemetry spans with the attributes of generative AI."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from queue import SimpleQueue
from typing import Any, ClassVar

import pytest
from fastapi import FastAPI

from octavo.observability.config import ObservabilityConfig
from octavo.server.reporting import Reporting
from tests.server.wire import events, fake_app, post
from tests.unit.api.fakes import WORLD, FakeClient, always, token

pytest.importorskip("opentelemetry.sdk.trace")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from octavo.server.spans import SpanReport

CHAT = "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "Hi"}]}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PARAMS: dict[str, Any] = {
    "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 11, "stop": ["zz"],
    "frequency_penalty": 0.25, "presence_penalty": 0.5,
}  # fmt: skip


class Traced:
    """An application whose spans stay here."""

    def __init__(self, script: Any, *, captures_content: bool = False, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.app: FastAPI = fake_app(script, **options)
        report = SpanReport(
            provider.get_tracer("octavo"), "fake", captures_content=captures_content
        )
        self.app.add_middleware(Reporting, reports=[report])

    def span(self) -> ReadableSpan:
        [span] = self._exporter.get_finished_spans()
        return span

    def attributes(self) -> Mapping[str, Any]:
        return dict(self.span().attributes or {})


def test_a_span_has_the_attributes_of_generative_ai() -> None:
    traced = Traced(always("Hello"))
    answer = post(traced.app, CHAT, {**HI, **PARAMS}).json()
    span, attributes = traced.span(), dict(traced.attributes())
    assert (span.name, span.kind) == ("chat fake", SpanKind.SERVER)
    assert span.status.status_code is StatusCode.UNSET
    assert span.start_time is not None
    assert span.end_time is not None
    assert 0 < span.end_time - span.start_time < 5e9
    parts = {name: attributes.pop(name) for name in list(attributes) if "octavo.part." in name}
    assert sum(parts.values()) * 1e9 < span.end_time - span.start_time
    assert attributes.pop("gen_ai.response.time_to_first_chunk") > 0
    assert attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "octavo",
        "gen_ai.output.type": "text",
        "gen_ai.request.model": "fake",
        "gen_ai.request.stream": False,
        "gen_ai.request.max_tokens": 3,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.top_k": 7,
        "gen_ai.request.seed": 11,
        "gen_ai.request.stop_sequences": ("zz",),
        "gen_ai.request.frequency_penalty": 0.25,
        "gen_ai.request.presence_penalty": 0.5,
        "gen_ai.response.id": answer["id"],
        "gen_ai.response.model": "fake",
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.input_tokens": answer["usage"]["prompt_tokens"],
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "server.address": "localhost",
    }


def test_a_seed_that_was_drawn_here_is_left_out() -> None:
    traced = Traced(always("Hello"))
    post(traced.app, CHAT, {**HI, "seed": 2**64 - 1})
    assert "gen_ai.request.seed" not in traced.attributes()


def test_the_span_of_the_client_is_its_parent() -> None:
    traced = Traced(always("Hello"))
    post(traced.app, CHAT, HI, headers={"traceparent": PARENT})
    span = traced.span()
    assert span.parent is not None
    assert span.parent.is_remote
    assert f"{span.parent.trace_id:032x}-{span.parent.span_id:016x}" in PARENT
    assert span.context is not None
    assert span.context.trace_id == span.parent.trace_id


@pytest.mark.parametrize("traceparent", ["", "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_a_header_that_names_no_span_is_no_parent(traceparent: str) -> None:
    traced = Traced(always("Hello"))
    assert post(traced.app, CHAT, HI, headers={"traceparent": traceparent}).status_code == 200
    assert traced.span().parent is None


def test_a_stream_of_several_choices_is_one_span() -> None:
    traced = Traced(token(WORLD))
    body = {"prompt": ["x", "y"], "n": 2, "max_tokens": 2, "stream": True}
    events(post(traced.app, "/v1/completions", body))
    attributes = traced.attributes()
    assert attributes["gen_ai.operation.name"] == "text_completion"
    assert attributes["gen_ai.request.stream"] is True
    assert attributes["gen_ai.request.choice.count"] == 2
    assert attributes["gen_ai.response.finish_reasons"] == ("length",) * 4
    assert attributes["gen_ai.usage.output_tokens"] == 8


def test_failures_have_a_type_and_the_status_of_an_error() -> None:
    refused = Traced(always("x"))
    post(refused.app, CHAT, {"messages": []})
    assert refused.attributes()["error.type"] == "400"
    assert refused.span().status.status_code is StatusCode.ERROR
    assert "gen_ai.response.id" not in refused.attributes()
    client = FakeClient(always("Hello"))
    client.fails_at = 2
    broken = Traced(client)
    post(broken.app, CHAT, {**HI, "stream": True})
    assert broken.attributes()["error.type"] == "error"


class Collector(BaseHTTPRequestHandler):
    """Takes what an exporter sends."""

    received: ClassVar[SimpleQueue[tuple[str, bytes]]] = SimpleQueue()

    def do_POST(self) -> None:
        self.received.put((self.path, self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_the_flag_sends_spans_to_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/v1/traces"
        config = ObservabilityConfig(otlp_traces_endpoint=url)
        post(fake_app(always("Hello"), observability=config), CHAT, HI)
        path, data = Collector.received.get(timeout=10)
        server.shutdown()
        thread.join()
    assert path == "/v1/traces"
    assert b"chat fake" in data
    assert b"gen_ai.usage.output_tokens" in data
    assert b"Hello" not in data


def test_other_routes_have_no_span() -> None:
    traced = Traced(always("x"))
    post(traced.app, "/tokenize", {"prompt": "x"})
    post(traced.app, CHAT, HI)
    assert traced.span().name == "chat fake"


@pytest.mark.parametrize("is_stream", [False, True])
def test_content_is_told_only_to_those_who_opt_in(is_stream: bool) -> None:
    body = {"messages": [{"role": "system", "content": "Be brief"},
                         {"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "stream": is_stream}  # fmt: skip
    silent = Traced(always("Hello"))
    post(silent.app, CHAT, body)
    assert not {"Hello", "Be brief"} & set(json.dumps(silent.attributes(), default=str).split('"'))
    open_ = Traced(always("Hello"), captures_content=True)
    post(open_.app, CHAT, body)
    attributes = open_.attributes()
    assert json.loads(attributes["gen_ai.input.messages"]) == [
        {"role": "system", "parts": [{"type": "text", "content": "Be brief"}]},
        {"role": "user", "parts": [{"type": "text", "content": "Hi"}]},
    ]
    assert json.loads(attributes["gen_ai.output.messages"]) == [
        {"role": "assistant", "parts": [{"type": "text", "content": "Hello"}],
         "finish_reason": "stop"},
    ]  # fmt: skip
    assert json.loads(attributes["gen_ai.tool.definitions"]) == body["tools"]


def test_content_that_cannot_be_read_is_left_out() -> None:
    traced = Traced(always("Hello"), captures_content=True)
    post(traced.app, CHAT, content=b"not json")
    assert "gen_ai.input.messages" not in traced.attributes()


def test_without_the_flag_opentelemetry_is_not_imported() -> None:
    # The interface alone is imported by FastAPI, where it is installed.
    code = (
        "import sys, octavo.cli.serve\n"
        "from octavo.server.app import create_app\n"
        "assert not {'opentelemetry.sdk', 'opentelemetry.exporter', 'octavo.server.spans'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
