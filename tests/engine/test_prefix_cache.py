"""What requests have in common is computed once, and nothing of it shows in the answers."""

from __future__ import annotations

import pytest

from octavo.cache.manager import PrefixMiss
from octavo.cache.radix_tree import MissReason
from octavo.engine.engine import Engine
from octavo.kv_layout import BLOCK_SIZE
from tests.engine.fakes import VOCAB, Collected, FakeExecutor, fake_engine, request, run_all
from tests.engine.test_equality import answers, workload

SHARED = [i % VOCAB for i in range(200)]


def num_computed(executor: FakeExecutor) -> int:
    return sum(len(batch.token_ids) for batch in executor.batches)


def own_part(i: int) -> list[int]:
    return [(i * 7 + j * j) % VOCAB for j in range(30)]


@pytest.mark.parametrize("num_shared", [5, 16, 100, 199])
def test_one_after_another_the_shared_part_is_computed_once(num_shared: int) -> None:
    engine, executor = fake_engine(num_blocks=400)
    shared = [VOCAB - 1, *SHARED[: num_shared - 1]]
    for i in range(6):
        run_all(engine, [request(f"r{i}", [*shared, i, *own_part(i)], max_tokens=1, eos=[])])
    assert num_computed(executor) == num_shared + 6 * 31


@pytest.mark.parametrize("chunk", [16, 64, 512])
def test_sent_together_the_shared_part_is_computed_once_but_for_a_block(chunk: int) -> None:
    engine, executor = fake_engine(num_blocks=400, max_num_seqs=16, max_num_batched_tokens=chunk)
    messages = [
        request(f"r{i}", [*SHARED, i, *own_part(i)], max_tokens=1, eos=[]) for i in range(10)
    ]
    run_all(engine, messages)
    ideal = len(SHARED) + 10 * 31
    assert ideal <= num_computed(executor) <= ideal + 10 * BLOCK_SIZE


def test_who_waits_for_a_block_goes_on_when_its_maker_is_gone() -> None:
    engine, executor = fake_engine(max_num_batched_tokens=32)
    engine.add(request("a", [*SHARED, 1], max_tokens=1, eos=[]))
    engine.add(request("b", [*SHARED, 2], max_tokens=1, eos=[]))
    engine.step()
    assert engine.stats().num_running == 1
    engine.abort(["a"])
    got = Collected()
    while engine.has_work:
        got.take(engine.step().outputs)
        engine.check_invariants()
    assert got.reason("b") == "length"
    assert num_computed(executor) == len(SHARED) + 1
    assert engine.stats().num_cached_tokens == 32


def test_the_next_turn_of_a_conversation_computes_what_is_new() -> None:
    for seconds in (1.0, 0.001):  # step by step; several steps a call
        engine, executor = fake_engine(seconds=lambda _, s=seconds: s)
        got = run_all(engine, [request("a", SHARED[:50], max_tokens=41, eos=[])])
        before = num_computed(executor)
        turn = [*SHARED[:50], *got.token_ids["a", 0], 3, 4, 5]
        after = run_all(engine, [request("b", turn, max_tokens=1, eos=[])])
        # The last sampled token was never an input.
        assert num_computed(executor) - before == 4
        assert after.ends["b", 0].num_cached_tokens == 90


def test_answers_are_the_same_cold_and_warm() -> None:
    cold = answers(workload())
    engine, _ = fake_engine(num_blocks=999)
    for _ in range(2):
        got = run_all(engine, workload())
        tokens = {key: (ids, got.ends[key].finish_reason) for key, ids in got.token_ids.items()}
        assert (tokens, got.prompt_scores) == cold
    assert engine.stats().num_cached_tokens > 300


@pytest.mark.parametrize("num_blocks", [8, 12, 20])
def test_answers_are_the_same_after_eviction(num_blocks: int) -> None:
    cold = answers(workload())
    engine, _ = fake_engine(num_blocks=num_blocks)
    for seed in (0, 1, 0, 2, 0):
        got = run_all(engine, workload(seed))
        if seed == 0:
            tokens = {key: (ids, got.ends[key].finish_reason) for key, ids in got.token_ids.items()}
            assert (tokens, got.prompt_scores) == cold


