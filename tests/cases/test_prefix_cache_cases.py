"""Cases of the area prefix cache."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from octavo import LLM, AsyncLLM, SamplingParams
from octavo.server.app import create_app
from tests.cases.served import CHAT, COMPLETIONS, all_at_once, chat, completion, good, stream, text
from tests.server.wire import ask, post

KEEPER = "The lighthouse keeper wrote in his log: "
WORDS = [
    "the",
    "wind",
    "turned",
    "north",
    "and",
    "the",
    "glass",
    "fell",
    "while",
    "gulls",
    "went",
    "inland",
    "over",
    "grey",
    "water",
]


def long_text(i: int, num_words: int = 300) -> str:
    return " ".join(WORDS[(i * 3 + j * (i + 1)) % len(WORDS)] for j in range(num_words))


def cached_tokens(answer: dict[str, Any]) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]  # type: ignore[no-any-return]


def reset(app: FastAPI) -> None:
    assert post(app, "/reset_prefix_cache", {}).status_code == 200


@pytest.fixture(scope="module")
def uncached(smollm2_path: Path) -> Iterator[FastAPI]:
    """smollm2 that reuses nothing."""
    with AsyncLLM(smollm2_path, enable_prefix_caching=False, kv_cache_memory_bytes="128MiB") as llm:
        yield create_app(llm)


def test_pfx_01_cold_warm_and_switched_off_give_the_same_text(
    smollm2: FastAPI, uncached: FastAPI
) -> None:
    for i in range(10):
        body = {"prompt": KEEPER + long_text(i), "temperature": 0, "max_tokens": 40}
        texts = {text(completion(smollm2, **body)) for _ in range(6 if i == 0 else 2)}
        texts.add(text(completion(uncached, **body)))
        assert len(texts) == 1


def test_pfx_01_gemma3_with_its_windows(gemma3: FastAPI) -> None:
    for i in range(3):
        body = {"prompt": KEEPER + long_text(i, 700), "temperature": 0, "max_tokens": 12}
        assert len({text(completion(gemma3, **body)) for _ in range(3)}) == 1


@pytest.mark.parametrize(
    "length", [1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 127, 128, 129, 256]
)
def test_pfx_02_lengths_at_the_borders_of_blocks(smollm2: FastAPI, length: int) -> None:
    reset(smollm2)
    body = {"prompt": " world" * length, "temperature": 0, "max_tokens": 8}
    answers = [completion(smollm2, **body) for _ in range(3)]
    assert len({text(answer) for answer in answers}) == 1
    assert {answer["usage"]["prompt_tokens"] for answer in answers} == {length}
    assert [cached_tokens(answer) for answer in answers] == [0, length - 1, length - 1]


def test_pfx_03_cached_tokens_are_those_that_were_reused(smollm2: FastAPI) -> None:
    def ask(system: str) -> dict[str, Any]:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": "Hi"}]
        return chat(smollm2, messages=messages, max_tokens=4, temperature=0)

    reset(smollm2)
    cold, warm = (ask("Unique " + long_text(5, 200)) for _ in range(2))
    assert cached_tokens(cold) == 0
    assert cached_tokens(warm) == warm["usage"]["prompt_tokens"] - 1
    assert cold["usage"]["prompt_tokens"] == warm["usage"]["prompt_tokens"]
    other = ask("Changed " + long_text(5, 200))
    assert cached_tokens(other) < 8  # what the template puts before it


@pytest.mark.parametrize("ending", ["max_tokens", "stop", "cancel"])
def test_pfx_06_turns_of_a_chat_equal_those_of_a_cold_server(
    smollm2: FastAPI, uncached: FastAPI, ending: str
) -> None:
    reset(smollm2)
    messages: list[dict[str, str]] = []
    before = -1
    for question in ("Name three birds.", "And three fish?", "Which of them is the largest?"):
        messages.append({"role": "user", "content": question})
        body: dict[str, Any] = {"messages": list(messages), "max_tokens": 32, "temperature": 0}
        if ending == "stop":
            body["stop"] = ["\n"]
        answer, cold = chat(smollm2, **body), chat(uncached, **body)
        assert text(answer) == text(cold)
        assert cached_tokens(answer) > before
        before = cached_tokens(answer)
        reply = text(answer)
        if ending == "cancel":
            chunks = stream(smollm2, CHAT, **{**body, "max_tokens": 5})
            reply = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
        messages.append({"role": "assistant", "content": reply})


def test_pfx_07_eviction_changes_no_answer_and_leaks_no_block(smollm2_path: Path) -> None:
    with AsyncLLM(
        smollm2_path, max_model_len=512, max_num_seqs=8, kv_cache_memory_bytes=2000 // 16 * 368_640
    ) as llm:
        app = create_app(llm)
        assert 1900 <= llm.info.num_blocks * llm.info.block_size <= 2000
        bodies = [
            {"prompt": long_text(i, 300), "temperature": 0, "max_tokens": 8} for i in range(60)
        ]
        answers = [
            text(answer)
            for at in range(0, 60, 8)
            for answer in all_at_once(app, COMPLETIONS, bodies[at : at + 8])
        ]
        assert [text(completion(app, **body)) for body in bodies[:10]] == answers[:10]
        used, cached = blocks(app)
        assert (used, cached > 0) == (0, True)
        reset(app)
        assert blocks(app) == (0, 0)


def blocks(app: FastAPI) -> tuple[int, int]:
    """KV blocks that requests hold, and those that are kept."""
    metrics = ask(app, "GET", "/metrics").text
    found = [
        re.search(rf"^octavo:kv_blocks_{name}{{.*}} (.*)$", metrics, re.MULTILINE)
        for name in ("used", "cached")
    ]
    used, cached = (int(float(match[1])) for match in found if match is not None)
    return used, cached


def test_pfx_08_salts_share_nothing(smollm2: FastAPI) -> None:
    reset(smollm2)
    body = {"prompt": KEEPER + long_text(8), "temperature": 0, "max_tokens": 8}
    answers = [good(post(smollm2, COMPLETIONS, {**body, **salt})) for salt in (
        {"cache_salt": "S"}, {"cache_salt": "T"}, {}, {"cache_salt": "S"},
    )]  # fmt: skip
    cached = [cached_tokens(answer) for answer in answers]
    assert cached == [0, 0, 0, answers[0]["usage"]["prompt_tokens"] - 1]
    assert len({text(answer) for answer in answers}) == 1


def test_prompt_logprobs_are_the_same_whatever_is_cached(smollm2_path: Path) -> None:
    params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=1)
    with LLM(smollm2_path, kv_cache_memory_bytes="64MiB") as llm:
        prompt = " world" * 40 + " The quick brown fox."
        scores = [llm.generate(prompt, params)[0].prompt_logprobs for _ in range(3)]
        assert scores[0] == scores[1] == scores[2]
