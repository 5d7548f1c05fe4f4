"""The metrics of one request, in its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI

from octavo.observability.config import ObservabilityConfig
from octavo.params import SamplingParams
from tests.engine.fakes import VOCAB
from tests.server.test_explain import PROMPT, URL, an_app
from tests.server.wire import events, fake_app, post
from tests.unit.api.fakes import always

FIELDS = {
    "time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms",
    "tokens_per_second", "num_preemptions", "num_recomputed_tokens", "num_cached_tokens",
}  # fmt: skip
BODY: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 5, "ignore_eos": True}


@pytest.fixture
def app() -> Iterator[FastAPI]:
    app = an_app()
    yield app
    app.state.server.llm.close()


def test_an_answer_has_its_metrics_if_the_body_asks(app: FastAPI) -> None:
    assert "metrics" not in post(app, URL, BODY).json()
    answer = post(app, URL, {**BODY, "include_metrics": True})
    assert "x-octavo-warning" not in answer.headers
    metrics = answer.json()["metrics"]
    assert metrics.keys() == FIELDS
    # The second time all but the last token of the prompt is found.
    assert metrics["num_cached_tokens"] == 39
    assert 0 <= metrics["queue_time_ms"] < metrics["time_to_first_token_ms"]
    assert metrics["generation_time_ms"] >= 0.2 * 4
    assert metrics["mean_itl_ms"] == pytest.approx(metrics["generation_time_ms"] / 4, abs=0.01)
    assert metrics["tokens_per_second"] == pytest.approx(1000 / metrics["mean_itl_ms"], rel=0.05)
    assert (metrics["num_preemptions"], metrics["num_recomputed_tokens"]) == (0, 0)


@pytest.mark.parametrize("has_usage", [False, True])
def test_a_stream_has_them_in_its_last_chunk(app: FastAPI, has_usage: bool) -> None:
    body = {**BODY, "stream": True, "include_metrics": True,
            "stream_options": {"include_usage": has_usage}}  # fmt: skip
    *chunks, last = events(post(app, URL, body))
    assert all("metrics" not in chunk for chunk in chunks)
    assert last["choices"] == []
    assert ("usage" in last) == has_usage
    assert last["metrics"].keys() == FIELDS


def test_a_server_may_put_them_into_every_answer() -> None:
    config = ObservabilityConfig(enable_per_request_metrics=True)
    app = fake_app(always("abc"), observability=config)
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    assert post(app, "/v1/chat/completions", body).json()["metrics"].keys() == FIELDS


def test_one_token_has_no_time_between_tokens(app: FastAPI) -> None:
    metrics = post(app, URL, {**BODY, "max_tokens": 1, "include_metrics": True}).json()["metrics"]
    assert metrics["mean_itl_ms"] is None
    assert metrics["tokens_per_second"] is None
    assert metrics["generation_time_ms"] == 0
    none = post(app, URL, {**BODY, "max_tokens": 0, "include_metrics": True}).json()["metrics"]
    assert none["time_to_first_token_ms"] is None


def test_preemptions_and_what_they_cost_are_told_apart() -> None:
    app = an_app(num_blocks=8, is_caching=False, max_model_len=256)
    prompts = [[i % VOCAB for i in range(30)], [(i + 40) % VOCAB for i in range(30)]]
    body = {"prompt": prompts, "max_tokens": 80, "ignore_eos": True, "include_metrics": True}
    first, second = post(app, URL, body).json()["metrics"]
    assert first["num_preemptions"] == first["num_recomputed_tokens"] == 0
    assert second["num_preemptions"] >= 1
    assert second["num_recomputed_tokens"] >= 30
    app.state.server.llm.close()


def test_python_has_the_same_numbers(app: FastAPI) -> None:
    async def ask() -> Any:
        params = SamplingParams(max_tokens=5, ignore_eos=True, n=2, temperature=1.0)
        async for output in app.state.server.llm.generate({"prompt_token_ids": PROMPT}, params):
            last = output
        return last.metrics

    metrics = asyncio.run(ask())
    assert metrics.num_output_tokens == 10
    assert metrics.num_gaps == 8
    assert 0 < metrics.first_token_s <= metrics.last_token_s <= metrics.finished_s
    assert metrics.mean_itl_s == pytest.approx(metrics.gaps_s / 8)
    assert metrics.tokens_per_second == pytest.approx(9 / metrics.generation_s)
    assert 0 <= metrics.queue_s < metrics.first_token_s
