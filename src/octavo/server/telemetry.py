"""Sets up what an application reports of its requests. What is not asked for is not imported and costs nothing."""

from __future__ import annotations

from importlib import import_module

from fastapi import FastAPI

from octavo.config import from_env
from octavo.observability.config import ObservabilityConfig
from octavo.server.reporting import Report, Reporting, RequestLog


def install_reports(app: FastAPI, config: ObservabilityConfig, model_name: str) -> None:
    """Put the reports that `config` asks for around all of `app`. To be called after other middleware was added."""
    reports: list[Report] = []
    if config.log_requests:
        reports.append(RequestLog())
    if config.otlp_traces_endpoint is not None:
        spans = import_module("octavo.server.spans")
        tracer = spans.otlp_tracer(config.otlp_traces_endpoint)
        captures_content = from_env().captures_content
        reports.append(spans.SpanReport(tracer, model_name, captures_content=captures_content))
    if reports:
        app.add_middleware(Reporting, reports=reports)
