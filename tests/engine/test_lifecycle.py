"""Every choice ends exactly once, and nothing stays held, whatever happens."""

from __future__ import annotations

import gc
import random
import weakref

import numpy as np
import pytest

from octavo.errors import CapacityError, ContextLengthExceeded, EngineDead, InvalidRequest
from octavo.ops.protocol import Batch, SampleBatch, SampleResult
from tests.engine.fakes import EOS, VOCAB, Collected, FakeExecutor, fake_engine, request, run_all


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_1000_random_cycles_of_add_finish_abort_leave_every_block_free(seed) -> None:
    rng = random.Random(seed)
    engine, _ = fake_engine(
        num_blocks=rng.choice([16, 24, 64]),
        max_num_batched_tokens=rng.choice([1, 7, 64]),
        max_num_seqs=6,
    )
    collected = Collected()
    added: dict[str, int] = {}
    while len(added) < 340:  # x 3 seeds
        for _ in range(rng.randrange(4)):
            name, n = f"r{len(added)}", rng.choice([1, 1, 2, 5])
            prompt = [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 50))]
            message = request(
                name, prompt, n=n, max_tokens=rng.randrange(0, 16), priority=rng.randrange(3),
                temperature=rng.choice([0.0, 0.0, 1.0]), seed=rng.randrange(99),
                prompt_logprobs=rng.choice([None] * 9 + [2]),
            )  # fmt: skip
            engine.add(message)
            added[name] = n
        for _ in range(rng.randrange(6)):
            collected.take(engine.step().outputs)
            engine.check_invariants()
        if added and rng.random() < 0.5:
            engine.abort([rng.choice(list(added)), "unknown"])
            engine.check_invariants()
    while engine.has_work:
        collected.take(engine.step().outputs)
        engine.check_invariants()
    assert set(collected.ends) == {(name, i) for name, n in added.items() for i in range(n)}
    stats = engine.stats()
    assert stats.num_free_blocks == stats.num_blocks
    assert (stats.num_running, stats.num_waiting) == (0, 0)
    assert {"stop", "length", "abort"} == {
        str(end.finish_reason) for end in collected.ends.values()
    }


def test_abort_frees_the_blocks_at_once_in_every_state() -> None:
    for num_steps in range(8):
        engine, _ = fake_engine(max_num_batched_tokens=8, max_num_seqs=3)
        engine.add(request("a", range(30), n=5, max_tokens=50, eos=[], temperature=1.0))
        engine.add(request("b", range(30), max_tokens=50, eos=[]))
        collected = Collected()
        for _ in range(num_steps):
            collected.take(engine.step().outputs)
        engine.abort(["a", "b"])
        engine.check_invariants()
        assert engine.stats().num_free_blocks == engine.stats().num_blocks
        assert engine.has_work, "the ends are still to be told"
        collected.take(engine.step().outputs)
        assert {end.finish_reason for end in collected.ends.values()} == {"abort"}
        assert len(collected.ends) == 6
        assert not engine.has_work


def test_abort_between_fork_and_prefill_leaves_the_others_alone() -> None:
    def texts(is_disturbed: bool) -> list[int]:
        engine, _ = fake_engine(max_num_batched_tokens=64, num_blocks=12)
        engine.add(request("a", range(20), n=3, max_tokens=50, eos=[], temperature=1.0))
        engine.add(request("b", range(5, 40), max_tokens=20, eos=[]))
        collected = Collected()
        collected.take(engine.step().outputs)  # the prompt is computed, forks wait for their copies
        if is_disturbed:
            engine.abort(["a"])
        while engine.has_work:
            collected.take(engine.step().outputs)
            engine.check_invariants()
        return collected.token_ids["b", 0]

    assert texts(True) == texts(False)


def test_end_token_is_part_of_the_output_and_min_tokens_holds_it_back() -> None:
    forced = {"logit_bias": {EOS: 100.0}}
    engine, _ = fake_engine()
    got = run_all(
        engine,
        [
            request("now", [1, 2], **forced),
            request("smp-09", [1, 2], min_tokens=4, **forced),
            request("ignored", [1, 2], ignore_eos=True, max_tokens=6, **forced),
            request("stop", [1, 2], logit_bias={9: 100.0}, stop_token_ids=(9,)),
            request("last", [1, 2], max_tokens=1, **forced),
        ],
    )
    assert got.token_ids["now", 0] == [EOS]
    assert got.reason("now") == "stop"
    assert len(got.token_ids["smp-09", 0]) == 5
    assert got.token_ids["smp-09", 0].index(EOS) == 4
    assert got.token_ids["ignored", 0] == [EOS] * 6
    assert got.reason("ignored") == "length"
    assert (got.reason("stop"), got.ends["stop", 0].stop_reason) == ("stop", 9)
    assert got.token_ids["stop", 0] == [9]
    assert got.reason("last") == "stop"


