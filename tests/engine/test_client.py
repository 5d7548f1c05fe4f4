"""The engine in a thread: accepted requests end once, from any thread, in any order of events."""

from __future__ import annotations

import time

import pytest

from octavo.engine import client as client_module
from octavo.engine.client import InProcessClient, ThreadedClient
from octavo.errors import EngineDead, InvalidRequest
from octavo.messages import StepOutputs
from tests.engine.fakes import Collected, Inbox, fake_engine, request, run_all


def test_threaded_answers_equal_in_process_answers() -> None:
    messages = [request(f"r{i}", range(i + 1), n=2, temperature=1.0) for i in range(8)]
    expected = run_all(fake_engine()[0], messages).token_ids
    inbox = Inbox()
    client = ThreadedClient(fake_engine()[0], on_outputs=inbox)
    for message in messages:
        client.add(message)
    inbox.wait_for(16)
    assert inbox.collected.token_ids == expected
    assert client.stats().num_free_blocks == client.info.num_blocks
    client.close()
    client.close()


def test_in_process_client_runs_a_step_per_call() -> None:
    client = InProcessClient(fake_engine()[0])
    client.add(request("a", [1, 2], max_tokens=3, eos=[]))
    assert [len(client.outputs().outputs) for _ in range(4)] == [1, 1, 1, 0]
    assert client.stats().num_generated_tokens == 3
    client.close()


def test_a_request_that_arrives_during_a_run_waits_for_one_step() -> None:
    def arrive(_: object) -> float:
        if len(executor.batches) == 8:
            client.add(request("b", [7] * 5, max_tokens=1, eos=[]))
        return 0.0049

    inbox = Inbox()
    engine, executor = fake_engine(seconds=arrive)
    client = ThreadedClient(engine, on_outputs=inbox)
    client.add(request("a", [1, 2], max_tokens=100, eos=[]))
    inbox.wait_for(2)
    assert [len(batch.token_ids) for batch in executor.batches[7:10]] == [1, 6, 1]
    client.close()


def test_abort_from_another_thread_ends_an_endless_request() -> None:
    inbox = Inbox()
    client = ThreadedClient(
        fake_engine(num_blocks=9999, max_model_len=100_000)[0], on_outputs=inbox
    )
    client.add(request("a", [1], max_tokens=90_000, eos=[]))
    with inbox.changed:
        assert inbox.changed.wait_for(lambda: ("a", 0) in inbox.collected.token_ids, timeout=20)
    client.abort(["a", "unknown"])
    inbox.wait_for(1)
    assert inbox.collected.reason("a") == "abort"
    client.close()


@pytest.mark.parametrize("comes", [True, False])
def test_no_step_is_computed_while_an_announced_abort_is_on_its_way(
    monkeypatch: pytest.MonkeyPatch, comes: bool
) -> None:
    monkeypatch.setattr(client_module, "_ANNOUNCED_S", 20 if comes else 0.01)
    inbox, announced = Inbox(), [0]
    engine, executor = fake_engine(num_blocks=9999, max_model_len=100_000)
    client = ThreadedClient(engine, on_outputs=inbox, num_announced_aborts=lambda: announced[0])
    client.add(request("a", [1], max_tokens=90_000, eos=[]))
    inbox.wait_until(lambda _: inbox.num_tokens("a") > 10)
    announced[0] += 1
    time.sleep(0.2)  # the run of steps at hand is over
    num_steps = len(executor.batches)
    time.sleep(0.05)
    assert (len(executor.batches) == num_steps) == comes
    client.abort(["a"])
    inbox.wait_for(1)
    assert inbox.collected.reason("a") == "abort"
    client.close()


def test_close_ends_what_is_in_flight() -> None:
    inbox = Inbox()
    engine, executor = fake_engine(num_blocks=9999, max_model_len=100_000)
    client = ThreadedClient(engine, on_outputs=inbox)
    for i in range(4):
        client.add(request(f"r{i}", [1], n=2, temperature=1.0, max_tokens=90_000, eos=[]))
    client.close()
    assert len(inbox.collected.ends) == 8
    assert {end.finish_reason for end in inbox.collected.ends.values()} == {"abort"}
    assert executor.num_closed > 0
    with pytest.raises(EngineDead):
        client.add(request("late", [1]))


