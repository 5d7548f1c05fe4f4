"""Where the time of a request goes: the parts add up, and what was injected is what is named."""

from __future__ import annotations

import random

import msgspec
import pytest

from octavo.engine.engine import Engine
from octavo.engine.timeline import Phase, Timeline, Totals
from octavo.messages import AddRequest, ChoiceOutput, EngineTimeline
from octavo.observability.explain import Explanation, explain
from octavo.observability.request_record import Cause, RequestRecord
from octavo.ops.protocol import Batch
from tests.engine.fakes import VOCAB, Collected, FakeExecutor, fake_engine, request, run_all

PROMPT = [i % VOCAB for i in range(100)]


def by_tokens(batch: Batch) -> float:
    """A model that needs a millisecond a token."""
    return 0.001 * len(batch.token_ids)


def by_steps(batch: Batch) -> float:
    """A model that needs 50 ms a step, whatever is in it: one step a call."""
    return 0.05


def parts_sum(timeline: EngineTimeline) -> float:
    return (
        timeline.queue_s
        + timeline.preempted_s
        + timeline.passed_over_s
        + timeline.prefill_s
        + timeline.decode_s
        + timeline.between_s
    )


def timeline_of(got: Collected, request_id: str, index: int = 0) -> EngineTimeline:
    timeline = got.ends[request_id, index].timeline
    assert timeline is not None
    assert timeline.is_final
    return timeline


def explained(got: Collected, request_id: str, message: AddRequest | None = None) -> Explanation:
    """As a front end that takes no time would have it."""
    end = got.ends[request_id, 0]
    timeline = timeline_of(got, request_id)
    return explain(
        RequestRecord(
            request_id,
            timeline.added_s,
            timeline.until_s,
            timeline.until_s,
            timeline,
            num_prompt_tokens=0 if message is None else len(message.prompt_token_ids),
            num_output_tokens=len(got.token_ids[request_id, 0]),
            num_cached_tokens=end.num_cached_tokens,
            num_preemptions=end.num_preemptions,
        )
    )


def run_slowly(engine: Engine, executor: FakeExecutor, between_s: float) -> Collected:
    """Step to the end; something else takes its time between two steps."""
    got = Collected()
    while engine.has_work:
        got.take(engine.step().outputs)
        executor.clock.now += between_s
    return got


@pytest.mark.parametrize("seed", range(4))
def test_the_parts_of_every_timeline_are_all_of_its_time(seed: int) -> None:
    rng = random.Random(seed)
    engine, executor = fake_engine(
        num_blocks=10, max_num_batched_tokens=rng.choice([7, 64]), max_num_seqs=5,
        seconds=rng.choice([by_tokens, by_steps]),
    )  # fmt: skip
    got = Collected()
    num_left = 80
    while engine.has_work or num_left:
        for _ in range(min(num_left, rng.randrange(3))):
            prompt = [rng.randrange(3) for _ in range(rng.randrange(1, 60))]
            engine.add(
                request(
                    f"r{num_left}", prompt, n=rng.choice([1, 1, 3]), temperature=1.0,
                    max_tokens=rng.randrange(0, 30), seed=num_left, priority=rng.randrange(2), tenant=rng.choice("xy"),
                    prompt_logprobs=rng.choice([None, None, None, 1]),
                )
            )  # fmt: skip
            num_left -= 1
        executor.clock.now += rng.random() * 0.01
        if rng.random() < 0.1:
            engine.abort([f"r{rng.randrange(80)}"])
        got.take(engine.step().outputs)
    assert engine.stats().num_preemptions > 0
    for end in got.ends.values():
        timeline = end.timeline
        assert timeline is not None
        assert parts_sum(timeline) == pytest.approx(timeline.until_s - timeline.added_s, abs=1e-9)
        for name in timeline.__struct_fields__:
            value = getattr(timeline, name)
            assert not isinstance(value, float) or value >= -1e-9, (name, value)


def test_queued_for_a_slot_behind_whom() -> None:
    engine, _ = fake_engine(max_num_seqs=2, seconds=by_steps)
    messages = [request(name, [i], max_tokens=30, eos=[]) for i, name in enumerate("abc")]
    got = run_all(engine, messages)
    first, last = explained(got, "a"), explained(got, "c")
    assert first.kind is Cause.NOTHING_UNUSUAL
    assert last.kind is Cause.QUEUE
    assert last.parts["queue"] == pytest.approx(30 * 0.05)
    assert last.parts["decode"] == pytest.approx(29 * 0.05)
    assert "for a free slot: 2 requests were there before it (a, b), and at most 2" in last.cause
    assert "--max-num-seqs" in last.remedy