def test_ctx_03_output_ends_with_the_context() -> None:
    engine, _ = fake_engine(max_model_len=256)
    got = run_all(engine, [request("a", range(31), max_tokens=1000, eos=[])])
    assert len(got.token_ids["a", 0]) == 225
    assert got.reason("a") == "length"


def test_stp_07_max_tokens_0_generates_nothing_and_scores_the_prompt_if_asked() -> None:
    engine, executor = fake_engine(max_model_len=64)
    got = run_all(engine, [request("plain", range(64 - 10), max_tokens=0)])
    assert (got.token_ids["plain", 0], got.reason("plain")) == ([], "length")
    assert not executor.batches
    got = run_all(engine, [request("scored", range(60), max_tokens=0, prompt_logprobs=1, n=2)])
    assert [s.token_id for s in got.prompt_scores["scored"]] == list(range(1, 60))
    assert (got.token_ids["scored", 0], got.reason("scored"), got.reason("scored", 1)) == (
        [],
        "length",
        "length",
    )
    got = run_all(engine, [request("one", [5], max_tokens=0, prompt_logprobs=1)])
    assert got.prompt_scores["one"] == []


def test_logprobs_name_the_chosen_token_and_as_many_alternatives_as_asked() -> None:
    engine, _ = fake_engine()
    got = run_all(
        engine,
        [
            request("none", [1], max_tokens=3, eos=[]),
            request("own", [1], max_tokens=3, logprobs=0, eos=[]),
            request("four", [1], max_tokens=3, logprobs=4, eos=[]),
        ],
    )
    assert got.scores["none", 0] == []
    assert [s.top_ids for s in got.scores["own", 0]] == [[], [], []]
    for score, token_id in zip(got.scores["four", 0], got.token_ids["four", 0], strict=True):
        assert len(score.top_ids) == len(score.top_logprobs) == 4
        assert score.token_id == token_id == score.top_ids[0]  # greedy
        assert score.rank == 1
        assert score.logprob == score.top_logprobs[0]


def test_replay_of_a_complete_choice_ends_without_a_step() -> None:
    engine, executor = fake_engine()
    got = run_all(
        engine,
        [request("a", [1, 2], n=2, max_tokens=3, temperature=1.0, known=[[4, 5, 6], [4, EOS]])],
    )
    assert (got.reason("a", 0), got.reason("a", 1)) == ("length", "stop")
    assert got.token_ids["a", 0] == []
    assert not executor.batches


def test_fault_of_one_request_ends_that_request_alone() -> None:
    engine, _ = fake_engine()
    engine.add(request("good", range(20), max_tokens=5, eos=[]))
    engine.add(request("bad", range(20), max_tokens=5, eos=[]))
    collected = Collected()
    collected.take(engine.step().outputs)
    engine._groups["bad"][0].sampling.floats = ("not a number",)  # type: ignore[assignment]
    while engine.has_work:
        collected.take(engine.step().outputs)
        engine.check_invariants()
    assert collected.reason("bad") == "error"
    assert "not a number" in str(collected.ends["bad", 0].error)
    assert collected.reason("good") == "length"
    assert not engine.is_dead


class _WrongTokens(FakeExecutor):
    def execute(self, batch: Batch, sample: SampleBatch) -> SampleResult:
        result = super().execute(batch, sample)
        result.token_ids[0] = -1
        return result


def test_token_outside_the_vocabulary_ends_its_request_with_an_error() -> None:
    engine, executor = fake_engine()
    executor.__class__ = _WrongTokens
    got = run_all(engine, [request("first", [1], max_tokens=3, eos=[])])
    assert got.reason("first") == "error"
    assert not engine.is_dead


