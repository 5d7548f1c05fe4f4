"""A request may say how long it would wait: one that was not begun by then ends, others are not touched."""

from __future__ import annotations

from octavo.messages import AddRequest
from tests.engine.fakes import Collected, fake_engine, request, run_all


def waiting(name: str, max_wait_ms: int | None, **params: object) -> AddRequest:
    message = request(name, range(ord(name[0]) % 7, 20), eos=[], **params)
    message.max_wait_ms = max_wait_ms
    return message


def test_who_was_not_begun_in_time_ends_and_nobody_else() -> None:
    engine, executor = fake_engine(max_num_seqs=1)  # 10 ms a step
    messages = [
        waiting("first", 5, max_tokens=30),  # begun at once, whatever it takes
        waiting("late", 100, max_tokens=5, n=2),
        waiting("patient", 10_000, max_tokens=5),
        waiting("endless", None, max_tokens=5),
    ]
    got = run_all(engine, messages)
    reasons = {key: end.finish_reason for key, end in got.ends.items()}
    assert reasons == {
        ("first", 0): "length",
        ("late", 0): "error",
        ("late", 1): "error",
        ("patient", 0): "length",
        ("endless", 0): "length",
    }
    late = got.ends["late", 0]
    assert late.error_code == "max_wait_exceeded"
    assert late.error == "not begun within 0.1 s (max_wait_ms)"
    assert got.ends["late", 1].error == late.error
    alone = run_all(fake_engine()[0], [waiting("patient", 10_000, max_tokens=5)])
    assert got.token_ids["patient", 0] == alone.token_ids["patient", 0]
    assert executor.clock.now < 1


def test_who_was_begun_may_be_preempted_for_any_time() -> None:
    engine, _ = fake_engine(num_blocks=6)
    for message in (waiting("a", 60, max_tokens=60), waiting("b", 60, max_tokens=60)):
        engine.add(message)
    got = Collected()
    while engine.has_work:
        got.take(engine.step().outputs)
    assert engine.stats().num_preemptions > 0
    assert {end.finish_reason for end in got.ends.values()} == {"length"}


def test_choices_that_wait_for_a_slot_are_begun_with_their_siblings() -> None:
    engine, _ = fake_engine(max_num_seqs=1)
    got = run_all(engine, [waiting("a", 50, n=2, max_tokens=20)])
    assert {end.finish_reason for end in got.ends.values()} == {"length"}
