"""Who goes first, who gives way, and how long a step may take."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.engine.step_model import MIN_PREFILL_TOKENS, StepLoad, StepModel
from octavo.ops.protocol import Batch
from tests.engine.fakes import Collected, fake_engine, request, run_all


def rows_of(batch: Batch) -> list[int]:
    return [int(n) for n in batch.query_start[1:] - batch.query_start[:-1]]


def test_decode_goes_first_and_prefill_gets_the_rest_of_the_budget() -> None:
    engine, executor = fake_engine(max_num_batched_tokens=20)
    engine.add(request("a", range(10), eos=[]))
    engine.step()
    engine.add(request("b", range(50), eos=[]))
    engine.step()
    assert rows_of(executor.batches[-1]) == [1, 19]


@pytest.mark.parametrize("budget", [1, 2, 3])
def test_token_budget_below_the_number_of_sequences_serves_the_oldest_first(budget) -> None:
    engine, executor = fake_engine(max_num_batched_tokens=budget, max_num_seqs=8)
    requests = [request(f"r{i}", [i, i + 1, i + 2], max_tokens=5, eos=[]) for i in range(6)]
    got = run_all(engine, requests)
    assert all(len(got.token_ids[f"r{i}", 0]) == 5 for i in range(6))
    assert max(len(b.token_ids) for b in executor.batches) <= budget
    assert list(got.ends) == [(f"r{i}", 0) for i in range(6)]


def test_lower_priority_number_is_started_first_then_the_older() -> None:
    engine, _ = fake_engine(max_num_seqs=1)
    for name, priority in (("low", 5), ("mid", 1), ("high", 0), ("mid2", 1)):
        engine.add(request(name, [1, 2], max_tokens=2, eos=[], priority=priority))
    collected = Collected()
    while engine.has_work:
        collected.take(engine.step().outputs)
    assert [name for name, _ in collected.ends] == ["high", "mid", "mid2", "low"]


def test_preemption_takes_the_lowest_priority_then_the_youngest_and_resumes_it_first() -> None:
    engine, _ = fake_engine(num_blocks=7, max_num_seqs=4)
    engine.add(request("a", range(30), max_tokens=60, eos=[], priority=1))
    engine.add(request("b", range(30), max_tokens=60, eos=[], priority=1))
    engine.add(request("vip", range(30), max_tokens=60, eos=[], priority=0))
    engine.add(request("late", range(30), max_tokens=60, eos=[], priority=1))
    collected = Collected()
    preempted_at_end = {}
    while engine.has_work:
        for output in engine.step().outputs:
            collected.take([output])
            if output.finish_reason:
                preempted_at_end[output.request_id] = output.num_preemptions
        engine.check_invariants()
    assert preempted_at_end["vip"] == 0
    assert preempted_at_end["b"] > 0
    order = [name for name, _ in collected.ends]
    assert order.index("vip") < order.index("a") < order.index("b") < order.index("late")


def test_prefill_that_runs_short_takes_the_blocks_of_a_lower_priority_in_the_same_step() -> None:
    engine, _ = fake_engine(num_blocks=9, max_num_batched_tokens=5)
    alone = run_all(fake_engine()[0], [request("low", range(10), max_tokens=60, eos=[])])
    engine.add(request("low", range(10), max_tokens=60, eos=[], priority=1))
    collected = Collected()
    for _ in range(3):
        collected.take(engine.step().outputs)
    engine.add(request("vip", [3] * 112, max_tokens=2, eos=[], priority=0))
    while engine.has_work:
        collected.take(engine.step().outputs)
        engine.check_invariants()
    assert collected.ends["low", 0].num_preemptions > 0
    assert collected.token_ids["low", 0] == alone.token_ids["low", 0]
    assert (collected.reason("low"), collected.reason("vip")) == ("length", "length")


def test_prompts_that_do_not_fit_together_run_one_after_the_other() -> None:
    engine, _ = fake_engine(num_blocks=8, max_num_batched_tokens=16)
    run_all(
        engine,
        [request(f"r{i}", range(60), n=2, max_tokens=0, prompt_logprobs=0) for i in range(2)],
    )
    run_all(engine, [request(f"r{i}", [i] * 90, max_tokens=5, eos=[]) for i in range(3)])
    assert engine.stats().num_preemptions == 0


def test_short_request_is_not_held_up_by_a_long_prompt() -> None:
    engine, executor = fake_engine(max_num_batched_tokens=16, max_model_len=256)
    engine.add(request("short", [1, 2], max_tokens=8, eos=[]))
    engine.step()
    engine.add(request("long", [3] * 200, max_tokens=2, eos=[]))
    collected = Collected()
    for _ in range(7):
        collected.take(engine.step().outputs)
    assert collected.reason("short") == "length"
    assert all(rows_of(b) == [1, 15] for b in executor.batches[1:])


def per_token(seconds: float, base: float):
    return lambda batch: base + seconds * int(sum(n for n in rows_of(batch) if n > 1))


def test_prefill_is_cut_to_the_time_limit_only_while_others_decode() -> None:
    engine, executor = fake_engine(
        max_num_batched_tokens=128,
        max_step_s=0.2,
        seconds=per_token(0.004, 0.02),
        max_model_len=4096,
        num_blocks=999,
    )
    engine.add(request("a", [1] * 256, max_tokens=200, eos=[]))
    for _ in range(10):
        engine.step()
    assert rows_of(executor.batches[0]) == [128]
    assert rows_of(executor.batches[1]) == [128], "alone, a prompt is not cut"
    for i in range(3):
        engine.add(request(f"b{i}", [2 + i] * 300, max_tokens=2, eos=[]))
    before = len(executor.batches)
    started = executor.clock.now
    sizes = []
    while any(sum(n for n in rows_of(b) if n > 1) == 0 for b in executor.batches[before:]) is False:
        engine.step()
        sizes.append(sum(n for n in rows_of(executor.batches[-1]) if n > 1))
        assert executor.clock.now - started <= 0.2001
        started = executor.clock.now
    assert max(sizes) in (32, 48), (
        "(0.2 - 0.02) / 0.004 = 45 tokens, in whole sixteens, with forks of the last chunk"
    )
    assert sum(sizes) >= 890


def test_prefill_advances_by_16_tokens_even_if_every_step_is_too_long() -> None:
    engine, executor = fake_engine(max_step_s=0.2, seconds=per_token(0.1, 5.0))
    engine.add(request("a", [1] * 32, max_tokens=100, eos=[]))
    engine.step()
    engine.step()
    engine.add(request("b", [2] * 100, max_tokens=2, eos=[]))
    engine.step()
    assert rows_of(executor.batches[-1]) == [1, MIN_PREFILL_TOKENS]


def cost(load: StepLoad) -> float:
    decode_s = 0.0006 * load.num_decoding + 2e-6 * load.decode_positions
    return 0.004 + decode_s + 0.0004 * load.num_prefill_tokens + 1e-7 * load.prefill_positions


def some_load(rng: np.random.Generator, *, is_prefill: bool) -> StepLoad:
    num_decoding, num_prefill = rng.integers(1, 20), 16 * rng.integers(1, 20) if is_prefill else 0
    decode_positions, mean = num_decoding * rng.integers(50, 1000), rng.integers(10, 3000)
    return StepLoad(num_decoding, decode_positions, num_prefill, num_prefill * mean)


def test_step_model_finds_prices_under_noise() -> None:
    rng, model = np.random.default_rng(3), StepModel()
    for i in range(160):
        load = some_load(rng, is_prefill=i % 2 == 0)
        is_wild = i % 7 == 0
        model.observe(load, cost(load) * (20 if is_wild else rng.uniform(0.95, 1.05)))
    for is_prefill in (False, True):
        load = some_load(rng, is_prefill=is_prefill)
        assert model.estimate(load) == pytest.approx(cost(load), rel=0.15)
    decoding = some_load(rng, is_prefill=False)
    model.observe(decoding, cost(decoding))
    for position in (0, 6000):
        num_tokens = model.max_prefill_tokens(0.2, position)
        assert num_tokens % MIN_PREFILL_TOKENS == 0
        step = decoding._replace(
            num_prefill_tokens=num_tokens,
            prefill_positions=num_tokens * (position + num_tokens / 2),
        )
        assert cost(step) == pytest.approx(0.2, rel=0.15)


@pytest.mark.parametrize("is_prefill", [False, True])
def test_step_model_follows_a_machine_that_gets_slower_at_one_kind_of_work(is_prefill) -> None:
    rng, model = np.random.default_rng(4), StepModel()
    for i in range(212):
        load, is_slow = some_load(rng, is_prefill=i % 2 == 0), i >= 200
        base = cost(load._replace(num_prefill_tokens=0, prefill_positions=0))
        prompts = cost(load) - base
        model.observe(
            load,
            base + prompts * (1 + (is_slow and is_prefill)) + base * (is_slow and not is_prefill),
        )
    load = some_load(rng, is_prefill=is_prefill)
    base = cost(load._replace(num_prefill_tokens=0, prefill_positions=0))
    expected = base + 2 * (cost(load) - base) if is_prefill else 2 * base
    assert model.estimate(load) == pytest.approx(expected, rel=0.1)


def test_step_model_takes_what_it_has_not_seen_in_the_usual_proportion() -> None:
    model = StepModel()
    model.observe(StepLoad(0, 0, 100, 5000), 0.113)
    estimate = model.estimate(StepLoad(0, 0, 500, 500 * 250))
    assert estimate is not None
    assert 0.3 < estimate < 0.8


def test_step_model_is_cautious_before_it_knows_anything() -> None:
    model = StepModel()
    assert model.estimate(StepLoad(0, 0, 10, 0)) is None
    assert MIN_PREFILL_TOKENS <= model.max_prefill_tokens(0.2, 0) <= 64


def test_step_that_was_interrupted_is_chosen_again() -> None:
    engine, executor = fake_engine()
    alone = run_all(engine, [request("a", range(20), n=2, temperature=1.0, eos=[])]).token_ids
    engine.add(request("a", range(20), n=2, temperature=1.0, eos=[]))
    collected = Collected()
    for step in range(100):
        if step in (1, 2, 5):
            executor.fault = KeyboardInterrupt()  # type: ignore[assignment]
            with pytest.raises(KeyboardInterrupt):
                engine.step()
            executor.fault = None
        collected.take(engine.step().outputs)
        engine.check_invariants()
        if not engine.has_work:
            break
    assert collected.token_ids == alone