def test_executor_fault_ends_everything_with_an_error_and_the_engine_takes_no_more() -> None:
    engine, executor = fake_engine(max_num_seqs=2)
    collected = Collected()
    for i in range(4):
        engine.add(request(f"r{i}", range(10), n=2, temperature=1.0, eos=[]))
    collected.take(engine.step().outputs)
    executor.fault = MemoryError("no room")
    collected.take(engine.step().outputs)
    assert {end.finish_reason for end in collected.ends.values()} == {"error"}
    assert len(collected.ends) == 8
    assert engine.is_dead
    assert not engine.has_work
    assert engine.stats().num_free_blocks == engine.stats().num_blocks
    with pytest.raises(EngineDead, match="no room"):
        engine.add(request("late", [1]))


def test_close_ends_everything_and_may_be_called_again() -> None:
    engine, executor = fake_engine()
    engine.add(request("a", range(10), n=2, temperature=1.0))
    engine.step()
    engine.close()
    engine.close()
    ends = [o.finish_reason for o in engine.step().outputs]
    assert ends == ["abort", "abort"]
    assert executor.num_closed >= 1
    with pytest.raises(EngineDead):
        engine.add(request("b", [1]))


def test_engine_and_its_executor_go_with_the_last_reference() -> None:
    engine, executor = fake_engine()
    run_all(engine, [request("a", range(10), n=3, temperature=1.0)])
    gone = weakref.ref(executor)
    gc.disable()
    try:
        del engine, executor
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("message", "error", "text"),
    [
        (request("a", []), InvalidRequest, "empty"),
        (request("a", [1, VOCAB]), InvalidRequest, f"{VOCAB} is outside the vocabulary"),
        (request("a", [-1]), InvalidRequest, "-1 is outside"),
        (request("a", [2**70]), InvalidRequest, "integers"),
        (request("a", [2**40]), InvalidRequest, "outside"),
        (request("a", [1.5]), InvalidRequest, "integers"),  # type: ignore[list-item]
        (request("a", [True, False]), InvalidRequest, "integers"),
        (request("a", ["x"]), InvalidRequest, "integers"),  # type: ignore[list-item]
        (request("a", [1], logit_bias={VOCAB: 1.0}), InvalidRequest, "logit_bias"),
        (request("a", [1], stop_token_ids=(-5,)), InvalidRequest, "stop_token_ids"),
        (request("a", [1], temperature=1.0, seed=None), InvalidRequest, "seed"),
        (request("a", [1], known=[[1], [2]]), InvalidRequest, "n = 1"),
        (request("a", [1] * 300), ContextLengthExceeded, "maximum context length is 256 tokens, but the prompt has 300"),
        (request("a", [1] * 256), ContextLengthExceeded, "at least one"),
        (request("a", [1], max_tokens=2, known=[[1, 2, 3]]), ContextLengthExceeded, "so far"),
    ],
)  # fmt: skip
def test_wrong_request_is_refused_and_the_next_one_works(message, error, text) -> None:
    engine, _ = fake_engine(max_model_len=256)
    with pytest.raises(error, match=text):
        engine.add(message)
    assert not engine.has_work
    assert run_all(engine, [request("a", [1], max_tokens=2, eos=[])]).reason("a") == "length"


def test_sch_04_request_that_can_never_fit_is_refused_when_added() -> None:
    engine, _ = fake_engine(num_blocks=4, max_model_len=256)
    with pytest.raises(CapacityError, match="holds 64 tokens"):
        engine.add(request("a", [1] * 60, max_tokens=6))
    assert run_all(engine, [request("b", [1] * 60, max_tokens=5, eos=[])]).reason("b") == "length"


def test_id_in_use_is_refused_until_it_ended() -> None:
    engine, _ = fake_engine()
    engine.add(request("a", [1]))
    with pytest.raises(InvalidRequest, match="in use"):
        engine.add(request("a", [1]))
    while engine.has_work:
        engine.step()
    engine.add(request("a", [1]))


def test_stats_count_prompts_once_and_every_token() -> None:
    engine, _ = fake_engine()
    got = run_all(engine, [request("a", range(10), n=3, temperature=1.0, max_tokens=4, eos=[])])
    stats = engine.stats()
    assert stats.num_prompt_tokens == 10
    assert stats.num_generated_tokens == 12 == sum(len(ids) for ids in got.token_ids.values())
    assert np.isfinite(stats.num_steps)