def test_wrong_request_is_refused_in_the_callers_thread() -> None:
    inbox = Inbox()
    client = ThreadedClient(fake_engine()[0], on_outputs=inbox)
    with pytest.raises(InvalidRequest, match="empty"):
        client.add(request("a", []))
    client.add(request("a", [1], max_tokens=200, eos=[]))
    with pytest.raises(InvalidRequest, match="in use"):
        client.add(request("a", [1]))
    inbox.wait_for(1)
    client.close()


def test_executor_fault_ends_every_accepted_request_and_refuses_the_next() -> None:
    inbox = Inbox()
    engine, executor = fake_engine()
    executor.fault = RuntimeError("broken")
    client = ThreadedClient(engine, on_outputs=inbox)
    accepted = 0
    for i in range(5):
        try:
            client.add(request(f"r{i}", [1], n=2, temperature=1.0))
        except EngineDead:
            break
        accepted += 1
    inbox.wait_for(2 * accepted)
    assert {end.finish_reason for end in inbox.collected.ends.values()} == {"error"}
    with pytest.raises(EngineDead, match="broken"):
        client.add(request("late", [1]))
    client.close()


def test_callback_that_fails_does_not_stop_the_engine() -> None:
    inbox = Inbox()
    num_failures = 0

    def on_outputs(outputs: StepOutputs) -> None:
        nonlocal num_failures
        if num_failures < 3:
            num_failures += 1
            raise RuntimeError("the loop is closed")
        inbox(outputs)

    client = ThreadedClient(fake_engine()[0], on_outputs=on_outputs)
    client.add(request("a", [1], max_tokens=40, eos=[]))
    inbox.wait_for(1)
    client.close()


def test_without_callback_outputs_wait_to_be_fetched() -> None:
    client = ThreadedClient(fake_engine()[0])
    client.add(request("a", [1], max_tokens=3, eos=[]))
    collected = Collected()
    while not collected.ends:
        collected.take(client.outputs().outputs)
    assert len(collected.token_ids["a", 0]) == 3
    client.close()


def test_a_reset_is_done_on_return_whatever_the_engine_does() -> None:
    client = ThreadedClient(fake_engine()[0], on_outputs=(inbox := Inbox()))
    for num_ends, name in enumerate(("a", "b"), 1):
        client.add(request(name, range(40), max_tokens=1, eos=[]))
        inbox.wait_for(num_ends)
        client.reset_prefix_cache()
        assert client.stats().num_cached_blocks == 0
    client.add(request("c", range(40), max_tokens=200, eos=[]))
    client.reset_prefix_cache()
    client.close()
    client.reset_prefix_cache()


def test_idle_time_is_used_for_checks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.engine.client._IDLE_S", 0.02)
    engine, _ = fake_engine()
    num_checks = 0

    def check() -> None:
        nonlocal num_checks
        num_checks += 1
        raise AssertionError("3 blocks are held by nobody")

    monkeypatch.setattr(engine, "check_invariants", check)
    inbox = Inbox()
    client = ThreadedClient(engine, on_outputs=inbox)
    time.sleep(0.3)
    assert (num_checks, client.stats().num_broken_invariants) == (1, 1)
    client.add(request("a", [1], max_tokens=3, eos=[]))
    inbox.wait_for(1)
    time.sleep(0.3)
    assert num_checks == 2
    client.close()


def test_idle_engine_uses_no_cpu() -> None:
    client = ThreadedClient(fake_engine()[0])
    started = time.process_time()
    client._thread.join(timeout=0.3)
    assert time.process_time() - started < 0.1
    client.close()


def test_the_first_token_is_predicted_from_what_steps_cost() -> None:
    engine, _ = fake_engine(
        num_blocks=999, max_model_len=4096, seconds=lambda batch: 0.001 * len(batch.token_ids)
    )
    inbox = Inbox()
    client = ThreadedClient(engine, on_outputs=inbox)
    assert client.predict_first_token_s(100) is None
    for i, length in enumerate((64, 100, 150, 200, 300)):
        client.add(request(str(i), [i + 1] * length, max_tokens=1, eos=[]))
        inbox.wait_for(i + 1)
    assert client.predict_first_token_s(200) == pytest.approx(0.2, rel=0.05)
    client.close()