def test_queued_while_others_prompts_are_computed() -> None:
    engine, _ = fake_engine(max_num_batched_tokens=10, seconds=by_tokens)
    got = run_all(
        engine,
        [request("a", PROMPT, max_tokens=1, eos=[]), request("b", [60, 1], max_tokens=1, eos=[])],
    )
    explanation = explained(got, "b")
    assert explanation.kind is Cause.QUEUE
    assert "computed the prompts of others: 1 request was there before it (a)" in explanation.cause


def test_a_prompt_that_does_not_advance_is_passed_over() -> None:
    timeline, totals = Timeline(), Totals()
    timeline.open(0.0, totals)
    timeline.start(Phase.PREFILL, 1.0, totals, None)
    timeline.compute(8, 0, 0.5)  # to 1.5; a step of others to 2.0, 0.25 between two steps
    totals.between_s += 0.25
    timeline.compute(8, 8, 0.5)
    timeline.move_to(Phase.DECODE, 2.75, totals)
    record = timeline.record
    assert (record.queue_s, record.prefill_s, record.passed_over_s) == (1.0, 1.0, 0.5)
    assert parts_sum(record) == 2.75


def test_queued_for_memory() -> None:
    engine, _ = fake_engine(num_blocks=8, seconds=by_steps, is_caching=False)
    got = run_all(
        engine,
        [
            request("a", PROMPT[:90], max_tokens=22, eos=[]),
            request("b", PROMPT[:50], max_tokens=5, eos=[]),
        ],
    )
    explanation = explained(got, "b")
    assert explanation.kind is Cause.MEMORY
    assert "for free KV blocks: 1 request was there before it (a), and there are 8" in (
        explanation.cause
    )
    assert "--kv-cache-memory-bytes" in explanation.remedy


def test_preempted() -> None:
    engine, _ = fake_engine(num_blocks=8, seconds=by_steps, is_caching=False)
    got = run_all(
        engine,
        [
            request("a", PROMPT[:30], max_tokens=80, eos=[]),
            request("b", PROMPT[40:70], max_tokens=60, eos=[]),
        ],
    )
    explanation = explained(got, "b")
    timeline = timeline_of(got, "b")
    assert got.ends["b", 0].num_preemptions == 1
    assert explanation.kind is Cause.PREEMPTION
    assert explanation.cause.startswith("It was preempted once to make room for others, and lost ")
    # All that was computed but its newest token.
    assert timeline.num_recomputed_tokens == timeline.num_computed_tokens - 30 - 1
    assert timeline.preempted_s > 2.0
    assert explained(got, "a").kind is Cause.NOTHING_UNUSUAL


@pytest.mark.parametrize(
    ("before", "prompt", "options", "words"),
    [
        (None, PROMPT, {}, "from token 0 on nobody had sent this text before"),
        ([*PROMPT[:50], 60, 60], PROMPT, {}, "from token 50 on it differs from what is cached"),
        (PROMPT, PROMPT, {"is_caching": False}, "the prefix cache is off"),
    ],
)
def test_cold_prefill_and_why(
    before: list[int] | None, prompt: list[int], options: dict[str, bool], words: str
) -> None:
    engine, _ = fake_engine(seconds=by_tokens, **options)
    if before is not None:
        run_all(engine, [request("before", before, max_tokens=1, eos=[])])
    message = request("a", prompt, max_tokens=3, eos=[])
    explanation = explained(run_all(engine, [message]), "a", message)
    assert explanation.kind is Cause.COLD_PREFILL
    assert words in explanation.cause


def test_a_prompt_that_is_cached_is_nothing_unusual() -> None:
    engine, _ = fake_engine(seconds=by_tokens)
    run_all(engine, [request("before", PROMPT, max_tokens=1, eos=[])])
    got = run_all(engine, [request("a", PROMPT, max_tokens=3, eos=[])])
    assert explained(got, "a").kind is Cause.NOTHING_UNUSUAL
    assert timeline_of(got, "a").num_computed_tokens == 1


def test_evicted() -> None:
    engine, _ = fake_engine(num_blocks=8, seconds=by_tokens)
    run_all(engine, [request("before", PROMPT, max_tokens=1, eos=[])])
    run_all(engine, [request("other", [60] * 100, max_tokens=1, eos=[])])
    got = run_all(engine, [request("a", PROMPT, max_tokens=1, eos=[])])
    assert "its memory was needed for others" in explained(got, "a").cause


def test_chunks_steps_and_batch_sizes_are_counted() -> None:
    for seconds in (1.0, 0.001):  # step by step; several steps a call
        engine, executor = fake_engine(
            max_num_batched_tokens=40, seconds=lambda _, s=seconds: s, max_num_seqs=4
        )
        got = run_all(engine, [request("a", PROMPT, max_tokens=21, eos=[])])
        timeline = timeline_of(got, "a")
        assert (timeline.num_chunks, timeline.num_computed_tokens) == (3, 100)
        assert timeline.num_decode_steps == timeline.num_decode_rows == 20
        assert timeline.decode_model_s == pytest.approx(20 * seconds)
        assert timeline.prefill_s == pytest.approx(3 * seconds)
        assert timeline.beside_prefill_s == 0
        assert (executor.num_runs > 0) == (seconds < 1)


