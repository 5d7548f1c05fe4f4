"""Prometheus metrics: vLLM's names where it has one, `octavo:` for the rest. See docs/observability.md.

Requests are counted where their events are handed on, in the event loop; the engine's counters are read when asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from octavo.api.outputs_processor import RequestState
from octavo.api.trace import RequestTrace
from octavo.errors import QueueFull
from octavo.messages import EngineInfo, EngineStats
from octavo.observability.histogram import (
    CHOICE_BUCKETS,
    REQUEST_TIME_BUCKETS,
    STEP_TOKEN_BUCKETS,
    TOKEN_TIME_BUCKETS,
    TTFT_BUCKETS,
    Histogram,
    token_buckets,
)
from octavo.outputs import FinishReason
from octavo.server.engine_metrics import (
    LABELS,
    EngineMetrics,
    NoSupervision,
    SupervisionCounts,
    counter,
    counters,
)

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_MAX_UNREAD: Final = 1000
"""Ended requests whose clients have not read all yet."""

_REJECTIONS: Final = ("max_num_queued_reqs", "max_num_queued_tokens")
_DROPS: Final = ("slow_request", "slow_reader", "too_many_connections")
_PARTS: Final = (
    "replayed", "queue", "preempted", "passed_over", "prefill", "decode", "front_end", "client",
    "other",
)  # fmt: skip


class Metrics(Collector):
    """The metrics of one served model: counts what it is told as the router's watcher. One thread uses it."""

    def __init__(
        self,
        model_name: str,
        stats: Callable[[], EngineStats],
        info: EngineInfo,
        supervision: Callable[[], SupervisionCounts] = NoSupervision,
    ) -> None:
        self._labels = (model_name, "0")
        self._engine = EngineMetrics(model_name, stats, info, supervision)
        self._requests = RequestHistograms(info.max_model_len)
        self._ends = dict.fromkeys((reason.value for reason in FinishReason), 0)
        self._rejections = dict.fromkeys(_REJECTIONS, 0)
        self._parts = dict.fromkeys(_PARTS, 0.0)
        self._drops = dict.fromkeys(_DROPS, 0)
        self._num_recomputed = 0
        self._unread: deque[RequestTrace] = deque()
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self.stepped = self._requests.stepped
        self.waited = self._requests.waited

    def ended(self, state: RequestState) -> None:
        """Count a request that is over, as far as it got."""
        for reason in state.finish_reasons:
            self._ends[reason.value] += 1
        self._num_recomputed += state.metrics.num_recomputed_tokens
        self._requests.ended(state)
        self._unread.append(state.trace)
        if len(self._unread) > _MAX_UNREAD:
            self._count_parts(self._unread.popleft())

    def refused(self, error: QueueFull) -> None:
        """Count a request that the queue had no room for."""
        self.reject(error.reason)

    def reject(self, reason: str) -> None:
        """Count a request that was not accepted because of a limit; `reason` is one of a few."""
        self._rejections[reason] = self._rejections.get(reason, 0) + 1

    def drop(self, reason: str) -> None:
        """Count a connection that was ended because of its client."""
        self._drops[reason] = self._drops.get(reason, 0) + 1

    def text(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """All metrics, for the registry."""
        self._read_parts()
        yield from self._engine.families()
        yield counters(
            "vllm:request_success", "Choices by how they ended", self._labels, "finished_reason",
            self._ends,
        )  # fmt: skip
        yield counters(
            "vllm:admission_rejections", "Requests that were not accepted, by the limit they met",
            self._labels, "reason", self._rejections,
        )  # fmt: skip
        yield counters(
            "octavo:dropped_connections", "Connections ended because of their clients",
            self._labels, "reason", self._drops,
        )  # fmt: skip
        yield counters(
            "octavo:request_part_seconds",
            "Time of ended requests by what it went to, as /v1/requests/{id}/explain names it",
            self._labels, "part", self._parts,
        )  # fmt: skip
        yield counter(
            "octavo:recomputed_tokens",
            "Tokens of ended requests that were computed again after a preemption",
            self._labels,
            self._num_recomputed,
        )
        for name, (help_, histogram) in self._requests.by_name.items():
            family = HistogramMetricFamily(name, help_, labels=LABELS)
            family.add_metric(self._labels, histogram.cumulated, histogram.sum)
            yield family

    def describe(self) -> list[Metric]:
        """Nothing: the engine need not be there yet."""
        return []

    def _read_parts(self) -> None:
        """Count the time of those whose clients have read all; it is not known before."""
        unread = [trace for trace in self._unread if not trace.is_delivered]
        for trace in self._unread:
            if trace.is_delivered:
                self._count_parts(trace)
        self._unread = deque(unread)

    def _count_parts(self, trace: RequestTrace) -> None:
        for part, seconds in trace.parts().items():
            self._parts[part] = self._parts.get(part, 0.0) + max(0.0, seconds)


class RequestHistograms:
    """vLLM's histograms of requests and steps."""

    def __init__(self, max_model_len: int) -> None:
        self.by_name: dict[str, tuple[str, Histogram]] = {}
        self._num_steps = 0
        self._num_step_tokens = 0
        tokens = token_buckets(max_model_len)
        new = self._new
        self._step_tokens = new("iteration_tokens_total", "Tokens per step", STEP_TOKEN_BUCKETS)
        self._prompt = new("request_prompt_tokens", "Prompt tokens", tokens)
        self._output = new("request_generation_tokens", "Tokens generated, all choices", tokens)
        self._longest = new(
            "request_max_num_generation_tokens", "Tokens of the longest choice", tokens
        )
        self._computed = new(
            "request_prefill_kv_computed_tokens",
            "Prompt tokens that were computed: not found in the cache",
            tokens,
        )
        self._n = new("request_params_n", "Choices asked for", CHOICE_BUCKETS)
        self._max_tokens = new("request_params_max_tokens", "Most tokens of a choice", tokens)
        self._first = new("time_to_first_token_seconds", "Arrival to the first token", TTFT_BUCKETS)
        self._gap = new("inter_token_latency_seconds", "Token to token", TOKEN_TIME_BUCKETS)
        self._per_token = new(
            "request_time_per_output_token_seconds",
            "Mean time between the tokens of a request that has two or more",
            TOKEN_TIME_BUCKETS,
        )
        times = REQUEST_TIME_BUCKETS
        self._whole = new("e2e_request_latency_seconds", "Arrival to the end", times)
        self._queue = new("request_queue_time_seconds", "Arrival to the first step", times)
        self._inference = new("request_inference_time_seconds", "First step to the end", times)
        self._prefill = new("request_prefill_time_seconds", "First step to the first token", times)
        self._decode = new("request_decode_time_seconds", "First token to the end", times)

    def stepped(self, stats: EngineStats) -> None:
        """Count the tokens of the steps since the last call, as of one size; an engine may have begun anew."""
        num_steps = stats.num_steps - self._num_steps
        if num_steps < 0:
            num_steps, self._num_step_tokens = stats.num_steps, 0
        if num_steps:
            num_tokens = stats.num_step_tokens - self._num_step_tokens
            self._step_tokens.observe(num_tokens / num_steps, num_steps)
        self._num_steps, self._num_step_tokens = stats.num_steps, stats.num_step_tokens

    def waited(self, num_tokens: int, seconds: float) -> None:
        """Count the time between tokens: those that came together were computed one after the other."""
        self._gap.observe(seconds / num_tokens, num_tokens)

    def ended(self, state: RequestState) -> None:
        """Count a request."""
        metrics, params, usage = state.metrics, state.params, state.usage
        self._prompt.observe(usage.prompt_tokens)
        self._output.observe(usage.completion_tokens)
        self._longest.observe(max(state.num_tokens_by_choice, default=0))
        self._n.observe(params.n)
        self._max_tokens.observe(params.max_tokens or 0)
        if metrics.first_token_s is not None:
            self._first.observe(metrics.first_token_s)
        if metrics.mean_itl_s is not None:
            self._per_token.observe(metrics.mean_itl_s)
        self._whole.observe(metrics.finished_s or 0.0)
        self._observe_engine(state)

    def _observe_engine(self, state: RequestState) -> None:
        """What the engine told; without a word from it, what the front end saw."""
        metrics, trace = state.metrics, state.trace
        finished_s = metrics.finished_s or 0.0
        queue_s, num_computed = metrics.queue_s, trace.num_computed_tokens
        if queue_s is not None and num_computed is not None:
            # What the engine did after the end here (a stop string, a client that left) is not the request's time.
            inference_s = min(trace.inference_s, max(0.0, finished_s - queue_s))
            prefill_s = trace.prefill_s
        else:
            first_s = metrics.first_token_s
            queue_s = finished_s if first_s is None else 0.0
            inference_s, prefill_s = finished_s - queue_s, first_s or 0.0
            num_computed = 0 if first_s is None else len(state.prompt_token_ids)
        self._queue.observe(queue_s)
        self._inference.observe(inference_s)
        self._prefill.observe(min(prefill_s, inference_s))
        self._decode.observe(max(0.0, inference_s - prefill_s))
        self._computed.observe(num_computed)

    def _new(self, name: str, help_: str, bounds: tuple[float, ...]) -> Histogram:
        histogram = Histogram(bounds)
        self.by_name[f"vllm:{name}"] = (help_, histogram)
        return histogram
