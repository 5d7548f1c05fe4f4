"""Closed and open loops, against a server that is a function and a clock that is a number."""

from __future__ import annotations

import asyncio

import pytest

from octavo.bench.load import closed_loop, open_loop
from octavo.bench.options import LoadConfig
from octavo.bench.stats import RequestRecord
from octavo.errors import InvalidRequest

REQUESTS = [b"%d" % i for i in range(10)]


class Server:
    """Answers each request after a few turns of the event loop; time passes only in `sleep`."""

    def __init__(self, stuck: frozenset[bytes] = frozenset()) -> None:
        self.now_s = 50.0
        self.in_flight = 0
        self.most_in_flight = 0
        self.seen: list[tuple[bytes, float]] = []
        self._stuck = stuck

    def clock(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        await asyncio.sleep(0)

    async def send(self, request: bytes, started_s: float) -> RequestRecord:
        self.seen.append((request, started_s))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        if request in self._stuck:
            await asyncio.Event().wait()
        for _ in range(3):
            await asyncio.sleep(0)
        self.in_flight -= 1
        return RequestRecord(started_s, ended_s=self.now_s)


@pytest.mark.parametrize(("concurrency", "most"), [(1, 1), (3, 3), (64, 10)])
def test_a_closed_loop_keeps_so_many_in_flight(concurrency: int, most: int) -> None:
    server = Server()
    loaded = asyncio.run(
        closed_loop(server.send, REQUESTS, concurrency, timeout_s=5, clock=server.clock)
    )
    assert server.most_in_flight == most
    assert sorted(request for request, _ in server.seen) == REQUESTS
    assert (len(loaded.records), loaded.is_cut) == (10, False)


def test_an_open_loop_sends_at_the_times_of_the_plan() -> None:
    server = Server()
    arrivals = [0.0, 0.0, 0.5, 2.0]
    loaded = asyncio.run(
        open_loop(
            server.send, REQUESTS[:4], arrivals, timeout_s=5, clock=server.clock, sleep=server.sleep
        )
    )
    assert [due for _, due in server.seen] == [50.0, 50.0, 50.5, 52.0]
    assert loaded.duration_s(99.0) == 2.0


def test_an_open_loop_that_is_late_counts_from_when_a_request_was_due() -> None:
    server = Server()

    async def oversleep(seconds: float) -> None:
        await server.sleep(seconds + 10)

    asyncio.run(
        open_loop(
            server.send, REQUESTS[:2], [0.0, 1.0], timeout_s=5, clock=server.clock, sleep=oversleep
        )
    )
    assert server.now_s == 61.0
    assert [due for _, due in server.seen] == [50.0, 51.0]


def test_at_the_timeout_what_has_not_ended_is_left() -> None:
    server = Server(stuck=frozenset({b"1"}))
    loaded = asyncio.run(closed_loop(server.send, REQUESTS, 2, timeout_s=0.05, clock=server.clock))
    assert loaded.is_cut
    assert len(loaded.records) == 9
    assert loaded.duration_s(57.0) == 7.0


def test_levels_are_a_sweep() -> None:
    assert [level.label for level in LoadConfig().levels(())] == ["concurrency 8"]
    closed = LoadConfig(concurrency="1, 8,8,32").levels(())
    assert [level.concurrency for level in closed] == [1, 8, 32]
    assert [level.label for level in LoadConfig(rate="0.5,2").levels(())] == ["rate 0.5", "rate 2"]


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"concurrency": "0"}, "concurrency"),
        ({"concurrency": "1,,2"}, "concurrency"),
        ({"rate": "fast"}, "rate"),
        ({"rate": "nan"}, "rate"),
        ({"rate": "1", "concurrency": "2"}, "rate"),
        ({"num_requests": 0}, "num_requests"),
        ({"timeout": 0.0}, "timeout"),
        ({"slo_ttft_ms": -1.0}, "slo_ttft_ms"),
    ],
)
def test_a_load_that_cannot_be_names_its_flag(options: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        LoadConfig(**options)  # type: ignore[arg-type]
    assert raised.value.param == param
