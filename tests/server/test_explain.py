"""Why was my request slow? Asked over HTTP, of a whole engine over the fake model."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI

from octavo.api.async_llm import AsyncLLM
from octavo.api.processor import Processor
from octavo.engine.client import ThreadedClient
from octavo.observability.config import QUIET, ObservabilityConfig
from octavo.ops.protocol import Batch
from octavo.server.app import create_app
from tests.engine.fakes import EOS, VOCAB, fake_engine
from tests.server.test_lifecycle import served
from tests.server.wire import ask, error_of, events, post, send
from tests.unit.api.fakes import FakeTokenizer

URL = "/v1/completions"
PROMPT = [i % VOCAB for i in range(40)]


class SmallTokenizer(FakeTokenizer):
    """Its only special token is one that the fake model has."""

    eos_token_ids = frozenset({EOS})


def takes_time(batch: Batch) -> float:
    time.sleep(0.0002 * len(batch.token_ids))
    return 0.0


def an_app(observability: ObservabilityConfig = QUIET, **options: Any) -> FastAPI:
    sizes = {"max_model_len": 100_000, "num_blocks": 6400, **options}
    engine, _ = fake_engine(clock=time.perf_counter, seconds=takes_time, **sizes)
    llm = AsyncLLM.from_client(
        lambda deliver: ThreadedClient(engine, on_outputs=deliver),
        Processor(engine.info, SmallTokenizer(chat_template=None), seed=0),
        lambda: not engine.is_dead,
    )
    return create_app(llm, observability=observability)


@pytest.fixture
def app() -> Iterator[FastAPI]:
    app = an_app()
    yield app
    app.state.server.llm.close()


def explanation_of(app: FastAPI, request_id: str) -> dict[str, Any]:
    answer = ask(app, "GET", f"/v1/requests/{request_id}/explain")
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


def test_a_request_is_explained_after_its_end(app: FastAPI) -> None:
    answer = post(app, URL, {"prompt": PROMPT, "max_tokens": 5, "ignore_eos": True})
    assert "octavo_explain" not in answer.json()
    explanation = explanation_of(app, answer.headers["x-request-id"])
    assert explanation["id"] == answer.json()["id"]
    assert explanation["cause"].endswith(".")
    assert explanation["remedy"].endswith(".")
    assert explanation["prefill"] == {
        "computed_tokens": 40,
        "recomputed_tokens": 0,
        "chunks": 1,
    }
    assert explanation["decode"]["steps"] == 4
    assert abs(explanation["parts_s"]["other"]) <= 0.01 * explanation["total_s"]


def test_who_is_not_known_is_not_found(app: FastAPI) -> None:
    error = error_of(ask(app, "GET", "/v1/requests/nobody/explain"), 404)
    assert error["code"] == "request_not_found"
    assert "1000 others ended after it" in error["message"]


def test_an_answer_carries_its_explanations_if_the_body_asks(app: FastAPI) -> None:
    body = {"prompt": [PROMPT, [60, *PROMPT]], "max_tokens": 2, "ignore_eos": True, "explain": True}
    answer = post(app, URL, body)
    assert "x-octavo-warning" not in answer.headers
    first, second = answer.json()["octavo_explain"]
    assert [first["id"], second["id"]] == [answer.json()["id"], f"{answer.json()['id']}-1"]
    assert explanation_of(app, second["id"])["cause"] == second["cause"]


@pytest.mark.parametrize("has_usage", [False, True])
def test_a_stream_ends_with_its_explanation(app: FastAPI, has_usage: bool) -> None:
    body = {"prompt": PROMPT, "max_tokens": 3, "ignore_eos": True, "stream": True, "explain": True,
            "stream_options": {"include_usage": has_usage}}  # fmt: skip
    *chunks, last = events(post(app, URL, body))
    assert all("octavo_explain" not in chunk for chunk in chunks)
    assert last["choices"] == []
    assert ("usage" in last) == has_usage
    [explanation] = last["octavo_explain"]
    assert explanation["completion_tokens"] == 3


def test_a_request_that_waits_for_another_names_it() -> None:
    app = an_app(max_num_seqs=1)

    async def both() -> tuple[str, str]:
        body = {"prompt": PROMPT, "max_tokens": 60, "ignore_eos": True}
        first = asyncio.create_task(send(app, "POST", URL, body))
        await asyncio.sleep(0.005)
        second = await send(app, "POST", URL, {**body, "max_tokens": 2})
        return (await first).json()["id"], second.json()["id"]

    first, second = asyncio.run(both())
    explanation = explanation_of(app, second)
    assert explanation["kind"] == "queue"
    assert explanation["queue"]["ids"] == [first]
    assert first in explanation["cause"]
    app.state.server.llm.close()


def test_a_client_that_reads_slowly_is_named(app: FastAPI) -> None:
    body = b'{"prompt": [1], "max_tokens": 600, "ignore_eos": true, "stream": true, "logprobs": 1}'
    with served(app) as server:
        # Small buffers on both sides: what the client does not read stays with the server.
        server._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        host, port = server.url.removeprefix("http://").split(":")
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((host, int(port)))
            client.sendall(
                b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body)
            )
            data = client.recv(4096)
            while app.state.server.llm.num_in_flight:
                time.sleep(0.01)
            time.sleep(1.0)
            while part := client.recv(65536):
                data += part
    request_id = data.split(b"x-request-id: ")[1].split(b"\r\n")[0].decode()
    explanation = explanation_of(app, request_id)
    assert explanation["kind"] == "slow_client", explanation
    assert explanation["parts_s"]["client"] >= 1.0
    assert explanation["client_wait_s"] >= 1.0
    assert abs(explanation["parts_s"]["other"]) <= 0.01 * explanation["total_s"]
