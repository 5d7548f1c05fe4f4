"""Slow, dead and greedy clients, over raw sockets; and bodies that would cost much."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import subprocess
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from octavo.errors import InvalidRequest
from octavo.server.body import BodyReader
from octavo.server.config import DEFAULT_MAX_BODY_BYTES, SecurityConfig
from octavo.server.connection import MAX_HEAD_BYTES, MAX_HEADERS, MAX_URL_BYTES
from octavo.server.lifecycle import DrainingServer, bind
from octavo.server.openai_models import ChatRequest, CompletionRequest
from octavo.server.structure import MAX_CONTAINERS, MAX_DEPTH, MAX_VALUES, check_structure
from tests.server.test_lifecycle import ENDLESS, endless
from tests.server.wire import ask, error_of, fake_app, post
from tests.unit.api.fakes import FakeClient, always

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HI = {"messages": [{"role": "user", "content": "Hi"}]}
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


class Guarded:
    """A server on a port of its own, in a thread."""

    def __init__(self, app: FastAPI, security: SecurityConfig) -> None:
        self.app = app
        self.security = security
        self._sock = bind("127.0.0.1", 0)
        self.send_buffer(4096)
        self._sock.listen()
        self.address: tuple[str, int] = self._sock.getsockname()
        is_up = threading.Event()
        self.server = DrainingServer(
            app, 0, on_ready=is_up.set, security=security, tls=security.tls_options()
        )
        self._thread = threading.Thread(target=self.server.run, args=([self._sock],))
        self._thread.start()
        assert is_up.wait(10)

    def send_buffer(self, num_bytes: int) -> None:
        """What the kernel holds for the clients that connect from now on."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, num_bytes)

    def connect(self) -> socket.socket:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(10)
        sock.connect(self.address)
        return sock

    def url(self, scheme: str) -> str:
        return f"{scheme}://127.0.0.1:{self.address[1]}/health"

    def num_dropped(self, reason: str) -> int:
        return self.app.state.server.metrics._drops[reason]  # type: ignore[no-any-return]

    def close(self) -> None:
        self.server.handle_exit(15, None)
        self._thread.join(10)
        assert not self._thread.is_alive()
        self._sock.close()


@contextlib.contextmanager
def guarded(client: FakeClient | None = None, **options: Any) -> Iterator[Guarded]:
    server = Guarded(fake_app(client or FakeClient(always("x"))), SecurityConfig(**options))
    try:
        yield server
    finally:
        server.close()


