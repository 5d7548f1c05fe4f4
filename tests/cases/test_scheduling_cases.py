"""Cases of the area scheduling/cancel, on a server process with its engine process and real connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import FastAPI

from octavo.api.async_llm import AsyncLLM
from octavo.server.app import create_app
from tests.cases import octavo_process
from tests.cases.served import (
    COMPLETIONS,
    WORLD,
    all_at_once,
    completion,
    deltas,
    finish,
    text,
)
from tests.e2e.supervised import engine_of
from tests.server.wire import error_of, events, send

CLIENT_TIMEOUT_S = 0.6
LONG = {"prompt": "x", "max_tokens": 4000, "stream": True, **WORLD}
GREEDY = {"temperature": 0, "ignore_eos": True}
WORD = " world"
TOKEN_BYTES = 23040
"""Of the KV cache of smollm2, in f16."""


@dataclass(frozen=True)
class Server:
    """A server process."""

    url: str
    pid: int
    client: httpx.Client

    def gauges(self, *names: str) -> list[float]:
        """Numbers of /metrics, in the order of the names."""
        shown = self.client.get("/metrics").text
        found = [re.search(rf"^{name}{{.*}} (.*)$", shown, re.MULTILINE) for name in names]
        return [float(match[1]) for match in found if match is not None]

    def post(self, body: object, path: str = COMPLETIONS) -> httpx.Response:
        return self.client.post(path, json=body)

    def send(self, body: dict[str, Any]) -> socket.socket:
        """A connection on which a request was sent."""
        parts = urlsplit(self.url)
        content = json.dumps(body).encode()
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(10)
        sock.connect((parts.hostname, parts.port))
        sock.sendall(
            b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b" % (COMPLETIONS.encode(), len(content), content)
        )
        return sock


@dataclass
class Reader:
    """A stream that a thread reads: its text so far, and when each part of it came."""

    server: Server
    body: dict[str, Any]
    text: str = ""
    times_s: list[float] = field(default_factory=list)
    reason: str | None = None
    error: str | None = None
    is_wanted: bool = True

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        body = {**self.body, "stream": True}
        with self.server.client.stream("POST", COMPLETIONS, json=body) as response:
            assert response.status_code == 200
            for line in response.iter_lines():
                if not self.is_wanted:
                    return
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    self.error = chunk["error"]["message"]
                    return
                choice = chunk["choices"][0]
                self.text += choice["text"]
                self.times_s.append(time.monotonic())
                self.reason = choice["finish_reason"]

    def join(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()

    def leave(self) -> None:
        self.is_wanted = False
        self.join()


def until(condition: Callable[[], bool], timeout_s: float) -> None:
    """Wait for something to become true."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < timeout_s
        time.sleep(0.01)


@contextlib.contextmanager
def serving(model: Path, *flags: str) -> Iterator[Server]:
    with (
        octavo_process.served_process(model, *flags) as started,
        httpx.Client(base_url=started.url, timeout=60) as client,
    ):
        yield Server(started.url, started.process.pid, client)


@pytest.fixture(scope="module")
def server(smollm2_path: Path) -> Iterator[Server]:
    with serving(smollm2_path, "--client-timeout", str(CLIENT_TIMEOUT_S)) as server:
        yield server


def read_chunks(sock: socket.socket, count: int) -> None:
    data = b""
    while data.count(b"data: ") < count:
        part = sock.recv(1024)
        assert part, data
        data += part


def close(sock: socket.socket) -> None:
    read_chunks(sock, 3)
    sock.close()


def close_unanswered(sock: socket.socket) -> None:
    time.sleep(0.5)
    sock.close()


def reset(sock: socket.socket) -> None:
    read_chunks(sock, 3)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def half_close(sock: socket.socket) -> None:
    read_chunks(sock, 3)
    sock.shutdown(socket.SHUT_WR)


def stop_reading(sock: socket.socket) -> None:
    read_chunks(sock, 3)


LEAVING: dict[str, tuple[bool, Callable[[socket.socket], None]]] = {
    "closed": (True, close),
    "closed before the answer": (False, close_unanswered),
    "reset": (True, reset),
    "half-closed": (True, half_close),
    "not read": (True, stop_reading),
}


