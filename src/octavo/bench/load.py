"""The two ways to load a server: a closed loop of clients that wait for their answers, an open one that does not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field

from octavo.bench.stats import RequestRecord

Send = Callable[[bytes, float], Awaitable[RequestRecord]]
"""Sends a request that is due at this time; returns what became of it."""
Clock = Callable[[], float]
Sleep = Callable[[float], Awaitable[None]]


@dataclass(slots=True)
class Loaded:
    """What a run left: a record of each request that ended, and whether it was cut short."""

    started_s: float
    records: list[RequestRecord] = field(default_factory=list)
    is_cut: bool = False

    def duration_s(self, now_s: float) -> float:
        """From the start to the last answer, or to now if the run was cut."""
        ends = [record.ended_s for record in self.records if record.ended_s is not None]
        return (now_s if self.is_cut or not ends else max(ends)) - self.started_s


async def closed_loop(
    send: Send, requests: Sequence[bytes], concurrency: int, *, timeout_s: float, clock: Clock
) -> Loaded:
    """`concurrency` clients, each of which sends its next request when the answer to the last is whole."""
    loaded = Loaded(clock())
    waiting = iter(requests)

    async def client() -> None:
        for request in waiting:
            loaded.records.append(await send(request, clock()))

    await _together(loaded, [client() for _ in range(min(concurrency, len(requests)))], timeout_s)
    return loaded


async def open_loop(
    send: Send,
    requests: Sequence[bytes],
    arrivals: Sequence[float],
    *,
    timeout_s: float,
    clock: Clock,
    sleep: Sleep = asyncio.sleep,
) -> Loaded:
    """Each request is sent at its time, in seconds from the start, whatever became of those before."""
    loaded = Loaded(clock())

    async def one(request: bytes, due_s: float) -> None:
        loaded.records.append(await send(request, due_s))

    async def dispatch() -> None:
        async with asyncio.TaskGroup() as group:
            for request, arrival in zip(requests, arrivals, strict=True):
                due_s = loaded.started_s + arrival
                if (wait_s := due_s - clock()) > 0:
                    await sleep(wait_s)
                group.create_task(one(request, due_s))

    await _together(loaded, [dispatch()], timeout_s)
    return loaded


async def _together(
    loaded: Loaded, tasks: Sequence[Coroutine[None, None, None]], timeout_s: float
) -> None:
    """Run these to their end; at the timeout cancel what has not ended."""
    try:
        async with asyncio.timeout(timeout_s), asyncio.TaskGroup() as group:
            for task in tasks:
                group.create_task(task)
    except TimeoutError:
        loaded.is_cut = True