def read_all(sock: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while part := sock.recv(65536):
            data += part
    return data


def ask_for(completion: Any, sock: socket.socket) -> None:
    body = json.dumps(completion).encode()
    sock.sendall(HEAD + b"content-length: %d\r\n\r\n%b" % (len(body), body))


def status(data: bytes) -> int:
    return int(data.split(b" ")[1])


def until(condition: Any, timeout_s: float = 5) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize(
    "sent",
    [b"", b"POST /v1/comp", HEAD, HEAD + b"content-length: 100\r\n\r\n{",
     HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n"],
    ids=["nothing", "line", "head", "body", "chunks"],
)  # fmt: skip
def test_a_client_that_never_completes_its_request_is_dropped(sent: bytes) -> None:
    with guarded(client_timeout=0.4) as server, server.connect() as sock:
        started = time.monotonic()
        sock.sendall(sent)
        assert status(read_all(sock)) == 408
        assert 0.3 < time.monotonic() - started < 2
        assert server.num_dropped("slow_request") == 1


def test_a_client_that_drips_does_not_hold_a_connection() -> None:
    with guarded(client_timeout=0.4) as server, server.connect() as sock:
        started = time.monotonic()
        with contextlib.suppress(OSError):
            for _ in range(100):
                sock.sendall(b"P" if time.monotonic() < started else b"x")
                time.sleep(0.05)
        assert time.monotonic() - started < 3


def test_a_client_that_does_not_read_loses_its_stream_and_its_request() -> None:
    engine = endless()
    with guarded(engine, client_timeout=0.5) as server, server.connect() as sock:
        ask_for(ENDLESS, sock)
        until(lambda: engine._open)
        until(lambda: not engine._open)
        assert len(engine.aborted) == 1
        assert server.num_dropped("slow_reader") == 1


def test_a_reader_that_the_kernel_gave_up_first_is_counted() -> None:
    engine = endless()
    with guarded(engine, client_timeout=30) as server, server.connect() as sock:
        ask_for(ENDLESS, sock)
        until(lambda: engine._open)
        (connection,) = server.server.server_state.connections
        connection.loop.call_soon_threadsafe(connection.transport._force_close, TimeoutError())
        until(lambda: not engine._open)
        assert server.num_dropped("slow_reader") == 1


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="the kernel does not tell")
def test_an_answer_that_only_the_kernel_holds_is_not_read_either() -> None:
    with guarded(endless(), client_timeout=0.4) as server:
        server.send_buffer(2**20)
        with server.connect() as sock:
            ask_for({"prompt": "x", "max_tokens": 20_000}, sock)
            until(lambda: server.num_dropped("slow_reader") == 1)


def test_a_client_that_reads_slowly_keeps_its_stream() -> None:
    engine = endless()
    with guarded(engine, client_timeout=0.5) as server, server.connect() as sock:
        ask_for(ENDLESS, sock)
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            assert sock.recv(16384)
            time.sleep(0.02)
        assert engine._open
        assert server.num_dropped("slow_reader") == 0


def test_too_large_heads_are_refused() -> None:
    many = b"".join(b"x%d: 1\r\n" % i for i in range(MAX_HEADERS + 1))
    with guarded() as server:
        for sent, expected in (
            (b"GET /" + b"a" * (MAX_URL_BYTES + 1) + b" HTTP/1.1\r\nhost: x\r\n\r\n", 414),
            (HEAD + b"x: " + b"a" * (MAX_HEAD_BYTES + 1) + b"\r\n\r\n", 431),
            (HEAD + many + b"\r\n", 431),
            (HEAD + b"x: " + b"a" * 5 * MAX_HEAD_BYTES, 431),
            (b"GET /" + b"a" * 5 * MAX_HEAD_BYTES, 431),
            (b"nonsense\r\n\r\n", 400),
        ):
            with server.connect() as sock:
                with contextlib.suppress(OSError):
                    sock.sendall(sent)
                answer = read_all(sock)
                assert not answer or status(answer) == expected
        assert httpx.get(server.url("http")).status_code == 200


def test_more_connections_than_allowed_are_refused() -> None:
    with guarded(max_connections=3, client_timeout=5) as server, contextlib.ExitStack() as stack:
        held = [stack.enter_context(server.connect()) for _ in range(3)]
        until(lambda: len(server.server.server_state.connections) == 3)
        with server.connect() as sock:
            assert status(read_all(sock)) == 503
        assert server.num_dropped("too_many_connections") == 1
        held[0].close()
        until(lambda: len(server.server.server_state.connections) == 2)
        assert httpx.get(server.url("http")).status_code == 200


def test_tls_is_spoken_with_the_given_files(tmp_path: Path) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    try:
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=localhost",
             "-addext", "subjectAltName=IP:127.0.0.1"],
            check=True, capture_output=True,
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("no openssl")
    import ssl

    context = ssl.create_default_context(cafile=str(cert))
    with guarded(ssl_keyfile=str(key), ssl_certfile=str(cert)) as server:
        url = server.url("https")
        assert httpx.get(url, verify=context).status_code == 200
    options = {"ssl_keyfile": str(key), "ssl_certfile": str(cert), "ssl_ca_certs": str(cert)}
    with guarded(**options) as server:
        url = server.url("https")
        with pytest.raises(httpx.HTTPError):
            httpx.get(url, verify=context)
        context.load_cert_chain(cert, key)
        assert httpx.get(url, verify=context).status_code == 200
    with pytest.raises(InvalidRequest, match="cannot be used"):
        SecurityConfig(ssl_certfile=str(tmp_path / "none.pem")).tls_options()


MALICIOUS = {
    "list": b'{"prompt":[' + b'"x",' * 100_000 + b'"x"]}',
    "numbers": b'{"prompt":[' + b"1," * 2_000_000 + b"1]}",
    "arrays": b'{"prompt":' + b"[" * 4_000_000,
    "closed": b'{"prompt":[' + b"[]," * 1_300_000 + b"[]]}",
    "objects": b'{"metadata":' + b'{"a":' * 800_000,
    "long number": b'{"prompt":"x","seed":' + b"9" * 4_000_000 + b"}",
    "long fraction": b'{"prompt":"x","temperature":1.' + b"0" * 4_000_000 + b"}",
    "exponent": b'{"prompt":"x","temperature":1e' + b"9" * 900 + b"}",
    "keys": b"{" + b'"a":1,' * 660_000 + b'"prompt":"x"}',
    "utf-8": b'{"prompt":"' + b"\xff" * 1_000_000 + b'"}',
    "surrogate": b'{"prompt":"\\ud800"}',
    "surrogate in stop": b'{"prompt":"x","stop":"\\udfff"}',
    "quotes": b'{"prompt":"' + b'\\"' * 2_000_000,
    "stop": b'{"prompt":"x","stop":"' + b"a" * 1_000_000 + b'"}',
    "stop ids": b'{"prompt":"x","stop_token_ids":[' + b"1," * 5000 + b"1]}",
    "salt": b'{"prompt":"x","cache_salt":"' + b"a" * 1000 + b'"}',
    "n": b'{"prompt":"x","n":1000000}',
    "bias": b'{"prompt":"x","logit_bias":{' + b"".join(b'"%d":1,' % i for i in range(49152)) + b'"1":1}}',
}  # fmt: skip


