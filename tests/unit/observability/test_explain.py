"""Records of requests -> the parts of their time, and what is said of it."""

from __future__ import annotations

import msgspec
import pytest

from octavo.messages import EngineTimeline
from octavo.observability.explain import explain
from octavo.observability.request_record import Cause, RequestRecord

TIMELINE = EngineTimeline(
    added_s=10.0,
    until_s=12.0,
    is_final=True,
    queue_s=0.1,
    prefill_s=0.3,
    decode_s=1.5,
    between_s=0.1,
    num_decode_steps=20,
    num_decode_rows=50,
    num_computed_tokens=100,
    num_blocks=64,
    max_num_seqs=8,
)
RECORD = RequestRecord(
    "r", 10.0, 12.0, 12.0, TIMELINE, "length", num_prompt_tokens=100, num_output_tokens=21
)


def record(**fields: object) -> RequestRecord:
    """A usual record, with some fields of it or of its timeline replaced."""
    names = EngineTimeline.__struct_fields__
    timeline = {name: value for name, value in fields.items() if name in names}
    rest = {name: value for name, value in fields.items() if name not in names}
    changed = msgspec.structs.replace(TIMELINE, **timeline)
    return msgspec.structs.replace(RECORD, **({"timeline": changed} | rest))


def test_parts_come_in_order_and_add_up() -> None:
    explanation = explain(record(arrived_s=9.9, told_s=12.2, delivered_s=12.5))
    assert explanation.total_s == pytest.approx(2.6)
    assert list(explanation.parts) == [
        "replayed", "queue", "preempted", "passed_over", "prefill", "decode", "front_end", "client", "other",
    ]  # fmt: skip
    assert sum(explanation.parts.values()) == pytest.approx(2.6)
    assert explanation.parts["queue"] == pytest.approx(0.2)
    assert explanation.parts["front_end"] == pytest.approx(0.3)
    assert explanation.parts["client"] == pytest.approx(0.3)
    assert explanation.parts["other"] == pytest.approx(0.0)


def test_the_time_in_an_engine_that_died_is_a_part_and_a_cause() -> None:
    explanation = explain(record(arrived_s=8.9, replayed_s=1.0))
    assert explanation.parts["replayed"] == pytest.approx(1.0)
    assert explanation.parts["queue"] == pytest.approx(0.2)
    assert explanation.parts["other"] == pytest.approx(0.0)
    assert explanation.kind is Cause.ENGINE_DIED
    assert "another one went on" in explanation.cause


def test_what_no_part_accounts_for_is_other() -> None:
    assert explain(record(decode_s=1.0)).parts["other"] == pytest.approx(0.5)


def test_an_answer_cut_off_here_was_decoding() -> None:
    explanation = explain(record(is_final=False, told_s=13.0, delivered_s=13.0))
    assert explanation.parts["decode"] == pytest.approx(2.5)
    assert explanation.parts["other"] == pytest.approx(0.0)
    ended_later = explain(record(told_s=11.9, delivered_s=11.95))
    assert ended_later.total_s == pytest.approx(2.0)
    assert ended_later.parts["other"] == pytest.approx(0.0)


