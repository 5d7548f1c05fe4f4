"""The same tokens whatever happens around a request."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from octavo.messages import AddRequest, TokenScore
from tests.engine.fakes import VOCAB, Collected, fake_engine, request, run_all


def workload(seed: int = 0, count: int = 14) -> list[AddRequest]:
    """Requests of all kinds: greedy, sampled, several choices, penalties, scores, bans."""
    rng = random.Random(seed)
    requests = []
    for i in range(count):
        prompt = [rng.randrange(VOCAB) for _ in range(rng.choice([1, 2, 15, 16, 17, 33, 70]))]
        kinds: list[dict[str, object]] = [
            {},
            {"temperature": 1.0, "seed": 100 + i},
            {"temperature": 0.8, "top_p": 0.9, "top_k": 20, "n": 3, "seed": i, "logprobs": 2},
            {"repetition_penalty": 1.3, "min_tokens": 8},
            {"temperature": 1.0, "presence_penalty": 0.5, "frequency_penalty": 0.5, "n": 2},
            {"prompt_logprobs": 3, "logprobs": 1, "n": 2, "temperature": 1.0},
            {"logit_bias": {3: 4.0, 9: -100.0}, "stop_token_ids": (11, 12)},
        ]
        params = {"max_tokens": rng.choice([1, 2, 17, 40]), **kinds[i % len(kinds)]}
        if int(str(params.get("min_tokens", 0))) > int(str(params["max_tokens"])):
            params["max_tokens"] = 20
        requests.append(request(f"r{i}", prompt, **params))
    return requests


Answer = tuple[dict[tuple[str, int], tuple[list[int], str | None]], dict[str, list[TokenScore]]]


def answers(requests: Sequence[AddRequest], **limits: object) -> Answer:
    engine, executor = fake_engine(**limits)  # type: ignore[arg-type]
    got = run_all(engine, requests)
    engine.close()
    assert executor.num_closed == 1
    tokens = {key: (ids, got.ends[key].finish_reason) for key, ids in got.token_ids.items()}
    assert set(tokens) == {(r.request_id, i) for r in requests for i in range(r.params.n)}
    for message in requests:
        wants_scores = message.params.prompt_logprobs is not None
        num_scores = len(message.prompt_token_ids) - 1 if wants_scores else 0
        assert len(got.prompt_scores[message.request_id]) == num_scores
    return tokens, got.prompt_scores


@pytest.fixture(scope="module")
def alone() -> Answer:
    tokens, scores = {}, {}
    for message in workload():
        t, s = answers([message])
        tokens |= t
        scores |= s
    return tokens, scores


@pytest.mark.parametrize("chunk", [1, 3, 16, 64, 512])
def test_alone_equals_together_at_any_token_budget(alone, chunk) -> None:
    assert answers(workload(), max_num_batched_tokens=chunk) == alone


@pytest.mark.parametrize("num_blocks", [9, 64])
@pytest.mark.parametrize("milliseconds", [0.2, 3.0])
def test_alone_equals_decode_steps_that_run_in_one_call(alone, milliseconds, num_blocks) -> None:
    fast = {"seconds": lambda _: milliseconds / 1000, "max_num_seqs": 3, "num_blocks": num_blocks}
    assert answers(workload(), **fast) == alone


@pytest.mark.parametrize("max_num_seqs", [1, 2, 64])
def test_alone_equals_together_at_any_number_of_sequences(alone, max_num_seqs) -> None:
    assert answers(workload(), max_num_seqs=max_num_seqs) == alone


@pytest.mark.parametrize("num_blocks", [7, 8, 9, 12, 20])
@pytest.mark.parametrize("chunk", [5, 64])
def test_alone_equals_a_pool_so_small_that_requests_are_preempted(alone, num_blocks, chunk) -> None:
    assert answers(workload(), num_blocks=num_blocks, max_num_batched_tokens=chunk) == alone


def test_small_pool_really_preempts_and_says_so() -> None:
    engine, _ = fake_engine(num_blocks=8)
    got = run_all(engine, workload())
    assert engine.stats().num_preemptions > 0
    assert any(end.num_preemptions > 0 for end in got.ends.values())


def test_replay_with_the_first_output_tokens_continues_the_same_text(alone) -> None:
    for cut in (1, 5, 16):
        for message in workload():
            if message.params.logprobs is not None:
                continue
            whole = [alone[0][message.request_id, i][0] for i in range(message.params.n)]
            known = [ids[:cut] for ids in whole]
            engine, _ = fake_engine()
            message.output_token_ids = known
            got = run_all(engine, [message])
            again = [
                known[i] + got.token_ids[message.request_id, i] for i in range(message.params.n)
            ]
            assert again == whole
            for i in range(message.params.n):
                assert got.reason(message.request_id, i) == alone[0][message.request_id, i][1]


def test_choices_share_the_prompt_and_compute_it_once() -> None:
    engine, executor = fake_engine(max_num_batched_tokens=64)
    run_all(engine, [request("a", range(40), n=4, temperature=1.0, max_tokens=1, eos=[])])
    computed = sum(len(b.token_ids) for b in executor.batches)
    assert computed == 40 + 3  # each fork computes the last prompt token again


def test_choices_differ_and_each_is_what_it_is_alone_with_its_index() -> None:
    engine, _ = fake_engine()
    got = run_all(engine, [request("a", range(20), n=3, temperature=1.5, max_tokens=12, eos=[])])
    texts = [tuple(got.token_ids["a", i]) for i in range(3)]
    assert len(set(texts)) == 3
    engine, _ = fake_engine()
    assert (
        tuple(
            run_all(
                engine, [request("b", range(20), temperature=1.5, max_tokens=12, eos=[])]
            ).token_ids["b", 0]
        )
        == texts[0]
    )


def test_scores_are_told_once_even_when_preempted_in_the_middle_of_the_prompt() -> None:
    prompt = [i % VOCAB for i in range(110)]
    scored = request("s", prompt, prompt_logprobs=1, max_tokens=2, priority=5, eos=[])
    other = request("o", range(10), max_tokens=100, eos=[])
    alone_scores = run_all(fake_engine()[0], [scored]).prompt_scores["s"]
    engine, _ = fake_engine(num_blocks=8, max_num_batched_tokens=3)
    engine.add(other)
    collected = Collected()
    for _ in range(4):
        collected.take(engine.step().outputs)
    engine.add(scored)
    num_told_at_preemption = []
    while engine.has_work:
        before = engine.stats().num_preemptions
        collected.take(engine.step().outputs)
        if engine.stats().num_preemptions > before:
            num_told_at_preemption.append(len(collected.prompt_scores["s"]))
    assert any(0 < told < 109 for told in num_told_at_preemption), "no preemption within the prompt"
    assert collected.prompt_scores["s"] == alone_scores
    assert [s.token_id for s in alone_scores] == prompt[1:]
