"""Responses and events come out the same wherever packets are cut."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bench.exchange import Exchange
from octavo.bench.http import BadResponse, ResponseParser
from octavo.bench.sse import EventParser

EVENTS = (
    b": a comment\r\ndata: one\r\n\r\n"
    b"event: x\ndata:two\ndata: and three\n\n"
    b"id: 7\rdata: \xe2\x82\xac\r\rdata\n\ndata: [DONE]\n\n"
)
EXPECTED = [b"one", b"two\nand three", "€".encode(), b"", b"[DONE]"]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """The data in parts."""
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def chunked(body: bytes, size: int) -> bytes:
    """A chunked body."""
    parts = [body[i : i + size] for i in range(0, len(body), size)]
    return b"".join(b"%x;ext\r\n%b\r\n" % (len(p), p) for p in parts) + b"0\r\nX-Trailer: 1\r\n\r\n"


places = st.lists(st.integers(0, 10_000), max_size=30)


@given(places)
def test_events_do_not_depend_on_packets(where: list[int]) -> None:
    parser = EventParser()
    events = [event for part in cut(EVENTS, where) for event in parser.feed(part)]
    # A field name without a colon has an empty value, and an event whose data is empty is one.
    assert events == EXPECTED


def test_events_byte_by_byte() -> None:
    parser = EventParser()
    assert [e for i in range(len(EVENTS)) for e in parser.feed(EVENTS[i : i + 1])] == EXPECTED


def test_an_event_without_its_blank_line_is_not_one() -> None:
    assert EventParser().feed(b"data: half\n") == []


@given(places, st.integers(1, 40), st.binary(max_size=200))
def test_a_chunked_body_does_not_depend_on_packets(
    where: list[int], size: int, body: bytes
) -> None:
    parser = ResponseParser()
    data = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(body, size)
    assert b"".join(parser.feed(part) for part in cut(data, where)) == body
    assert (parser.status, parser.is_complete, parser.keeps_alive) == (200, True, True)
    assert parser.headers["content-type"] == "text/event-stream"


@given(places)
def test_a_counted_body_after_an_interim_response(where: list[int]) -> None:
    parser = ResponseParser()
    data = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + HEAD + b"Content-Length: 5\r\n\r\nhello"
    assert b"".join(parser.feed(part) for part in cut(data, where)) == b"hello"
    assert parser.keeps_alive


def test_a_body_without_length_ends_with_the_connection() -> None:
    parser = ResponseParser()
    assert parser.feed(HEAD + b"\r\nabc") == b"abc"
    assert not parser.is_complete
    parser.end()
    assert (parser.is_complete, parser.keeps_alive) == (True, False)


@pytest.mark.parametrize(
    "rest", [b"Connection: close\r\nContent-Length: 0\r\n\r\n", b"Content-Length: 0\r\n\r\nextra"]
)
def test_such_a_connection_is_not_used_again(rest: bytes) -> None:
    parser = ResponseParser()
    parser.feed(HEAD + rest)
    assert (parser.is_complete, parser.keeps_alive) == (True, False)


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nabc",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 2000,
        b"x" * 70_000,
    ],
)
def test_nonsense_is_an_error(data: bytes) -> None:
    with pytest.raises(BadResponse):
        ResponseParser().feed(data)


@given(st.binary(max_size=300), places)
def test_any_bytes_end_in_a_record(data: bytes, where: list[int]) -> None:
    exchange = Exchange(0.0)
    for part in cut(HEAD + b"\r\n" + data, where):
        if not exchange.is_done:
            exchange.feed(part, 1.0)
    exchange.close(2.0)
    assert exchange.is_done
    assert exchange.record.error is not None


def chunk(text: str = "", finish: str | None = None, **more: object) -> bytes:
    """An event of a completion."""
    choices = [{"index": 0, "text": text, "finish_reason": finish}]
    return b"data: " + json.dumps({"choices": choices, **more}).encode() + b"\n\n"


USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 4,
    "prompt_tokens_details": {"cached_tokens": 2},
}
STREAM = [
    chunk("a", usage=None),
    chunk("b€"),
    chunk("", "length"),
    b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode() + b"\n\n",
    b"data: [DONE]\n\n",
]


def run(parts: list[bytes], head: bytes = HEAD + b"Content-Length: 100000\r\n\r\n") -> Exchange:
    """An exchange fed one part a second, from 10 s on; it was due at 9 s."""
    exchange = Exchange(9.0)
    exchange.feed(head, 9.5)
    for i, part in enumerate(parts):
        exchange.feed(part, 10.0 + i)
    return exchange


def test_a_whole_stream_is_timed_and_counted_by_its_usage() -> None:
    body = b"".join(STREAM)
    exchange = run(STREAM, HEAD + b"Content-Length: %d\r\n\r\n" % len(body))
    record = exchange.record
    assert (exchange.is_done, record.error) == (True, None)
    assert (record.ttft_s, record.gaps_s, record.e2e_s) == (1.0, [1.0], 5.0)
    assert (record.prompt_tokens, record.completion_tokens, record.cached_tokens) == (9, 4, 2)
    assert record.tpot_s == pytest.approx(1 / 3)
    assert record.has_usage


def test_without_usage_events_are_counted() -> None:
    exchange = run(STREAM[:3], HEAD + b"\r\n")
    exchange.close(20.0)
    record = exchange.record
    assert (record.error, record.has_usage, record.completion_tokens) == (None, False, 2)


def test_a_stream_that_breaks_off_is_a_failure() -> None:
    exchange = run(STREAM[:2])
    exchange.close(20.0)
    assert exchange.record.error == "the server closed the connection in the middle of a response"
    exchange = run(STREAM[:2], HEAD + b"\r\n")
    exchange.close(20.0)
    assert exchange.record.error == "the stream ended without a finish reason"


def test_an_error_is_told_in_the_servers_words() -> None:
    body = b'{"error": {"message": "too long", "code": 400}}'
    head = b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n" % len(body)
    assert run([body], head).record.error == "HTTP 400: too long"
    head = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 4\r\n\r\n"
    assert run([b"oops"], head).record.error == "HTTP 502: oops"
    exchange = run([b'data: {"error": {"message": "died"}}\n\n'])
    exchange.close(20.0)
    assert exchange.record.error == "error in the stream: died"