def test_decoding_beside_a_prompt_is_told() -> None:
    engine, _ = fake_engine(seconds=by_steps)
    engine.add(request("a", [1, 2], max_tokens=10, eos=[]))
    for _ in range(3):
        engine.step()
    got = run_all(engine, [request("b", PROMPT[10:60], max_tokens=2, eos=[])])
    timeline = timeline_of(got, "a")
    assert timeline.beside_prefill_s == pytest.approx(0.05)
    assert timeline.num_decode_rows == timeline.num_decode_steps + 2


def test_choices_share_the_time_of_their_prompt() -> None:
    engine, _ = fake_engine(max_num_batched_tokens=50, seconds=by_steps)
    message = request("a", PROMPT, n=3, temperature=1.0, max_tokens=4, eos=[])
    got = run_all(engine, [message])
    for index in range(3):
        timeline = timeline_of(got, "a", index)
        assert timeline.queue_s == 0
        assert timeline.prefill_s >= 0.1
        assert parts_sum(timeline) == pytest.approx(timeline.until_s - timeline.added_s)


def test_time_between_steps_is_a_part_of_its_own() -> None:
    engine, executor = fake_engine(max_num_batched_tokens=50, seconds=by_steps)
    engine.add(request("a", PROMPT, max_tokens=4, eos=[]))
    timeline = timeline_of(run_slowly(engine, executor, 0.01), "a")
    assert timeline.between_s == pytest.approx(4 * 0.01)
    assert timeline.prefill_s == pytest.approx(0.1)
    assert timeline.decode_s == pytest.approx(0.15)


def test_the_first_token_brings_the_time_until_then() -> None:
    engine, _ = fake_engine(seconds=by_steps)
    engine.add(request("a", PROMPT[:20], max_tokens=4, eos=[]))
    told: list[ChoiceOutput] = []
    while engine.has_work:
        told += engine.step().outputs
    assert [output.timeline is not None for output in told] == [True, False, False, True]
    first = told[0].timeline
    assert first is not None
    assert (first.is_final, first.prefill_s, first.decode_s) == (False, 0.05, 0)
    copied = msgspec.msgpack.decode(msgspec.msgpack.encode(first), type=EngineTimeline)
    assert copied == first


def test_a_request_that_never_ran_was_queued() -> None:
    engine, executor = fake_engine(max_num_seqs=1, seconds=by_steps)
    engine.add(request("a", [1], max_tokens=50, eos=[]))
    engine.add(request("b", [2], max_tokens=50, eos=[]))
    for _ in range(10):
        engine.step()
    engine.abort(["b"])
    got = Collected()
    got.take(engine.step().outputs)
    assert timeline_of(got, "b").queue_s == pytest.approx(0.5)
    executor.fault = RuntimeError("broken")
    got.take(engine.step().outputs)
    timeline = timeline_of(got, "a")
    assert parts_sum(timeline) == pytest.approx(timeline.until_s - timeline.added_s)


def test_other_tenants_show_as_numbers_only() -> None:
    engine, _ = fake_engine(max_num_seqs=1, seconds=by_steps)
    messages = [
        request("a", PROMPT[:50], max_tokens=20, eos=[], tenant="x"),
        request("b", [*PROMPT[:40], 60, 60], max_tokens=20, eos=[], tenant="x"),
        request("c", [*PROMPT[:20], 60, 60], max_tokens=2, eos=[], tenant="y"),
    ]
    got = run_all(engine, messages)
    assert "2 requests were there before it, and at most" in explained(got, "c").cause
    timeline = timeline_of(got, "c")
    assert (timeline.ahead_ids, timeline.num_ahead) == ([], 2)
    assert (timeline.miss_reason, timeline.miss_others) == ("diverged", [])
    salted = request("d", PROMPT[:50], max_tokens=1, tenant="y")
    salted.cache_salt = "other"
    assert timeline_of(run_all(engine, [salted]), "d").miss_reason == "cold"


def test_one_tenant_sees_its_own_requests() -> None:
    engine, _ = fake_engine(max_num_seqs=1, seconds=by_steps)
    messages = [
        request("a", PROMPT[:50], max_tokens=20, eos=[]),
        request("b", [*PROMPT[:20], 60, 60], max_tokens=2, eos=[]),
    ]
    timeline = timeline_of(run_all(engine, messages), "b")
    assert timeline.ahead_ids == ["a"]
    assert timeline.miss_at == 20
    assert timeline.miss_others[:3] == PROMPT[20:23]
