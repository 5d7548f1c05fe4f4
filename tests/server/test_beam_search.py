from __future__ import annotations

import asyncio
import contextlib

import pytest
from fastapi import FastAPI

from octavo.api.async_llm import AsyncLLM
from octavo.api.chat import load_chat_template
from octavo.api.processor import Processor
from octavo.engine.client import ThreadedClient
from octavo.engine.engine import Engine
from octavo.server.app import create_app
from tests.engine.fakes import fake_engine
from tests.engine.test_beam_search import PROMPT, EngineTokenizer, by_brute_force
from tests.server.wire import error_of, fake_app, post, send
from tests.unit.api.fakes import TEMPLATE, always

URL = "/v1/completions"
CHAT = "/v1/chat/completions"
SEARCH = {"use_beam_search": True, "max_tokens": 6, "ignore_eos": True, "temperature": 0}


class ChatTokenizer(EngineTokenizer):
    """Renders to ids that the fake engine knows."""

    def encode(self, text: str, **more: object) -> list[int]:
        return [ord(c) % 50 + 8 for c in text]


@contextlib.contextmanager
def served():  # type: ignore[no-untyped-def]
    engine, _ = fake_engine()
    tokenizer = ChatTokenizer(TEMPLATE)
    processor = Processor(
        engine.info, tokenizer, chat_template=load_chat_template(tokenizer), seed=0
    )
    with AsyncLLM.from_client(
        lambda deliver: ThreadedClient(engine, on_outputs=deliver), processor, lambda: True
    ) as llm:
        yield create_app(llm), engine


def test_the_best_n_of_a_wider_search() -> None:
    with served() as (app, _):
        body = post(app, URL, {**SEARCH, "prompt": PROMPT, "n": 2, "best_of": 4, "logprobs": 1})
        answer = body.json()
    expected = by_brute_force(PROMPT, 4, 6)[:2]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert [choice["text"].encode() for choice in answer["choices"]] == [
        bytes(tokens[len(PROMPT) :]) for tokens, _ in expected
    ]
    for choice, (_, total) in zip(answer["choices"], expected, strict=True):
        assert sum(choice["logprobs"]["token_logprobs"]) == pytest.approx(total, abs=1e-4)
        assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 12
    assert answer["usage"]["prompt_tokens"] == len(PROMPT)


def test_a_chat_is_searched_as_wide_as_n_and_several_prompts_each() -> None:
    messages = {"messages": [{"role": "user", "content": "hello"}]}
    with served() as (app, _):
        answer = post(app, CHAT, {**SEARCH, **messages, "n": 3}).json()
        wider = post(app, CHAT, {**SEARCH, **messages, "n": 1, "best_of": 3}).json()
        many = post(app, URL, {**SEARCH, "prompt": [PROMPT, PROMPT[:5]], "n": 2}).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert len({choice["message"]["content"] for choice in answer["choices"]}) == 3
    assert wider["choices"][0]["message"] == answer["choices"][0]["message"]
    assert [choice["index"] for choice in many["choices"]] == [0, 1, 2, 3]
    assert many["choices"][2]["text"].encode() == bytes(by_brute_force(PROMPT[:5], 2, 6)[0][0][5:])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stream", True),
        ("temperature", 0.5),
        ("top_p", 0.5),
        ("top_k", 3),
        ("min_p", 0.1),
        ("typical_p", 0.5),
        ("repetition_penalty", 1.2),
        ("presence_penalty", 1.0),
        ("frequency_penalty", 1.0),
        ("logit_bias", {"3": 1.0}),
        ("min_tokens", 2),
        ("stop", "x"),
        ("stop_token_ids", [3]),
        ("prompt_logprobs", 1),
        ("explain", True),
        ("length_penalty", 1000.0),
        ("early_stopping", "always"),
        ("best_of", 65),
        ("n", 65),
    ],
)
@pytest.mark.parametrize("url", [URL, CHAT])
def test_what_a_search_does_not_take_is_named(url: str, field: str, value: object) -> None:
    content = {"prompt": "a"} if url == URL else {"messages": [{"role": "user", "content": "a"}]}
    error = error_of(post(fake_app(always("x")), url, {**SEARCH, **content, field: value}))
    assert error["param"] == field
    assert field in error["message"] or field == "stream"


def test_other_refusals() -> None:
    app = fake_app(always("x"))
    for more, param in (
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"echo": True, "logprobs": 1}, "echo"),
    ):
        assert error_of(post(app, URL, {**SEARCH, "prompt": "a", **more}))["param"] == param


def test_fields_of_a_search_without_one_are_told() -> None:
    app = fake_app(always("x"))
    sent = {"messages": [{"role": "user", "content": "a"}], "best_of": 2, "length_penalty": 0.5}
    warning = post(app, CHAT, sent).headers["x-octavo-warning"]
    assert "best_of has no effect" in warning
    assert "length_penalty has no effect" in warning


def test_who_hangs_up_stops_the_search() -> None:
    async def scene(app: FastAPI, engine: Engine) -> int:
        sent = {**SEARCH, "prompt": PROMPT, "n": 3, "max_tokens": 180}
        task = asyncio.create_task(send(app, "POST", URL, sent))
        while engine.stats().num_generated_tokens < 20:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        while engine.has_work:
            await asyncio.sleep(0.001)
        return engine.stats().num_generated_tokens

    with served() as (app, engine):
        assert asyncio.run(scene(app, engine)) < 3 * 180 - 3
