"""The official openai client against a server on a socket: what its users do, and the classes of its errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import openai
import pytest

from tests.server.test_lifecycle import Served, served
from tests.server.test_protocol import FullClient
from tests.server.wire import fake_app
from tests.unit.api.fakes import END, INFO, WORLD, FakeClient, always, ids_of

HI: list[Any] = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    """Answers "Hello", each further choice with its number."""
    script = fake_app(lambda request, index: [*ids_of("Hello" if index == 0 else str(index)), END])
    with served(script) as running:
        yield running


@pytest.fixture
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0) as client:
        yield client


def test_a_chat_answer_is_an_object_of_the_client(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="fake",
        messages=[{"role": "developer", "content": "Be brief."}, *HI],
        n=2,
        seed=7,
        logprobs=True,
        top_logprobs=2,
        max_completion_tokens=16,
        presence_penalty=0.1,
        logit_bias={"65": -1},
        stop=["nothing"],
        user="u",
        metadata={"a": "b"},
        service_tier="auto",
        prompt_cache_key="k",
        extra_body={"top_k": 5, "cache_salt": "s"},
    )
    assert [choice.message.content for choice in answer.choices] == ["Hello", "1"]
    assert {choice.finish_reason for choice in answer.choices} == {"stop"}
    first = answer.choices[0]
    assert first.message.role == "assistant"
    assert first.message.refusal is None
    assert first.message.tool_calls is None
    assert first.logprobs is not None
    assert [entry.token for entry in first.logprobs.content or ()][:2] == ["H", "e"]
    assert all(len(entry.top_logprobs) == 2 for entry in first.logprobs.content or ())
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8
    assert answer.usage.prompt_tokens_details.cached_tokens == 0  # type: ignore[union-attr]
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0  # type: ignore[union-attr]
    assert answer._request_id == answer.id


def test_the_helper_for_streams_builds_the_whole_answer(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="fake", messages=HI, logprobs=True, stream_options={"include_usage": True}
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "Hello"
    assert final.choices[0].finish_reason == "stop"
    assert final.usage is not None
    assert final.usage.completion_tokens == 6
    assert {"chunk", "content.delta", "content.done", "logprobs.content.delta"} <= set(kinds)


def test_streamed_choices_and_completions(client: openai.OpenAI) -> None:
    texts: dict[int, str] = {}
    for chunk in client.chat.completions.create(
        model="fake", messages=HI, n=3, seed=1, stream=True
    ):
        [choice] = chunk.choices
        texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    assert texts == {0: "Hello", 1: "1", 2: "2"}
    whole = client.completions.create(model="fake", prompt=["a", "b"], echo=True, logprobs=1)
    assert [choice.text for choice in whole.choices] == ["aHello", "bHello"]
    assert whole.choices[0].logprobs is not None
    assert whole.choices[0].logprobs.text_offset == [0, 1, 2, 3, 4, 5, 6]
    parts = client.completions.create(model="fake", prompt="a", stream=True)
    assert "".join(part.choices[0].text for part in parts) == "Hello"


def test_headers_are_in_the_raw_response(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="fake", messages=HI, extra_body={"mystery": 1}
    )
    assert raw.headers["x-octavo-warning"] == "ignored unknown fields: mystery"
    assert raw.headers["x-request-id"] == raw.parse().id
    with client.chat.completions.with_streaming_response.create(
        model="fake", messages=HI, stream=True
    ) as streamed:
        assert streamed.headers["content-type"].startswith("text/event-stream")
        assert list(streamed.iter_lines())[-2:] == ["data: [DONE]", ""]


def test_models_are_listed_and_found(client: openai.OpenAI) -> None:
    [model] = client.models.list()
    assert client.models.retrieve("fake") == model
    assert (model.id, model.owned_by) == ("fake", "octavo")


def test_errors_have_the_classes_of_the_client(client: openai.OpenAI) -> None:
    picture: Any = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    with pytest.raises(openai.BadRequestError, match="takes text only") as bad:
        client.chat.completions.create(
            model="fake", messages=[{"role": "user", "content": picture}]
        )
    assert bad.value.param == "messages[0].content[0]"
    assert bad.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="fake", prompt="x" * 200, stream=True)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nope")
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="fake", input="x")


def test_a_wrong_key_and_a_full_queue_and_a_dead_engine() -> None:
    dead = FakeClient(always("x"))
    cases: list[tuple[Any, type[openai.APIStatusError]]] = [
        (fake_app(always("x"), api_key="other"), openai.AuthenticationError),
        (fake_app(FullClient(always("x"))), openai.RateLimitError),
        (fake_app(dead), openai.InternalServerError),
    ]
    dead.close()
    for app, kind in cases:
        with (
            served(app) as server,
            openai.OpenAI(base_url=server.url + "/v1", api_key="k", max_retries=0) as client,
            pytest.raises(kind) as caught,
        ):
            client.completions.create(model="fake", prompt="x")
        if kind is openai.RateLimitError:
            assert caught.value.response.headers["retry-after"] == "5"


def test_an_error_in_a_stream_is_raised_while_it_is_read() -> None:
    late = FakeClient(always("abc"))
    late.fails_at = 2
    with (
        served(fake_app(late)) as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="k", max_retries=0) as client,
    ):
        stream = client.completions.create(model="fake", prompt="x", stream=True)
        with pytest.raises(openai.APIError, match="internal error"):
            list(stream)


def test_many_asynchronous_streams_at_once_and_one_that_is_left() -> None:
    engine = FakeClient(
        lambda request, index: [WORLD] * (request.params.max_tokens or 0),
        info=msgspec.structs.replace(INFO, max_model_len=1_000_001),
    )

    async def read(client: openai.AsyncOpenAI, num_tokens: int) -> str:
        stream = await client.completions.create(
            model="fake", prompt="x", max_tokens=num_tokens, stream=True
        )
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def main(url: str) -> None:
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="k", max_retries=0) as client:
            endless = await client.completions.create(
                model="fake", prompt="x", max_tokens=900_000, stream=True
            )
            await anext(endless)
            texts = await asyncio.gather(*(read(client, n) for n in range(1, 9)))
            assert texts == [" world" * n for n in range(1, 9)]
            await endless.close()
            for _ in range(500):
                if engine.aborted:
                    break
                await asyncio.sleep(0.01)
            assert len(engine.aborted) == 1

    with served(fake_app(engine)) as server:
        asyncio.run(main(server.url))


def test_a_timeout_of_the_client_stops_the_request() -> None:
    engine = FakeClient(
        lambda request, index: [WORLD] * 900_000,
        info=msgspec.structs.replace(INFO, max_model_len=1_000_001),
    )
    with (
        served(fake_app(engine)) as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="k", max_retries=0) as client,
    ):
        with pytest.raises(openai.APITimeoutError):
            client.completions.create(model="fake", prompt="x", max_tokens=900_000, timeout=0.3)
        for _ in range(500):
            if engine.aborted:
                break
            client.models.list()
        assert len(engine.aborted) == 1
