"""/metrics: names, types, labels and buckets as in vLLM, and every request in every histogram once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import httpx
import msgspec
import pytest
from fastapi import FastAPI
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from octavo.api.outputs_processor import RequestState
from octavo.errors import EngineDead, QueueFull
from octavo.messages import AddRequest, ChoiceOutput, EngineStats, EngineTimeline
from octavo.observability.histogram import Histogram, token_buckets
from octavo.params import SamplingParams
from octavo.server.metrics import Metrics
from tests.server.test_explain import PROMPT, URL, an_app
from tests.server.wire import ask, error_of, fake_app, post, send
from tests.unit.api.fakes import INFO, WORLD, FakeClient, FakeTokenizer, always, ids_of

TTFT: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
ITL: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
DURATIONS: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
TOKENS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
STEPS: Final = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0,
                16384.0)  # fmt: skip
HISTOGRAMS: Final = {
    "vllm:iteration_tokens_total": STEPS,
    "vllm:request_prompt_tokens": TOKENS,
    "vllm:request_generation_tokens": TOKENS,
    "vllm:request_max_num_generation_tokens": TOKENS,
    "vllm:request_prefill_kv_computed_tokens": TOKENS,
    "vllm:request_params_n": (1.0, 2.0, 5.0, 10.0, 20.0),
    "vllm:request_params_max_tokens": TOKENS,
    "vllm:time_to_first_token_seconds": TTFT,
    "vllm:inter_token_latency_seconds": ITL,
    "vllm:request_time_per_output_token_seconds": ITL,
    "vllm:e2e_request_latency_seconds": DURATIONS,
    "vllm:request_queue_time_seconds": DURATIONS,
    "vllm:request_inference_time_seconds": DURATIONS,
    "vllm:request_prefill_time_seconds": DURATIONS,
    "vllm:request_decode_time_seconds": DURATIONS,
}
GAUGES: Final = (
    "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
    "octavo:kv_blocks", "octavo:kv_blocks_used", "octavo:kv_blocks_free", "octavo:kv_blocks_cached",
)  # fmt: skip
COUNTERS: Final = (
    "vllm:prompt_tokens", "vllm:generation_tokens", "vllm:num_preemptions",
    "vllm:prefix_cache_queries", "vllm:prefix_cache_hits", "vllm:external_prefix_cache_queries",
    "vllm:external_prefix_cache_hits", "octavo:kv_blocks_stored", "octavo:kv_blocks_loaded",
    "octavo:engine_steps", "octavo:step_tokens", "octavo:model_seconds",
    "octavo:broken_invariants", "octavo:engine_restarts", "octavo:replayed_requests",
    "octavo:quarantined_requests", "octavo:recomputed_tokens",
)  # fmt: skip
LABELLED: Final = {
    "vllm:request_success": ("finished_reason", {"stop", "length", "abort", "error"}),
    "vllm:admission_rejections": ("reason", {"max_num_queued_reqs", "max_num_queued_tokens"}),
    "octavo:dropped_connections": (
        "reason", {"slow_request", "slow_reader", "too_many_connections"},
    ),
    "octavo:prefix_cache_misses": (
        "reason", {"cold", "diverged", "evicted", "salt", "disabled"},
    ),
    "octavo:request_part_seconds": (
        "part",
        {"replayed", "queue", "preempted", "passed_over", "prefill", "decode", "front_end", "client",
         "other"},
    ),
}  # fmt: skip
INFOS: Final = ("vllm:cache_config_info", "octavo:engine_info")
ONCE: Final = tuple(
    name
    for name in HISTOGRAMS
    if "request_" in name and name != "vllm:request_time_per_output_token_seconds"
)
"""Histograms that see a request wherever it ended."""


def families(app: FastAPI) -> dict[str, Metric]:
    """What /metrics says, read as Prometheus reads it."""
    answer = ask(app, "GET", "/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = list(text_string_to_metric_families(answer.text))
    assert len({family.name for family in found}) == len(found), "a metric is there twice"
    assert all(family.documentation for family in found)
    return {family.name: family for family in found}


def value(app: FastAPI, name: str, **labels: str) -> float:
    """The samples of this name and these labels, added up."""
    return sum(
        sample.value
        for family in families(app).values()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


@pytest.fixture
def app() -> Iterator[FastAPI]:
    app = an_app()
    yield app
    app.state.server.llm.close()


def test_the_names_types_labels_and_buckets_are_these() -> None:
    fake = fake_app(always("abc"))
    found = families(fake)
    expected = {*HISTOGRAMS, *GAUGES, *COUNTERS, *LABELLED, *INFOS, "octavo:limit_share"}
    assert found.keys() == expected
    common = {"model_name": "fake", "engine": "0"}
    for name in GAUGES:
        [sample] = found[name].samples
        assert (found[name].type, sample.labels) == ("gauge", common)
    for name in COUNTERS:
        [sample] = found[name].samples
        assert (found[name].type, sample.name, sample.labels) == (
            "counter",
            name + "_total",
            common,
        )
    for name, bounds in HISTOGRAMS.items():
        family = found[name]
        assert family.type == "histogram"
        buckets = [s.labels for s in family.samples if s.name == name + "_bucket"]
        assert all(labels == {**common, "le": labels["le"]} for labels in buckets)
        assert tuple(float(labels["le"]) for labels in buckets) == (*bounds, float("inf")), name
        assert {s.name for s in family.samples} == {
            f"{name}_{x}" for x in ("bucket", "sum", "count")
        }
    for name in INFOS:
        [sample] = found[name].samples
        assert common.items() <= sample.labels.items()
        assert sample.value == 1


def test_counters_by_reason_are_there_from_the_start(app: FastAPI) -> None:
    found = families(app)
    for name, (label, keys) in LABELLED.items():
        assert found[name].type == "counter"
        assert {s.labels[label] for s in found[name].samples} >= keys, name


def test_a_request_is_in_every_histogram_once(app: FastAPI) -> None:
    body = {"prompt": PROMPT, "max_tokens": 5, "ignore_eos": True, "n": 2}
    post(app, URL, body)
    post(app, URL, {**body, "stream": True})
    for name in (*ONCE, "vllm:e2e_request_latency_seconds", "vllm:time_to_first_token_seconds",
                 "vllm:request_time_per_output_token_seconds"):  # fmt: skip
        assert value(app, name + "_count") == 2, name
    assert value(app, "vllm:request_success_total", finished_reason="length") == 4
    assert value(app, "vllm:inter_token_latency_seconds_count") == 2 * 2 * 4
    assert value(app, "vllm:request_generation_tokens_sum") == 2 * 2 * 5
    assert value(app, "vllm:request_max_num_generation_tokens_sum") == 2 * 5
    assert value(app, "vllm:request_params_n_sum") == 4
    assert value(app, "vllm:request_params_max_tokens_sum") == 10
    hits = value(app, "vllm:prefix_cache_hits_total") / 2  # counted per choice
    assert value(app, "vllm:request_prefill_kv_computed_tokens_sum") <= 80 - hits / 2
    steps = value(app, "octavo:engine_steps_total")
    assert value(app, "vllm:iteration_tokens_total_count") == steps
    tokens = value(app, "octavo:step_tokens_total")
    assert value(app, "vllm:iteration_tokens_total_sum") == pytest.approx(tokens)
    assert tokens >= 40 + 2 * 2 * 4


def test_the_times_of_a_request_add_up(app: FastAPI) -> None:
    post(app, URL, {"prompt": PROMPT, "max_tokens": 5, "ignore_eos": True})
    total, queue, inference, prefill, decode = (
        value(app, f"vllm:{name}_seconds_sum")
        for name in ("e2e_request_latency", "request_queue_time", "request_inference_time",
                     "request_prefill_time", "request_decode_time")
    )  # fmt: skip
    assert prefill >= 0.0002 * 40
    assert decode >= 0.0002 * 4
    assert inference == pytest.approx(prefill + decode)
    assert queue + inference <= total
    parts = sum(value(app, "octavo:request_part_seconds_total", part=part)
                for part in LABELLED["octavo:request_part_seconds"][1])  # fmt: skip
    assert total <= parts <= total + 0.5


async def _leave(app: FastAPI, body: Mapping[str, object], after_s: float) -> None:
    """A client that goes away."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        task = asyncio.create_task(client.post(URL, json=body))
        await asyncio.sleep(after_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_requests_that_were_left_are_counted_as_far_as_they_got() -> None:
    app = an_app(max_num_seqs=1)

    async def two() -> None:
        body = {"prompt": PROMPT, "max_tokens": 5000, "ignore_eos": True}
        running = asyncio.create_task(_leave(app, body, 0.2))
        await asyncio.sleep(0.05)
        await _leave(app, body, 0.05)  # never began: there is one slot
        await running
        while (
            'finished_reason="abort",model_name="fake"} 2.0'
            not in (await send(app, "GET", "/metrics")).text
        ):
            await asyncio.sleep(0.01)  # the engine tells its end

    asyncio.run(asyncio.wait_for(two(), 10))
    for name in ONCE:
        assert value(app, name + "_count") == 2, name
    assert value(app, "vllm:request_success_total", finished_reason="abort") == 2
    assert value(app, "vllm:time_to_first_token_seconds_count") == 1
    assert value(app, "vllm:request_prefill_kv_computed_tokens_sum") == 40
    assert 0.04 <= value(app, "vllm:request_queue_time_seconds_sum") < 0.15
    app.state.server.llm.close()


def test_a_stop_string_ends_a_request_here_and_later_in_the_engine() -> None:
    app = fake_app(lambda request, index: [WORLD] * 50)
    post(app, URL, {"prompt": "x", "max_tokens": 50, "stop": "world world"})
    assert value(app, "vllm:request_success_total", finished_reason="stop") == 1
    assert value(app, "vllm:request_generation_tokens_sum") == 2
    for name in ONCE:
        assert value(app, name + "_count") == 1, name


def test_requests_that_find_no_room_are_counted_by_the_limit() -> None:
    client = FakeClient(always("x"))

    def full(message: AddRequest) -> None:
        raise QueueFull("full", retry_after_s=5, reason="max_num_queued_tokens")

    client.add = full  # type: ignore[method-assign]
    app = fake_app(client)
    error_of(post(app, URL, {"prompt": "x"}), 429)
    assert value(app, "vllm:admission_rejections_total", reason="max_num_queued_tokens") == 1
    assert value(app, "vllm:e2e_request_latency_seconds_count") == 0
    app.state.server.metrics.reject("tenant_requests")
    assert value(app, "vllm:admission_rejections_total", reason="tenant_requests") == 1


def test_a_dead_engine_still_has_metrics() -> None:
    client = FakeClient(always("x"))
    app = fake_app(client)
    assert value(app, "octavo:kv_blocks_used") == 4
    client.close()
    assert value(app, "octavo:kv_blocks_used") == 4
    assert value(app, "vllm:num_requests_running") == 0


def test_the_share_of_the_limit_is_there_once_it_is_known() -> None:
    stats = EngineStats()
    metrics = Metrics("fake", lambda: stats, INFO)
    sample = b'octavo:limit_share{engine="0",model_name="fake"} 0.5'
    assert sample not in metrics.text()
    stats.limit_share = 0.5
    assert sample in metrics.text()


def no_stats() -> EngineStats:
    raise EngineDead("there is none")


@dataclass
class Restarts:
    num_restarts: int = 3
    num_replayed: int = 2
    num_quarantined: int = 1


@dataclass
class Counted:
    """A metrics object and what it says."""

    metrics: Metrics = field(
        default_factory=lambda: Metrics("fake", no_stats, INFO, supervision=Restarts)
    )

    def __getitem__(self, name: str) -> float:
        text = self.metrics.text().decode()
        [sample] = [s for f in text_string_to_metric_families(text) for s in f.samples
                    if s.name == name]  # fmt: skip
        return sample.value


def test_what_the_supervisor_did_is_counted() -> None:
    counted = Counted()
    assert counted["octavo:engine_restarts_total"] == 3
    assert counted["octavo:replayed_requests_total"] == 2
    assert counted["octavo:quarantined_requests_total"] == 1


def test_a_request_that_went_on_in_another_engine_is_one_request() -> None:
    """Sent at 0, begun at 1, first token at 3; the engine dies; the next has it at 10, begins at 11, ends it at 20."""
    counted, times = Counted(), iter([0.0, 3.0, 3.0, 13.0, 13.0, *[20.0] * 9])
    request = AddRequest("r", [1, 2, 3], SamplingParams(max_tokens=9))
    state = RequestState(
        request, FakeTokenizer(), clock=lambda: next(times), watcher=counted.metrics
    )
    first = EngineTimeline(added_s=0.0, until_s=3.0, queue_s=1.0, num_computed_tokens=3)
    again = EngineTimeline(
        added_s=10.0, until_s=13.0, queue_s=1.0, num_computed_tokens=4, replayed_s=10.0
    )
    last = msgspec.structs.replace(again, until_s=20.0, num_decode_steps=7, is_final=True)
    state.process(ChoiceOutput("r", 0, ids_of("x"), timeline=first))
    state.process(ChoiceOutput("r", 0, ids_of("y"), timeline=again))
    state.process(ChoiceOutput("r", 0, ids_of("z"), timeline=last, finish_reason="stop"))
    counted.metrics.ended(state)
    sums = {
        name: counted[f"vllm:{name}_sum"]
        for name in ("request_queue_time_seconds", "request_inference_time_seconds",
                     "request_prefill_time_seconds", "request_prefill_kv_computed_tokens",
                     "inter_token_latency_seconds", "e2e_request_latency_seconds")
    }  # fmt: skip
    assert list(sums.values()) == [1.0, 19.0, 2.0, 3.0, 17.0, 20.0]


def test_steps_of_an_engine_that_began_anew_are_counted_on() -> None:
    counted = Counted()
    for num_steps, num_tokens in ((2, 20), (3, 21), (3, 21), (1, 5)):
        counted.metrics.stepped(EngineStats(num_steps=num_steps, num_step_tokens=num_tokens))
    assert counted["vllm:iteration_tokens_total_count"] == 4
    assert counted["vllm:iteration_tokens_total_sum"] == 26


def test_a_value_belongs_to_the_first_bound_that_is_not_below_it() -> None:
    histogram = Histogram((1, 2, 5))
    for number in (0.5, 1, 1.5, 5, 6):
        histogram.observe(number)
    histogram.observe(2, 3)
    assert histogram.cumulated == [("1.0", 2.0), ("2.0", 6.0), ("5.0", 7.0), ("+Inf", 8.0)]
    assert histogram.sum == 20
    assert token_buckets(100) == TOKENS
    assert token_buckets(2047)[-2:] == (1000, 2000)


def test_counting_a_token_costs_next_to_nothing() -> None:
    """It takes under a microsecond; a busy machine may show some more."""
    metrics = Counted().metrics
    request = AddRequest("r", [1, 2, 3], SamplingParams(max_tokens=20_000))

    def seconds(state: RequestState) -> float:
        output = ChoiceOutput("r", 0, ids_of("x"))
        started = time.perf_counter()
        for _ in range(5000):
            state.process(output)
        return (time.perf_counter() - started) / 5000

    def best(**watcher: Metrics) -> float:
        return min(seconds(RequestState(request, FakeTokenizer(), **watcher)) for _ in range(5))

    assert best(watcher=metrics) - best() < 1e-5