@pytest.mark.parametrize("name", MALICIOUS)
def test_a_costly_body_is_a_400_within_three_seconds_and_bounded_memory(name: str) -> None:
    content = MALICIOUS[name]
    app = fake_app(always("x"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.monotonic()
    error_of(post(app, COMPLETIONS, content=content))
    assert time.monotonic() - started < 3
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 200 * 1024


@pytest.mark.parametrize("name", ["arrays", "closed", "numbers", "objects", "keys"])
def test_what_a_parser_would_make_of_it_is_never_made(name: str) -> None:
    reader = BodyReader(CompletionRequest)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest):
            reader.decode(MALICIOUS[name])
        assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    finally:
        tracemalloc.stop()


def test_the_limits_of_structure_are_these() -> None:
    check_structure(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    check_structure(b"[" + b"[]," * (MAX_CONTAINERS - 1))
    check_structure(b"[" + b"1," * (MAX_VALUES - 1))
    for data, reason in (
        (b"[" * (MAX_DEPTH + 1), "deeply"),
        (b"[" + b"[]," * MAX_CONTAINERS, "arrays and objects"),
        (b"[" + b"1," * MAX_VALUES, "values"),
    ):
        with pytest.raises(InvalidRequest, match=reason):
            check_structure(data)


def test_a_body_is_judged_while_it_comes() -> None:
    """The first 128 KiB tell: no more is read, and the connection lasts for the next request."""
    too_deep = b"[" * 2**17
    with guarded() as server, server.connect() as sock:
        sock.sendall(HEAD + b"content-length: 4000000\r\n\r\n" + too_deep)
        answer = sock.recv(65536)
        assert status(answer) == 400
        assert b"nested too deeply" in answer
        sock.sendall(b" " * (4_000_000 - len(too_deep)))
        sock.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert status(sock.recv(65536)) == 200


def test_nobody_goes_on_sending_for_ever_after_an_answer() -> None:
    with guarded(max_body_bytes=2**16) as server, server.connect() as sock:
        sock.sendall(b"POST /v1/nope HTTP/1.1\r\nhost: x\r\ncontent-length: 999999999\r\n\r\n")
        assert status(sock.recv(65536)) == 404
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            sock.sendall(bytes(2**28))


def test_the_limit_of_a_body_is_a_flag() -> None:
    app = fake_app(always("x"), security=SecurityConfig(max_body_bytes=2000))
    assert post(app, COMPLETIONS, {"prompt": "x", "user": "u" * 1900}).status_code == 200
    for body in ({"user": "u" * 2000}, {"prompt": "x" * 2000}):
        assert "2000 bytes" in error_of(post(app, CHAT, body), 413)["message"]


@pytest.mark.parametrize("pad", range(5))
def test_what_stands_in_a_string_does_not_count(pad: int) -> None:
    """Strings that end, begin or hold a backslash where one slice ends and the next begins."""
    text = "[{," * 400_000 + "\\" * 70_000 + '"' * 70_000
    for ends in ("", "\\", '"', '\\"'):
        data = json.dumps({"a" * pad: ends * 5 + text + ends, "b": "\\"}).encode()
        check_structure(data)
        with pytest.raises(InvalidRequest):
            check_structure(data + b"[" * (MAX_DEPTH + 1))


def test_a_body_of_text_is_taken_up_to_the_limit() -> None:
    text = "word, " * ((DEFAULT_MAX_BODY_BYTES - 100) // 6)
    body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    parsed = BodyReader(ChatRequest).decode(body)
    assert parsed.value.messages[0]["content"] == text


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:%d/a.png", "http://localhost:%d/", "http://2130706433:%d/",
     "http://[::1]:%d/", "file:///etc/passwd", "http://169.254.169.254/latest/meta-data/"],
)  # fmt: skip
def test_sec_10_no_request_causes_a_connection(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is an ordinary object here: whatever a request does is done in this process."""
    tried: list[object] = []

    def connect(self: socket.socket, address: object) -> None:
        tried.append(address)
        raise OSError("refused by the test")

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        filled = url % listener.getsockname()[1] if "%d" in url else url
        for name in ("connect", "connect_ex"):
            monkeypatch.setattr(socket.socket, name, connect)
        monkeypatch.setattr(socket, "getaddrinfo", connect)
        part = {"type": "image_url", "image_url": {"url": filled}}
        body = {"messages": [{"role": "user", "content": [part]}]}
        response = post(fake_app(always("x")), CHAT, body)
        assert error_of(response)["param"] == "messages[0].content[0]"
        assert "root:" not in response.text
        assert tried == []
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_routes_of_the_engine_take_no_address() -> None:
    app = fake_app(always("x"))
    for body in ({**HI, "model": "http://127.0.0.1:1/x"}, {**HI, "model": "/etc/passwd"}):
        assert error_of(post(app, CHAT, body), 404)
    assert ask(app, "GET", "/v1/models/..%2f..%2fetc%2fpasswd").status_code == 404
