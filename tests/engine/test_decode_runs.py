"""When several decode steps run in one call, and when they must not."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.engine.engine import Engine
from octavo.ops.decode_run import decode_by_steps
from octavo.ops.protocol import DecodeRun
from tests.engine.fakes import EOS, Collected, FakeExecutor, fake_engine, request, run_all


def fast_engine(**limits: object) -> tuple[Engine, FakeExecutor]:
    """Steps of 4.9 ms: ten fit into a call."""
    return fake_engine(seconds=lambda _: 0.0049, **limits)  # type: ignore[arg-type]


def runs_of(**params: object) -> int:
    engine, executor = fast_engine()
    run_all(engine, [request("a", [1, 2, 3], **{"max_tokens": 30, "eos": [], **params})])
    return executor.num_runs


def test_plain_requests_decode_several_steps_a_call() -> None:
    engine, executor = fast_engine()
    got = run_all(engine, [request(f"r{i}", [i, 2], max_tokens=40, eos=[]) for i in range(3)])
    assert all(len(got.token_ids[f"r{i}", 0]) == 40 for i in range(3))
    assert 4 <= executor.num_runs <= 6  # one step teaches what a step costs, then 10 a call
    assert engine.stats().num_steps == len(executor.batches)
    assert engine.stats().num_generated_tokens == 120


@pytest.mark.parametrize(("count", "stop", "runs"), [(16, [], 5), (16, ["xyz"], 17), (15, [], 17)])
def test_many_requests_have_longer_calls(count: int, stop: list[str], runs: int) -> None:
    engine, executor = fake_engine(
        seconds=lambda _: 0.0199, max_num_seqs=32, num_blocks=99, max_num_batched_tokens=99
    )
    run_all(
        engine,
        [request(f"r{i}", [i], max_tokens=30, eos=[], stop=stop) for i in range(count)],
    )
    assert executor.num_runs <= runs
    assert executor.num_runs >= runs - 3


def test_a_grant_takes_the_blocks_that_are_free() -> None:
    engine, executor = fast_engine(num_blocks=2)
    got = run_all(engine, [request("a", [1] * 15, max_tokens=17, eos=[])])
    assert len(got.token_ids["a", 0]) == 17
    assert executor.num_runs >= 2
    engine.check_invariants()


def test_the_length_of_a_call_can_be_limited() -> None:
    engine, executor = fast_engine()
    engine.limit_calls(0)
    run_all(engine, [request("a", [1], max_tokens=30, eos=[])])
    assert executor.num_runs == 0
    engine.limit_calls(None)
    run_all(engine, [request("b", [1], max_tokens=30, eos=[])])
    assert executor.num_runs > 0


@pytest.mark.parametrize(
    "params",
    [
        {"logprobs": 1},
        {"logit_bias": {3: 1.0}},
        {"repetition_penalty": 1.2},
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
    ],
)
def test_a_row_that_needs_more_than_logits_takes_one_step_a_call(params) -> None:
    assert runs_of(**params) == 0


@pytest.mark.parametrize("params", [{"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.5}, {}])
def test_sampling_does_not_prevent_a_run(params) -> None:
    assert runs_of(**params) > 0


def test_a_run_begins_after_min_tokens() -> None:
    engine, executor = fast_engine()
    got = run_all(engine, [request("a", [1], min_tokens=25, max_tokens=40)])
    assert len(got.token_ids["a", 0]) >= 25
    assert len([b for b in executor.batches if len(b.token_ids) == 1]) >= 25
    assert executor.num_runs >= (len(got.token_ids["a", 0]) > 27)


def test_end_token_ends_the_run_with_its_step() -> None:
    engine, executor = fast_engine()
    got = run_all(engine, [request(f"r{i}", [i], max_tokens=200) for i in range(6)])
    ended = [ids for ids in got.token_ids.values() if ids[-1] == EOS]
    assert ended, "no request met its end token"
    assert all(EOS not in ids[:-1] for ids in got.token_ids.values())
    assert executor.num_runs > 0


def test_one_who_waits_for_a_free_place_is_not_kept_waiting_by_a_run() -> None:
    engine, executor = fast_engine(num_blocks=8, max_num_seqs=4)
    engine.add(request("a", range(20), max_tokens=60, eos=[]))
    for _ in range(3):
        engine.step()
    engine.add(request("big", [9] * 100, max_tokens=2, eos=[]))
    runs = executor.num_runs
    engine.step()
    assert executor.num_runs == runs


def test_abort_between_two_calls_frees_everything() -> None:
    engine, executor = fast_engine()
    collected = Collected()
    engine.add(request("a", [1, 2], max_tokens=100, eos=[]))
    while executor.num_runs < 2:
        collected.take(engine.step().outputs)
    engine.abort(["a"])
    collected.take(engine.step().outputs)
    assert collected.reason("a") == "abort"
    assert engine.stats().num_free_blocks == engine.stats().num_blocks
    engine.check_invariants()


def test_blocks_that_are_short_for_a_run_leave_single_steps() -> None:
    engine, _ = fast_engine(num_blocks=2, max_model_len=32)
    got = run_all(engine, [request("a", range(15), max_tokens=17, eos=[])])
    assert len(got.token_ids["a", 0]) == 17


def test_streamed_requests_return_as_often_as_a_screen_refreshes() -> None:
    engine, _ = fast_engine()
    message = request("a", [1, 2], max_tokens=1 + 9, eos=[])
    message.is_streamed = True
    engine.add(message)
    sizes = [len(engine.step().outputs[0].token_ids) for _ in range(5)]
    assert sizes == [1, 1, 3, 3, 2]


def test_who_interrupts_waits_for_one_step() -> None:
    engine, executor = fake_engine(
        seconds=lambda _: (len(executor.batches) == 8 and engine.interrupt()) or 0.0049
    )
    engine.add(request("a", [1, 2], max_tokens=200, eos=[]))
    while executor.num_runs == 0:
        engine.step()
    assert len(executor.batches) == 8
    engine.step()
    assert len(executor.batches) == 9  # whoever interrupted has not been heard yet
    engine.resume()
    engine.step()
    assert len(executor.batches) == 19


def test_decode_by_steps_stops_after_the_step_with_an_end_id() -> None:
    engine, executor = fast_engine()
    engine.add(request("a", [1, 2], max_tokens=50, eos=[]))
    engine.add(request("b", [5], max_tokens=50, eos=[]))
    for _ in range(2):
        engine.step()
    batch = executor.batches[-1]
    from_engine = engine._builder.build(engine._scheduler.schedule().chunks)
    assert len(from_engine.batch.token_ids) == len(batch.token_ids) == 2
    free = DecodeRun(6, np.zeros(3, np.int32), np.zeros(0, np.int32))
    tokens = decode_by_steps(executor.execute, from_engine.batch, from_engine.sample, free)
    assert tokens.shape == (6, 2)
    end = DecodeRun(6, np.array([0, 0, 1], np.int32), tokens[2:3, 1])
    cut = decode_by_steps(executor.execute, from_engine.batch, from_engine.sample, end)
    first = int(np.flatnonzero(tokens[:, 1] == tokens[2, 1])[0])
    assert (cut == tokens[: first + 1]).all()
