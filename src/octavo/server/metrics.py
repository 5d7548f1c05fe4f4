"""Prometheus metrics: vLLM's names where it has one, `octavo:` for the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from octavo.api.outputs_processor import RequestState
from octavo.messages import EngineStats
from octavo.outputs import Finished, FinishReason

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# Source: vLLM's buckets, so that its dashboards work.
_TTFT_BUCKETS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_REQUEST_BUCKETS: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_LABELS: Final = ("model_name",)


class Metrics:
    """The metrics of one served model."""

    def __init__(self, model_name: str, stats: Callable[[], EngineStats]) -> None:
        self._registry = CollectorRegistry()
        self._model_name = model_name
        self._registry.register(_EngineCollector(model_name, stats))
        self._finished = Counter(
            "vllm:request_success",
            "Choices by how they ended",
            (*_LABELS, "finished_reason"),
            registry=self._registry,
        )
        for reason in FinishReason:
            self._finished.labels(model_name, reason.value)
        self._first_token = self._histogram(
            "vllm:time_to_first_token_seconds", "Arrival to first token", _TTFT_BUCKETS
        )
        self._whole = self._histogram(
            "vllm:e2e_request_latency_seconds", "Arrival to last token", _REQUEST_BUCKETS
        )

    def observe_end(self, end: Finished) -> None:
        """Count one ended choice."""
        self._finished.labels(self._model_name, end.reason.value).inc()

    def observe_times(self, state: RequestState) -> None:
        """Record the times of a request that is over, as far as it got."""
        if state.metrics.first_token_s is not None:
            self._first_token.observe(state.metrics.first_token_s)
        if state.metrics.finished_s is not None:
            self._whole.observe(state.metrics.finished_s)

    def text(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return generate_latest(self._registry)

    def _histogram(self, name: str, help_: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(name, help_, _LABELS, buckets=buckets, registry=self._registry)
        return histogram.labels(self._model_name)


class _EngineCollector(Collector):
    """Reads the engine's own counters when it is asked."""

    def __init__(self, model_name: str, stats: Callable[[], EngineStats]) -> None:
        self._model_name = model_name
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        num_used = stats.num_blocks - stats.num_free_blocks
        num_empty = stats.num_free_blocks - stats.num_cached_blocks
        usage = num_used / stats.num_blocks if stats.num_blocks else 0.0
        for name, help_, value in (
            ("vllm:num_requests_running", "Requests being computed", stats.num_running),
            ("vllm:num_requests_waiting", "Requests waiting to be computed", stats.num_waiting),
            ("vllm:kv_cache_usage_perc", "Share of KV blocks held by requests, 0 to 1", usage),
            ("octavo:kv_blocks", "KV blocks in all", stats.num_blocks),
            ("octavo:kv_blocks_used", "KV blocks held by requests", num_used),
            ("octavo:kv_blocks_free", "KV blocks that hold nothing", num_empty),
            ("octavo:kv_blocks_cached", "KV blocks kept for reuse", stats.num_cached_blocks),
        ):
            gauge = GaugeMetricFamily(name, help_, labels=_LABELS)
            gauge.add_metric((self._model_name,), value)
            yield gauge
        for name, help_, value in (
            ("vllm:prompt_tokens", "Prompt tokens of accepted requests", stats.num_prompt_tokens),
            ("vllm:generation_tokens", "Tokens generated", stats.num_generated_tokens),
            ("vllm:num_preemptions", "Requests set back to make room", stats.num_preemptions),
            (
                "vllm:prefix_cache_queries",
                "Prompt tokens looked for in the prefix cache",
                stats.num_prompt_tokens,
            ),
            (
                "vllm:prefix_cache_hits",
                "Prompt tokens found there, and not computed again",
                stats.num_cached_tokens,
            ),
            (
                "octavo:kv_blocks_stored",
                "KV blocks written to disk",
                stats.num_disk_stored_blocks,
            ),
            (
                "octavo:kv_blocks_loaded",
                "KV blocks read from disk, and not computed again",
                stats.num_disk_loaded_blocks,
            ),
            ("octavo:engine_steps", "Steps of the engine", stats.num_steps),
            (
                "octavo:broken_invariants",
                "Faults of queues and blocks that idle time's checks found",
                stats.num_broken_invariants,
            ),
        ):
            counter = CounterMetricFamily(name, help_, labels=_LABELS)
            counter.add_metric((self._model_name,), value)
            yield counter
        misses = CounterMetricFamily(
            "octavo:prefix_cache_misses",
            "Requests whose prompt was not all cached, by reason",
            labels=(*_LABELS, "reason"),
        )
        for reason, count in stats.num_prefix_misses.items():
            misses.add_metric((self._model_name, reason), count)
        yield misses
