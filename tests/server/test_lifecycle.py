"""A real server on a real socket, with a scripted engine."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Iterator

import httpx
import msgspec
import openai
import pytest
from fastapi import FastAPI

from octavo.errors import InvalidRequest
from octavo.server.lifecycle import DrainingServer, PortInUse, bind, start_line
from tests.server.wire import fake_app
from tests.unit.api.fakes import INFO, WORLD, FakeClient, always, token

ENDLESS = {"prompt": "x", "max_tokens": 1_000_000, "stream": True}


def endless() -> FakeClient:
    """An engine whose answer is longer than any test waits for."""
    info = msgspec.structs.replace(INFO, max_model_len=1_000_001)
    return FakeClient(lambda request, index: [WORLD] * 1_000_000, info=info)


class Served:
    """A server in a thread of its own."""

    def __init__(self, app: FastAPI, *, grace_s: int = 5) -> None:
        self._sock = bind("127.0.0.1", 0)
        self._sock.listen()
        self.url = f"http://127.0.0.1:{self._sock.getsockname()[1]}"
        self.server = DrainingServer(app, grace_s, on_ready=lambda: None)
        self._thread = threading.Thread(target=self.server.run, args=([self._sock],))
        self._thread.start()

    def signal(self, sig: int) -> None:
        self.server.handle_exit(sig, None)

    def join(self, timeout: float = 10) -> None:
        self._thread.join(timeout)
        assert not self._thread.is_alive()
        self._sock.close()


@contextlib.contextmanager
def served(app: FastAPI, *, grace_s: int = 5) -> Iterator[Served]:
    server = Served(app, grace_s=grace_s)
    try:
        with httpx.Client() as client:
            client.get(server.url + "/health")  # from here on its loop runs
        yield server
    finally:
        if server.server.stopped_by is None:
            server.signal(signal.SIGTERM)
        server.join()


def test_the_openai_client_streams_and_reads_errors() -> None:
    with served(fake_app(always("Hello"))) as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0)
        messages = [{"role": "user", "content": "Hi"}]
        whole = client.chat.completions.create(model="fake", messages=messages)  # type: ignore[call-overload]
        assert whole.choices[0].message.content == "Hello"
        stream = client.chat.completions.create(  # type: ignore[call-overload]
            model="fake", messages=messages, stream=True, stream_options={"include_usage": True}
        )
        *chunks, last = list(stream)
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == "Hello"
        assert last.usage.completion_tokens == 6
        completion = client.completions.create(model="fake", prompt="x", logprobs=1)
        assert completion.choices[0].logprobs.text_offset == [0, 1, 2, 3, 4, 5]
        assert [model.id for model in client.models.list()] == ["fake"]
        with pytest.raises(openai.NotFoundError) as caught:
            client.chat.completions.create(model="nope", messages=messages)  # type: ignore[call-overload]
        assert caught.value.code == "model_not_found"
        client.close()


def test_a_client_that_drops_the_connection_stops_its_request() -> None:
    engine = endless()
    with served(fake_app(engine)) as server, httpx.Client() as client:
        with client.stream("POST", server.url + "/v1/completions", json=ENDLESS) as response:
            next(response.iter_raw())
        for _ in range(500):
            if not engine._open:
                break
            threading.Event().wait(0.01)
        assert not engine._open
        assert len(engine.aborted) == 1


def test_sigterm_lets_running_requests_finish() -> None:
    app = fake_app(token(WORLD))
    with served(app) as server, httpx.Client() as client:
        body = {"prompt": "x", "max_tokens": 90, "stream": True}
        with client.stream("POST", server.url + "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            server.signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        server.join()
        assert server.server.stopped_by == signal.SIGTERM


def test_after_the_grace_time_requests_end_with_an_error() -> None:
    with served(fake_app(endless()), grace_s=0) as server, httpx.Client() as client:
        with client.stream("POST", server.url + "/v1/completions", json=ENDLESS) as response:
            lines = response.iter_lines()
            next(lines)
            server.signal(signal.SIGTERM)
            last = [line for line in lines if line][-1]
        assert (
            json.loads(last.removeprefix("data: "))["error"]["message"]
            == "the server is shutting down"
        )


def test_a_port_in_use_and_a_bad_address_are_told_apart() -> None:
    with bind("127.0.0.1", 0) as sock:
        sock.listen()
        with pytest.raises(PortInUse):
            bind("127.0.0.1", sock.getsockname()[1])
    with pytest.raises(InvalidRequest, match="99999"):
        bind("127.0.0.1", 99999)
    with pytest.raises(InvalidRequest, match="cannot listen"):
        bind("203.0.113.1", 0)


def test_the_start_line_says_where() -> None:
    app = fake_app(always("x"))
    with bind("127.0.0.1", 0) as sock:
        line = start_line(app.state.server.llm, sock)
        assert f"serves fake at http://127.0.0.1:{sock.getsockname()[1]} " in line
