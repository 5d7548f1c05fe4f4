"""A bounded queue: refused at once, with a time to come back."""

from __future__ import annotations

import pytest

from octavo.config import QueueLimits
from octavo.engine.client import ThreadedClient
from octavo.engine.queue_limit import WaitingRoom
from octavo.errors import QueueFull
from tests.engine.fakes import fake_engine, request


def test_more_requests_than_may_wait_are_refused_until_one_has_its_first_token() -> None:
    room = WaitingRoom(QueueLimits(max_requests=2))
    for name in ("a", "b"):
        room.admit(request(name, [1]), 0.0)
    with pytest.raises(QueueFull, match="2 requests wait already, 2 may: try again in 1 s"):
        room.admit(request("c", [1]), 0.0)
    room.leave("a", 30.0)
    room.leave("a", 99.0)  # its later tokens
    room.admit(request("c", [1]), 30.0)
    with pytest.raises(QueueFull) as full:
        room.admit(request("d", [1]), 30.0)
    assert full.value.retry_after_s == 7  # a fifth of the way from 1 to 30 seconds


def test_prompt_tokens_are_bounded_but_one_prompt_may_always_wait() -> None:
    room = WaitingRoom(QueueLimits(max_tokens=10))
    room.admit(request("long", range(50)), 0.0)
    with pytest.raises(QueueFull, match="50 tokens wait already, with this one more than 10"):
        room.admit(request("short", [1]), 0.0)
    room.leave("long", 1.0)
    room.admit(request("short", range(10)), 1.0)


def test_the_client_refuses_and_takes_up_again() -> None:
    engine, _ = fake_engine()
    client = ThreadedClient(engine, limits=QueueLimits(max_requests=0))
    with pytest.raises(QueueFull):
        client.add(request("a", [1]))
    client.close()
    client = ThreadedClient(fake_engine()[0], limits=QueueLimits(max_requests=1))
    for name in ("a", "b"):
        client.add(request(name, [1], max_tokens=2, eos=[]))
        while not any(output.finish_reason for output in client.outputs().outputs):
            pass
    client.close()