def test_a_reader_who_holds_up_the_engine_is_the_client() -> None:
    explanation = explain(record(decode_s=0.6, between_s=1.0, paused_s=0.9))
    assert explanation.kind is Cause.SLOW_CLIENT
    assert explanation.parts["client"] == pytest.approx(0.9)
    assert explanation.parts["front_end"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("fields", "kind", "cause", "remedy"),
    [
        ({}, Cause.NOTHING_UNUSUAL, "21 tokens at 14.0 tok/s, 2.5 requests a step", "smaller"),
        (
            {"queue_s": 0.9, "decode_s": 0.7, "held_by_slots_s": 0.8, "num_ahead": 1},
            Cause.QUEUE,
            "waited 900.0 ms of 2.00 s for a free slot: 1 request was there before it, and at most 8",
            "--max-num-seqs",
        ),
        (
            {"queue_s": 0.9, "decode_s": 0.7},
            Cause.QUEUE,
            "for the step at hand to end: no other request was there",
            "--max-num-batched-tokens",
        ),
        (
            {"queue_s": 0.9, "decode_s": 0.7, "held_by_tokens_s": 1.0, "num_ahead": 3, "ahead_ids": ["a"]},
            Cause.QUEUE,
            "computed the prompts of others: 3 requests were there before it (a, ...)",
            "--max-num-batched-tokens",
        ),
        (
            {"queue_s": 0.9, "decode_s": 0.7, "held_by_blocks_s": 1.0, "held_by_slots_s": 0.1},
            Cause.MEMORY,
            "for free KV blocks",
            "--kv-cache-memory-bytes",
        ),
        (
            {"passed_over_s": 0.9, "decode_s": 0.6, "held_by_tokens_s": 1.0},
            Cause.QUEUE,
            "waited 1.00 s",
            "--max-num-batched-tokens",
        ),
        (
            {"preempted_s": 0.5, "decode_s": 1.0, "num_preemptions": 2, "num_recomputed_tokens": 77},
            Cause.PREEMPTION,
            "preempted 2 times to make room for others, and lost 500.0 ms of 2.00 s: waiting, and computing 77",
            "--max-num-seqs",
        ),
        (
            {"delivered_s": 14.0},
            Cause.SLOW_CLIENT,
            "waited for it 2.00 s of 4.00 s",
            "stream: false",
        ),
        (
            {"prefill_s": 1.0, "decode_s": 0.8, "miss_reason": "diverged", "miss_at": 7, "miss_text": "b", "others_text": "c"},
            Cause.COLD_PREFILL,
            "100 of its 100 prompt tokens took 1.00 s of 2.00 s: from token 7 on ('b') it differs from what is "
            "cached, where others have 'c'",
            "behind",
        ),
        (
            {"prefill_s": 1.0, "decode_s": 0.8, "miss_reason": "salt", "miss_at": 7},
            Cause.COLD_PREFILL,
            "from token 7 on it is cached under another cache_salt",
            "cache_salt",
        ),
        (
            {"prefill_s": 1.0, "decode_s": 0.8, "has_prompt_logprobs": True},
            Cause.COLD_PREFILL,
            "prompt_logprobs need all of it",
            "prompt_logprobs",
        ),
        (
            {"prefill_s": 1.0, "decode_s": 0.8},
            Cause.COLD_PREFILL,
            "nothing of it was looked for",
            "front",
        ),
        ({"prefill_s": 1.0, "decode_s": 0.8, "num_computed_tokens": 5}, Cause.NOTHING_UNUSUAL, "", ""),
    ],
)  # fmt: skip
def test_the_cause_is_what_most_of_the_time_went_to(
    fields: dict[str, object], kind: Cause, cause: str, remedy: str
) -> None:
    explanation = explain(record(**fields))
    assert explanation.kind is kind
    assert cause in explanation.cause
    assert remedy in explanation.remedy
    for sentence in (explanation.cause, explanation.remedy):
        assert sentence.endswith(".")


def test_without_a_timeline_only_the_reader_is_known() -> None:
    assert explain(record(timeline=None)).kind is Cause.UNKNOWN
    explanation = explain(record(timeline=None, delivered_s=30.0))
    assert explanation.kind is Cause.SLOW_CLIENT
    assert sum(explanation.parts.values()) == explanation.total_s


def test_the_json_has_every_number() -> None:
    got = explain(record(miss_reason="cold")).as_json()
    assert (got["id"], got["object"], got["kind"]) == (
        "r",
        "request.explanation",
        "nothing_unusual",
    )
    assert got["miss"] == {"reason": "cold", "token": 0, "text": "", "others_text": ""}
    assert got["decode"] == {
        "steps": 20,
        "mean_batch_size": 2.5,
        "model_s": 0.0,
        "beside_prefill_s": 0.0,
    }
    assert msgspec.json.decode(msgspec.json.encode(got)) == got