def test_a_request_that_wants_prompt_scores_computes_all_of_it_and_shares_its_blocks() -> None:
    engine, executor = fake_engine()
    prompt = SHARED[:64]
    run_all(engine, [request("a", prompt, max_tokens=1, eos=[])])
    engine.add(request("b", prompt, max_tokens=40, prompt_logprobs=1, eos=[]))
    engine.step()
    assert len(executor.batches[-1].token_ids) == 64
    assert engine.stats().num_free_blocks == engine.stats().num_blocks - 4
    assert engine.stats().num_cached_blocks == 0
    engine.abort(["b"])


def test_salts_and_the_switch_keep_requests_apart() -> None:
    engine, executor = fake_engine()
    for salt in ("x", "y", None):
        message = request(f"r{salt}", SHARED[:40], max_tokens=1, eos=[])
        message.cache_salt = salt
        run_all(engine, [message])
    assert num_computed(executor) == 3 * 40
    off, executor = fake_engine(is_caching=False)
    for name in ("a", "b"):
        run_all(off, [request(name, SHARED[:40], max_tokens=1, eos=[])])
    assert num_computed(executor) == 2 * 40


def test_reset_makes_the_next_request_cold() -> None:
    engine, executor = fake_engine()
    for name in ("a", "b"):
        run_all(engine, [request(name, SHARED[:40], max_tokens=1, eos=[])])
    engine.reset_prefix_cache()
    engine.check_invariants()
    run_all(engine, [request("c", SHARED[:40], max_tokens=1, eos=[])])
    assert num_computed(executor) == 40 + 1 + 40


def test_a_preempted_request_takes_up_what_it_left() -> None:
    engine, executor = fake_engine(num_blocks=8)
    messages = [request(f"r{i}", [i, *SHARED[:30]], max_tokens=50, eos=[]) for i in range(2)]
    run_all(engine, messages)
    assert engine.stats().num_preemptions > 0
    num_needed = 2 * (31 + 49)
    assert num_computed(executor) < num_needed + 40


def miss_of(engine: Engine, prompt: list[int], salt: str | None = None) -> PrefixMiss | None:
    """Run one request to its end; why its prompt was not all cached."""
    message = request(f"r{engine.stats().num_steps}", prompt, max_tokens=1, eos=[])
    message.cache_salt = salt
    engine.add(message)
    [made] = engine._groups[message.request_id]
    while engine.has_work:
        engine.step()
    engine.check_invariants()
    return made.miss


def test_every_miss_has_its_reason() -> None:
    engine, _ = fake_engine(num_blocks=16)
    prompt = SHARED[:50]
    assert miss_of(engine, prompt) == PrefixMiss(0, MissReason.COLD)
    assert miss_of(engine, prompt) is None
    assert miss_of(engine, [*prompt[:40], 58, 59, *prompt[:20]]) == PrefixMiss(
        40, MissReason.DIVERGED, tuple(prompt[40:48])
    )
    assert miss_of(engine, [*prompt, *prompt]) == PrefixMiss(50, MissReason.COLD)
    salted = miss_of(engine, prompt, "salt")
    assert salted == PrefixMiss(0, MissReason.SALT), "and nothing of what the others have"
    for token in range(10):
        miss_of(engine, [token + 50] * 60)
    assert miss_of(engine, prompt) == PrefixMiss(0, MissReason.EVICTED)
    engine.reset_prefix_cache()
    assert miss_of(engine, prompt) == PrefixMiss(0, MissReason.COLD)
    off, _ = fake_engine(is_caching=False)
    assert miss_of(off, prompt) == PrefixMiss(0, MissReason.DISABLED)
    assert engine.stats().num_prefix_misses == {"cold": 13, "diverged": 1, "salt": 1, "evicted": 1}
