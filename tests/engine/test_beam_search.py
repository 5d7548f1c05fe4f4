"""A beam search in an engine: each step computes one token per beam, and a prompt is held once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from octavo import LLM, BeamSearchParams, SamplingParams
from octavo.api.async_llm import AsyncLLM
from octavo.api.processor import Processor
from octavo.config import QueueLimits
from octavo.engine.client import InProcessClient, ThreadedClient
from octavo.engine.engine import Engine
from octavo.engine.queue_limit import WaitingRoom
from octavo.errors import InvalidRequest, QueueFull
from octavo.kv_layout import BLOCK_SIZE
from octavo.outputs import BeamSearchOutput
from tests.engine.fakes import EOS, VOCAB, FakeExecutor, _logits, fake_engine, request
from tests.tiny_models import tiny_source, write_gguf
from tests.unit.api.fakes import FakeTokenizer

PROMPT = [i % 50 + 8 for i in range(70)]


class EngineTokenizer(FakeTokenizer):
    """Its end token is the fake engine's."""

    vocab_size = VOCAB
    eos_token_id: int | None = EOS
    eos_token_ids = frozenset({EOS})


def fake_llm(**limits: object) -> tuple[LLM, Engine, FakeExecutor]:
    engine, executor = fake_engine(**limits)  # type: ignore[arg-type]
    processor = Processor(engine.info, EngineTokenizer(), seed=0)
    return LLM.from_client(InProcessClient(engine), processor), engine, executor


def found(output: BeamSearchOutput) -> list[tuple[list[int], float, str | None]]:
    return [(one.tokens, one.cum_logprob, one.finish_reason) for one in output.sequences]


def by_brute_force(prompt: list[int], width: int, num_tokens: int) -> list[tuple[list[int], float]]:
    """The search written down once more, without ends: all continuations of all beams, the best kept."""
    beams: list[tuple[list[int], float]] = [(prompt, 0.0)]
    for _ in range(num_tokens):
        grown = []
        for tokens, total in beams:
            logits = _logits(np.array(tokens)).astype(np.float64)
            logprobs = logits - np.log(np.exp(logits).sum())
            grown += [([*tokens, i], total + float(logprobs[i])) for i in range(VOCAB)]
        beams = sorted(grown, key=lambda one: -one[1])[:width]
    return beams


@pytest.mark.parametrize("width", [1, 2, 5])
def test_equals_brute_force(width: int) -> None:
    llm, engine, _ = fake_llm()
    params = BeamSearchParams(beam_width=width, max_tokens=9, ignore_eos=True)
    prompts = [PROMPT, PROMPT[:3], PROMPT[:32]]
    for prompt, output in zip(prompts, llm.beam_search(prompts, params), strict=True):
        expected = by_brute_force(prompt, width, 9)
        assert [one.tokens for one in output.sequences] == [tokens for tokens, _ in expected]
        for one, (_, total) in zip(output.sequences, expected, strict=True):
            assert one.cum_logprob == pytest.approx(total, abs=1e-5)
            assert one.text == llm.get_tokenizer().decode(one.tokens, skip_special_tokens=False)
    engine.check_invariants()
    assert engine.stats().num_free_blocks == engine.stats().num_blocks


def test_width_1_is_greedy() -> None:
    llm, _, _ = fake_llm()
    [[one]] = [
        out.sequences
        for out in llm.beam_search(PROMPT, BeamSearchParams(beam_width=1, max_tokens=30))
    ]
    [greedy] = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=30), use_tqdm=False)
    assert [*one.tokens[len(PROMPT) :], *([EOS] if one.finish_reason == "stop" else [])] == (
        greedy.outputs[0].token_ids
    )


def test_a_step_computes_one_token_per_beam_and_the_prompt_once() -> None:
    llm, engine, executor = fake_llm(num_blocks=64)
    width, num_tokens = 4, 40
    params = BeamSearchParams(beam_width=width, max_tokens=num_tokens, ignore_eos=True)
    llm.beam_search(PROMPT, params)
    prefill, *steps = executor.batches
    if len(prefill.token_ids) < len(PROMPT):  # in two chunks
        prefill, *steps = steps
    assert len(steps) == num_tokens - 1
    assert all(len(step.token_ids) == len(step.seq_lens) == width for step in steps)
    num_prompt_blocks = len(PROMPT) // BLOCK_SIZE
    for step in steps:
        shared = {tuple(row[:num_prompt_blocks].tolist()) for row in step.block_tables}
        assert len(shared) == 1, "the prompt's blocks are held more than once"
    stats = engine.stats()
    assert stats.num_prompt_tokens == len(PROMPT), "a step is no new prompt"
    assert stats.num_cached_tokens == 0


@pytest.mark.parametrize(
    "limits",
    [
        {"is_caching": False},
        {"num_blocks": 9},
        {"max_num_seqs": 1},
        {"max_num_batched_tokens": 5},
    ],
)
def test_nothing_of_the_machine_shows_in_the_answer(limits: dict[str, object]) -> None:
    params = BeamSearchParams(beam_width=3, max_tokens=25, length_penalty=0.5)
    expected = [found(one) for one in fake_llm()[0].beam_search([PROMPT, PROMPT[:9]], params)]
    got = fake_llm(**limits)[0].beam_search([PROMPT, PROMPT[:9]], params, concurrency_limit=1)
    assert [found(one) for one in got] == expected