@pytest.mark.parametrize("how", LEAVING)
def test_sch_01_a_client_that_leaves_leaves_nothing_behind(server: Server, how: str) -> None:
    is_stream, leave = LEAVING[how]
    gauges = ("vllm:num_requests_running", "octavo:kv_blocks_used")
    until(lambda: server.gauges(*gauges) == [0, 0], 2)
    with contextlib.closing(server.send({**LONG, "stream": is_stream})) as sock:
        until(lambda: server.gauges("vllm:num_requests_running") == [1], 2)
        leave(sock)
        # What the kernels hold for a client that does not read is filled first.
        until(lambda: server.gauges(*gauges) == [0, 0], 4 if how == "not read" else 2)
        tokens, cpu_s = server.gauges("vllm:generation_tokens_total"), cpu_seconds(server)
        time.sleep(0.3)
        assert server.gauges("vllm:generation_tokens_total") == tokens
        assert cpu_seconds(server) - cpu_s < 0.1
        assert tokens[0] > 0


def cpu_seconds(server: Server) -> float:
    """Of the engine process, so far."""
    fields = Path(f"/proc/{engine_of(server.pid)}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def test_sch_04_a_context_that_never_fits_is_refused_at_the_start(smollm2_path: Path) -> None:
    flags = ("--ctx", "4096", "--kv-cache-memory-bytes", str(1024 * TOKEN_BYTES))
    code, out, err = octavo_process.run("serve", smollm2_path, "--port", "0", *flags)
    assert (code, out) == (4, "")
    assert "4096 tokens needs" in err
    assert "Try: octavo serve" in err


def test_sch_04_a_prompt_that_never_fits_holds_up_nobody(smollm2_path: Path) -> None:
    options: dict[str, Any] = {"kv_cache_memory_bytes": 1024 * TOKEN_BYTES}
    with AsyncLLM(smollm2_path, build=False, **options) as llm:
        app = create_app(llm)
        assert llm.info.max_model_len <= 1024
        started = time.monotonic()
        huge, small = together(
            app, [{"prompt": [905] * 2000, "max_tokens": 1}, {"prompt": "Hi", "max_tokens": 4}]
        )
        assert time.monotonic() - started < 2
        assert str(llm.info.max_model_len) in error_of(huge)["message"]
        assert (small.status_code, finish(small.json())) == (200, "length")


def together(app: FastAPI, bodies: Sequence[object]) -> list[httpx.Response]:
    """Answers to requests that run at the same time, whatever they are."""

    async def main() -> list[httpx.Response]:
        return await asyncio.gather(*(send(app, "POST", COMPLETIONS, body) for body in bodies))

    return asyncio.run(main())


def test_sch_05_requests_that_are_preempted_lose_and_repeat_nothing(
    smollm2: FastAPI, smollm2_path: Path
) -> None:
    bodies = [
        {"prompt": [1000 + (37 * i + 7 * j * j) % 4000 for j in range(100)], "max_tokens": 50,
         "temperature": 0, "ignore_eos": True}
        for i in range(20)
    ]  # fmt: skip
    alone = [completion(smollm2, **body) for body in bodies[:2]]
    # That company changes nothing is another case's: here it is what 18 of them are compared with.
    expected = [*alone, *all_at_once(smollm2, COMPLETIONS, bodies[2:])]
    options: dict[str, Any] = {"kv_cache_memory_bytes": 600 * TOKEN_BYTES, "max_num_seqs": 20}
    with AsyncLLM(smollm2_path, max_model_len=256, build=False, **options) as llm:
        app = create_app(llm)
        assert llm.info.num_blocks * llm.info.block_size <= 600
        streamed = {"stream": True, "stream_options": {"include_usage": True}}
        responses = together(app, [{**body, **streamed} for body in bodies])
        for response, whole in zip(responses, expected, strict=True):
            *chunks, last = events(response)
            assert "".join(deltas(chunks)) == text(whole)
            assert last["usage"]["completion_tokens"] == 50
        stats = llm.stats()
        assert stats.num_preemptions > 0
        assert (stats.num_running, stats.num_waiting) == (0, 0)


def test_sch_06_a_short_request_does_not_wait_for_a_long_one(server: Server) -> None:
    long = Reader(server, {**LONG, "max_tokens": 1500})
    until(lambda: len(long.times_s) >= 5, 10)
    answer = server.post({"prompt": "Hi", "max_tokens": 4, "ignore_eos": True}).json()
    num_sent = long.text.count(WORD)
    assert answer["usage"]["completion_tokens"] == 4
    assert num_sent < 0.3 * 1500
    until(lambda: long.text.count(WORD) > num_sent + 100, 10)
    long.leave()
    assert max(b - a for a, b in pairwise(long.times_s)) < 2


BAD: tuple[dict[str, Any], ...] = (
    {"prompt": 5},
    {"prompt": {"a": 1}},
    {"prompt": [[1, 2], "x", 3]},
    {"prompt": [-1]},
    {"prompt": [49152]},
    {"prompt": [1, None]},
    {"prompt": []},
    {"prompt": "x" * 200_000},
    {"prompt": "x", "n": 10**9},
    {"prompt": "x", "n": 0},
    {"prompt": "x", "best_of": 10**9},
    {"prompt": "x", "max_tokens": "ten"},
    {"prompt": "x", "max_tokens": -1},
    {"prompt": "x", "max_tokens": 10**9},
    {"prompt": "x", "temperature": -1},
    {"prompt": "x", "temperature": "hot"},
    {"prompt": "x", "top_p": 7},
    {"prompt": "x", "logit_bias": {"x": 1}},
    {"prompt": "x", "logit_bias": {"99999": 1}},
    {"prompt": "x", "logit_bias": [1]},
    {"prompt": "x", "stop": 5},
    {"prompt": "x", "stop": ["x"] * 1000},
    {"prompt": "x", "stop_token_ids": [10**12]},
    {"prompt": "x", "seed": "s"},
    {"prompt": "x", "logprobs": 10**6},
    {"prompt": "x", "stream": "yes"},
    {"prompt": "x", "stream_options": 1},
    {"prompt": "x", "min_tokens": 10**6},
    {"prompt": "x", "model": "nope"},
    {"prompt": "x", "cache_salt": "s" * 1000},
)


def test_sch_07_bad_requests_disturb_no_other(server: Server, smollm2: FastAPI) -> None:
    assert len(BAD) == 30
    bodies = [{"prompt": f"The number {i} is", "max_tokens": 60, **GREEDY} for i in range(8)]
    streams = [Reader(server, body) for body in bodies]
    until(lambda: all(stream.times_s for stream in streams), 10)
    with ThreadPoolExecutor(10) as pool:
        refused = list(pool.map(server.post, BAD))
    assert any(stream.reason is None for stream in streams), "they were over before"
    for stream, body in zip(streams, bodies, strict=True):
        stream.join()
        assert stream.error is None
        assert stream.text == text(completion(smollm2, **body))
    for response, body in zip(refused, BAD, strict=True):
        error_of(response, 404 if "model" in body else 400)
    assert server.client.get("/health").status_code == 200
    assert finish(server.post(bodies[0]).json()) == "length"


def test_sch_08_overload_and_shutdown_are_answered(smollm2_path: Path) -> None:
    flags = ("--max-queued-requests", "8", "--max-num-seqs", "8", "--grace-s", "1")
    with serving(smollm2_path, *flags) as server:
        codes = flood(server, 200)
        assert set(codes) == {200, 429}
        assert codes.count(200) >= 8
        short, long = {**GREEDY, "prompt": "x", "max_tokens": 60}, {**LONG, "max_tokens": 4000}
        streams = [Reader(server, body) for body in (short, short, long, long)]
        until(lambda: all(stream.times_s for stream in streams), 10)
        os.kill(server.pid, signal.SIGTERM)
        # A connection from before is answered, a new one is not even taken.
        until(lambda: is_refused(server), 2)
        for stream in streams:
            stream.join()
        assert [stream.reason for stream in streams[:2]] == ["length", "length"]
        assert [stream.error for stream in streams[2:]] == ["the server is shutting down"] * 2
        # That it ends with code 0 is checked where the block is left.


def flood(server: Server, count: int) -> list[int]:
    """Statuses of requests that are sent at the same time; those that are refused say so in the API's own way."""

    async def main() -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=count)
        async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=limits) as client:
            body = {"prompt": "Hi", "max_tokens": 8}
            sent = (client.post(COMPLETIONS, json=body) for _ in range(count))
            return await asyncio.gather(*sent)

    responses = asyncio.run(main())
    for response in responses:
        if response.status_code != 200:
            error_of(response, 429)
            assert int(response.headers["retry-after"]) > 0
    return [response.status_code for response in responses]


def is_refused(server: Server) -> bool:
    try:
        response = server.post({"prompt": "Hi", "max_tokens": 1})
    except httpx.TransportError:
        return True
    return error_of(response, 503)["code"] == "draining" if response.status_code != 200 else False
