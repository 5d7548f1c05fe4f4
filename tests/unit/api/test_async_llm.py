from __future__ import annotations

import asyncio

import pytest

from octavo.api import async_llm
from octavo.api.async_llm import AsyncLLM
from octavo.errors import InvalidRequest
from octavo.outputs import Finished, FinishReason, TextDelta
from octavo.params import SamplingParams
from tests.unit.api.fakes import WORLD, FakeClient, LoopClient, always, processor, token

GREEDY = SamplingParams(temperature=0.0, max_tokens=50)


def llm_with(client: FakeClient) -> AsyncLLM:
    return AsyncLLM.from_client(
        lambda deliver: LoopClient(client, deliver), processor(), lambda: not client.is_closed
    )


def test_generate_yields_growing_outputs() -> None:
    async def main() -> list[str]:
        llm = llm_with(FakeClient(always("abc")))
        return [output.outputs[0].text async for output in llm.generate("x", GREEDY)]

    assert asyncio.run(main())[-1] == "abc"


def test_stream_yields_deltas_and_one_end() -> None:
    async def main() -> list:  # type: ignore[type-arg]
        llm = llm_with(FakeClient(always("abc")))
        return [event async for event in llm.stream("x", GREEDY)]

    *deltas, end = asyncio.run(main())
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == "abc"
    assert end == Finished(0, FinishReason.STOP)


def test_cancelling_the_reader_stops_the_request() -> None:
    client = FakeClient(token(WORLD))

    async def main() -> None:
        llm = llm_with(client)
        started = asyncio.Event()

        async def read() -> None:
            async for _ in llm.generate("x", GREEDY):
                started.set()

        task = asyncio.create_task(read())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert llm.num_in_flight == 0

    asyncio.run(main())
    assert len(client.aborted) == 1


def test_abort_ends_the_readers_stream_with_its_reason() -> None:
    async def main() -> str | None:
        llm = llm_with(FakeClient(token(WORLD)))
        async for output in llm.generate("x", GREEDY, "mine"):
            if not output.is_finished:
                await llm.abort("mine")
        return output.outputs[0].finish_reason

    assert asyncio.run(main()) == "abort"


def test_requests_answered_together_are_told_apart_by_position() -> None:
    async def main() -> list[int]:
        client = FakeClient(lambda request, index: [*request.prompt_token_ids, 256])
        llm = llm_with(client)
        prepared = await llm.prepare(["ab", "c"], GREEDY)
        lengths = [0, 0]
        async with llm.submit(prepared) as sent:
            async for batch in sent:
                for position, event in batch:
                    if isinstance(event, TextDelta):
                        lengths[position] += len(event.text)
        return lengths

    assert asyncio.run(main()) == [2, 1]


def test_one_bad_prompt_of_several_starts_none() -> None:
    client = FakeClient(always("x"))

    async def main() -> None:
        with pytest.raises(InvalidRequest, match="index 1"):
            await llm_with(client).prepare(["a", ""], GREEDY)

    asyncio.run(main())
    assert client.requests == []


def test_a_long_text_is_tokenised_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[bool] = []
    to_thread = asyncio.to_thread

    async def spy(work, *args, **kwargs):  # type: ignore[no-untyped-def]
        threads.append(True)
        return await to_thread(work, *args, **kwargs)

    monkeypatch.setattr(async_llm.asyncio, "to_thread", spy)

    async def main() -> None:
        llm = llm_with(FakeClient(always("x")))
        await llm.prepare(["x" * 50], GREEDY)
        assert threads == []
        with pytest.raises(InvalidRequest):
            await llm.prepare(["x" * 9000], GREEDY)
        assert threads == [True]

    asyncio.run(main())


def test_one_llm_serves_one_event_loop_after_the_other() -> None:
    client = FakeClient(always("abc"))
    llm = llm_with(client)

    async def main() -> str:
        outputs = [output async for output in llm.generate("x", GREEDY)]
        return outputs[-1].outputs[0].text

    assert [asyncio.run(main()), asyncio.run(main())] == ["abc", "abc"]


def test_end_all_gives_every_reader_an_error() -> None:
    async def main() -> list:  # type: ignore[type-arg]
        llm = llm_with(FakeClient(token(WORLD)))
        events = []
        async for event in llm.stream("x", GREEDY):
            events.append(event)
            llm.end_all("over")
        return events

    assert asyncio.run(main())[-1] == Finished(0, FinishReason.ERROR, error="over")