@pytest.mark.parametrize("kept", [False, True])
def test_the_end_token_is_shown_on_request(kept: bool) -> None:
    llm, _, _ = fake_llm()
    params = BeamSearchParams(beam_width=8, max_tokens=60, include_stop_str_in_output=kept)
    ended = [s for s in llm.beam_search(PROMPT, params)[0].sequences if s.finish_reason == "stop"]
    assert ended
    for one in ended:
        assert one.stop_reason == EOS
        assert (one.tokens[-1] == EOS) is kept
        assert len(one.logprobs) == len(one.tokens) - len(PROMPT) + (not kept)


def test_what_cannot_be_is_refused_before_anything_is_computed() -> None:
    llm, _, executor = fake_llm()
    with pytest.raises(InvalidRequest, match="at most 60 with this model"):
        llm.beam_search(PROMPT, BeamSearchParams(beam_width=61, max_tokens=5))
    with pytest.raises(InvalidRequest, match="256"):
        llm.beam_search(PROMPT, BeamSearchParams(beam_width=2, max_tokens=500))
    assert not executor.batches


def test_a_fault_of_the_engine_ends_the_search() -> None:
    llm, _, executor = fake_llm()
    executor.fault = RuntimeError("broken")
    [output] = llm.beam_search(PROMPT, BeamSearchParams(beam_width=2, max_tokens=5))
    assert [one.finish_reason for one in output.sequences] == ["error", "error"]
    assert "broken" in str(output.sequences[0].stop_reason)


def test_a_search_that_nobody_waits_for_stops() -> None:
    engine, _ = fake_engine()
    processor = Processor(engine.info, EngineTokenizer(), seed=0)
    params = BeamSearchParams(beam_width=3, max_tokens=150, ignore_eos=True)

    async def scene() -> list[BeamSearchOutput]:
        llm = AsyncLLM.from_client(
            lambda deliver: ThreadedClient(engine, on_outputs=deliver), processor, lambda: True
        )
        with llm:
            task = asyncio.create_task(llm.beam_search(PROMPT, params))
            while engine.stats().num_generated_tokens < 20:
                await asyncio.sleep(0.001)
            assert llm.num_in_flight == 1, "to its caller a search is one request"
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert llm.num_in_flight == 0
            while engine.has_work:
                await asyncio.sleep(0.001)
            count = engine.stats().num_generated_tokens
            assert count < 3 * 150
            short = BeamSearchParams(beam_width=3, max_tokens=6, ignore_eos=True)
            return list(await asyncio.gather(*[llm.beam_search(PROMPT, short) for _ in range(2)]))

    first, second = asyncio.run(scene())
    assert found(first) == found(second)
    assert [one.tokens for one in first.sequences] == [
        tokens for tokens, _ in by_brute_force(PROMPT, 3, 6)
    ]


def test_a_full_queue_keeps_out_who_comes_not_who_goes_on() -> None:
    room = WaitingRoom(QueueLimits(max_requests=1))
    room.admit(request("a", PROMPT), 0.0)
    room.admit(request("b#1.0", PROMPT, known=[[1]]), 0.0)
    with pytest.raises(QueueFull):
        room.admit(request("c", PROMPT), 0.0)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tiny_source()
    tokens = source.metadata["tokenizer.ggml.tokens"]
    types = np.array(source.metadata["tokenizer.ggml.token_type"])
    assert isinstance(tokens, list)
    types[258] = 1
    source = source.with_metadata(  # a vocabulary of bytes and one merge: a file has at least one
        tokenizer__ggml__tokens=[*tokens[:258], "he", *tokens[259:]],
        tokenizer__ggml__token_type=types,
        tokenizer__ggml__merges=["h e"],
    )
    return write_gguf(source, tmp_path_factory.mktemp("beam") / "tiny.gguf")


def test_log_probabilities_are_the_same_bits_with_and_without_a_cache(tiny: Path) -> None:
    params = BeamSearchParams(beam_width=4, max_tokens=20, length_penalty=0.0)
    got = []
    for is_caching in (True, False):
        with LLM(
            tiny,
            backend="native",
            max_model_len=256,
            enable_prefix_caching=is_caching,
            kv_cache_memory_bytes="8MiB",
        ) as llm:
            outputs = llm.beam_search(["Once upon a time", "x"], params)
            got.append([found(one) for one in outputs])
            best = outputs[0].sequences[0]
            [scored] = llm.generate(
                best.tokens,
                SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0),
                use_tqdm=False,
            )
            assert scored.prompt_logprobs is not None
            given = scored.prompt_logprobs[-len(best.logprobs) :]
            for position, token_id, mine in zip(
                given, best.tokens[-len(given) :], best.logprobs, strict=True
            ):
                assert position is not None
                assert position[token_id].logprob == mine[token_id].logprob
    assert got[0] == got[1]
