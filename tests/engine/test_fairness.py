"""Tenants get their share, whatever others send."""

from __future__ import annotations

import pytest

from octavo.engine.engine import Engine
from octavo.engine.fairness import TenantCounters
from octavo.messages import AddRequest
from tests.engine.fakes import VOCAB, Collected, fake_engine, request, run_all

CHUNK = 64


def of(tenant: str, name: str, length: int = 100, **params: object) -> AddRequest:
    """A request of its own text; `priority` as in `request`."""
    seed = sum(name.encode()) % VOCAB
    message = request(
        name, [seed, *((seed * i) % VOCAB for i in range(length - 1))], eos=[], **params
    )
    message.tenant = tenant
    return message


def steps_to_first_token(engine: Engine, name: str, max_steps: int = 4000) -> int:
    """Engine steps until a request's first token came."""
    for _ in range(max_steps):
        before = engine.stats().num_steps
        outputs = engine.step()
        engine.check_invariants()
        if any(o.request_id == name and o.token_ids for o in outputs.outputs):
            return before + 1
    raise AssertionError(f"{name} got no token")


def big_engine(**limits: object) -> Engine:
    options = {"num_blocks": 4000, "max_num_seqs": 16, "max_num_batched_tokens": CHUNK}
    return fake_engine(**{**options, **limits})[0]  # type: ignore[arg-type]


def steps_alone(length: int) -> int:
    """Steps to the first token of a tenant's single request, with nobody else there."""
    engine = big_engine()
    engine.add(of("b", "single", length))
    return steps_to_first_token(engine, "single")


def steps_behind_a_flood(length: int, num_steps_before: int) -> int:
    """The same, from its arrival on, so many steps after another tenant sent 200 requests."""
    engine = big_engine()
    for i in range(200):
        engine.add(of("a", f"flood {i}", 50 + i % 150, max_tokens=60))
    for _ in range(num_steps_before):
        engine.step()
    before = engine.stats().num_steps
    engine.add(of("b", "single", length))
    return steps_to_first_token(engine, "single") - before


@pytest.mark.parametrize("num_steps_before", [0, 1, 5, 40])
@pytest.mark.parametrize("length", [20, 100, 200])
def test_a_flood_delays_another_tenants_first_token_threefold_at_most(
    num_steps_before: int, length: int
) -> None:
    unloaded = steps_alone(length)
    assert steps_behind_a_flood(length, num_steps_before) <= 3 * unloaded + 1


def test_two_tenants_that_flood_get_the_same() -> None:
    engine = big_engine()
    for i in range(60):
        for tenant, length in (("a", 30), ("b", 150)):
            engine.add(of(tenant, f"{tenant} {i}", length, max_tokens=20))
    scheduler = engine._scheduler
    num_steps = 0
    while {request.tenant for request in scheduler.waiting} == {"a", "b"}:
        engine.step()
        num_steps += 1
        # What one of them can be ahead: the prompt that was started last, and what runs.
        assert abs(scheduler._counters["a"] - scheduler._counters["b"]) < 150 + 16 * 40
    assert num_steps > 50


def test_the_only_requests_of_two_tenants_do_not_take_turns_at_every_step() -> None:
    engine = big_engine(max_num_seqs=1, seconds=lambda _: 1.0, max_model_len=4096)
    got = run_all(engine, [of(t, t, 40, max_tokens=1500) for t in ("a", "b")])
    assert 1 <= engine.stats().num_preemptions <= 12
    assert {end.finish_reason for end in got.ends.values()} == {"length"}


def test_priority_comes_before_fairness() -> None:
    engine = big_engine(max_num_seqs=1)
    engine.add(of("a", "first", max_tokens=30, priority=0))
    engine.step()
    engine.add(of("b", "less urgent", max_tokens=1, priority=1))
    engine.add(of("c", "urgent", max_tokens=1, priority=-1))
    order = []
    while engine.has_work:
        order += [o.request_id for o in engine.step().outputs if o.finish_reason]
    assert order == ["first", "urgent", "less urgent"]  # who runs is not stopped for it


def test_what_is_cached_goes_first_but_nobody_is_passed_over_for_long() -> None:
    for seconds, expected in ((0.01, ["warm", "cold"]), (1.0, ["cold", "warm"])):
        engine = big_engine(max_num_seqs=1, seconds=lambda _, s=seconds: s)
        run_all(engine, [of("a", "warm", max_tokens=1)])
        engine.add(of("a", "busy", 20, max_tokens=4))
        engine.step()
        engine.add(of("a", "cold", max_tokens=1))
        again = of("a", "warm", max_tokens=1)
        engine.add(again)
        order = []
        while engine.has_work:
            order += [o.request_id for o in engine.step().outputs if o.finish_reason]
        assert order[1:] == expected


def test_the_cheapest_of_those_behind_is_preempted() -> None:
    engine = big_engine(num_blocks=14, max_num_batched_tokens=512)
    messages = [
        of("a", name, length, max_tokens=60) for name, length in (("x", 60), ("y", 90), ("z", 20))
    ]
    got = Collected()
    for message in messages:
        engine.add(message)
    while engine.stats().num_preemptions == 0:
        got.take(engine.step().outputs)
    assert [r.request_id for r in engine._scheduler.waiting] == ["z"]
    while engine.has_work:
        got.take(engine.step().outputs)
    assert len(got.ends) == 3


def test_a_tenant_that_comes_back_has_no_credit_and_no_forgotten_debt() -> None:
    counters = TenantCounters()
    counters.enter("a")
    counters.charge("a", 1000)
    counters.enter("b")
    assert counters["b"] == 1000
    counters.charge("b", 500)
    counters.leave("b")
    counters.enter("b")
    assert counters["b"] == 1500
    for i in range(6000):
        counters.enter(f"t{i}")
        counters.leave(f"t{i}")
    assert len(counters._tokens) < 4200
