"""What front ends note of the time of requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from octavo.api.async_llm import AsyncLLM
from octavo.api.llm import LLM
from octavo.api.processor import RequestOptions
from octavo.api.trace import RequestTrace, TraceLog
from octavo.messages import AddRequest, ChoiceOutput, EngineTimeline, StepOutputs
from octavo.observability.request_record import Cause
from octavo.outputs import RequestOutput, Usage
from octavo.params import SamplingParams
from tests.unit.api.fakes import (
    END,
    WORLD,
    FakeClient,
    FakeTokenizer,
    LoopClient,
    always,
    ids_of,
    processor,
    token,
)

EXPLAINED = SamplingParams(temperature=0.0, max_tokens=50, explain=True)


class TimedClient(FakeClient):
    """A FakeClient that tells times as an engine does: each request was queued for nothing, and decoded."""

    def add(self, message: AddRequest) -> None:
        super().add(message)
        self.added_s = time.perf_counter()

    def outputs(self) -> StepOutputs:
        outputs = super().outputs()
        for output in outputs.outputs:
            if output.finish_reason is not None:
                output.timeline = self.timeline()
        return outputs

    def timeline(self) -> EngineTimeline:
        now = time.perf_counter()
        return EngineTimeline(self.added_s, now, is_final=True, decode_s=now - self.added_s)


def async_llm(client: FakeClient) -> AsyncLLM:
    return AsyncLLM.from_client(
        lambda deliver: LoopClient(client, deliver), processor(), lambda: True
    )


def trace(request_id: str = "r", *, prompt: str = "abc") -> RequestTrace:
    request = AddRequest(request_id, ids_of(prompt), SamplingParams())
    return RequestTrace(request, FakeTokenizer(), time.perf_counter)


def test_the_log_keeps_the_last_ones() -> None:
    log = TraceLog(2)
    first, again = trace("a"), trace("a")
    for one in (first, trace("b"), again, trace("c")):
        log.add(one)
    assert log.find("b") is None
    assert log.find("a") is again
    assert log.find("c") is not None


def test_the_place_of_a_miss_is_shown_as_text() -> None:
    one = trace(prompt="The same. " + "x" * 50)
    told = EngineTimeline(
        is_final=True, miss_reason="diverged", miss_at=10, miss_others=ids_of("y" * 50)
    )
    one.take(ChoiceOutput("r", 0, timeline=told))
    one.finish("stop", Usage(60, 1))
    assert one.explanation().facts["miss"] == {
        "reason": "diverged",
        "token": 10,
        "text": "x" * 16,
        "others_text": "y" * 16,
    }
    assert one._prompt_ids is None  # a thousand prompts are not kept


def test_the_choice_that_ended_last_is_the_requests() -> None:
    one = trace()
    for index, until_s in enumerate((3.0, 5.0, 4.0)):
        one.take(
            ChoiceOutput("r", index, timeline=EngineTimeline(until_s=until_s, num_chunks=index))
        )
    assert one._record().timeline == EngineTimeline(until_s=5.0, num_chunks=1)


def test_an_output_carries_its_explanation_if_asked() -> None:
    with LLM.from_client(TimedClient(always("abc")), processor()) as llm:
        plain, explained = llm.generate(
            ["x", "x"], [SamplingParams(temperature=0.0), EXPLAINED], use_tqdm=False
        )
    assert plain.explanation is None
    assert explained.explanation is not None
    assert explained.explanation.kind is Cause.NOTHING_UNUSUAL
    assert explained.explanation.facts["completion_tokens"] == 4


def test_only_the_last_state_of_a_stream_is_explained() -> None:
    async def main() -> list[RequestOutput]:
        llm = async_llm(TimedClient(always("abc")))
        return [output async for output in llm.generate("x", EXPLAINED)]

    *before, last = asyncio.run(main())
    assert all(output.explanation is None for output in before)
    assert last.explanation is not None


def test_a_reader_of_llm_stream_who_takes_long_is_named() -> None:
    with LLM.from_client(TimedClient(token(WORLD)), processor()) as llm:
        outputs = []
        for output in llm.stream("x", SamplingParams(max_tokens=5, explain=True, seed=1)):
            outputs.append(output)
            time.sleep(0.01)
    explanation = outputs[-1].explanation
    assert explanation is not None
    assert explanation.facts["client_wait_s"] >= 0.04  # type: ignore[operator]


def test_a_reader_who_takes_long_is_named() -> None:
    async def main() -> AsyncLLM:
        llm = async_llm(TimedClient(always("a" * 30)))
        async for output in llm.generate("x", EXPLAINED, "slow"):
            if output.is_finished:
                await asyncio.sleep(0.2)
        return llm

    llm = asyncio.run(main())
    explanation = llm.explain("slow")
    assert explanation is not None
    assert explanation.kind is Cause.SLOW_CLIENT
    assert explanation.parts["client"] >= 0.2
    assert abs(explanation.parts["other"]) <= 0.01 * explanation.total_s
    assert llm.explain("slow", tenant="somebody else") is None
    assert llm.explain("unknown") is None


def test_another_tenant_asks_for_its_own() -> None:
    async def main() -> AsyncLLM:
        llm = async_llm(TimedClient(always("a")))
        options = RequestOptions(tenant="t")
        prepared = await llm.prepare(["x"], EXPLAINED, options=options, request_id="r")
        async with llm.submit(prepared) as sent:
            async for _ in sent:
                pass
        return llm

    llm = asyncio.run(main())
    assert llm.explain("r") is None
    assert llm.explain("r", tenant="t") is not None


def test_a_request_that_was_left_is_explained_when_the_engine_has_ended_it() -> None:
    client = TimedClient(token(WORLD))

    async def main() -> AsyncLLM:
        llm = async_llm(client)
        outputs = llm.generate("x", EXPLAINED, "left")
        await anext(outputs)
        await outputs.aclose()  # type: ignore[attr-defined]
        assert llm.explain("left").kind is Cause.UNKNOWN  # type: ignore[union-attr]
        await asyncio.sleep(0.01)
        return llm

    explanation = asyncio.run(main()).explain("left")
    assert client.aborted == ["left"]
    assert explanation is not None
    assert explanation.kind is Cause.NOTHING_UNUSUAL
    assert explanation.facts["finish_reason"] == "abort"


def test_a_request_cut_off_by_a_stop_string_is_explained() -> None:
    params = SamplingParams(temperature=0.0, max_tokens=50, stop=("b",), explain=True)

    async def main() -> AsyncLLM:
        llm = async_llm(TimedClient(always("abcd")))
        async for _ in llm.generate("x", params, "cut"):
            pass
        await asyncio.sleep(0.01)
        return llm

    explanation = asyncio.run(main()).explain("cut")
    assert explanation is not None
    assert explanation.facts["finish_reason"] == "stop"
    assert abs(explanation.parts["other"]) <= 0.01 * explanation.total_s


def test_who_is_answered_together_with_a_longer_one_is_not_slow() -> None:
    delivers: list[Callable[[StepOutputs], None]] = []
    client = TimedClient(lambda request, index: [*request.prompt_token_ids, END])

    def make_client(deliver: Callable[[StepOutputs], None]) -> FakeClient:
        delivers.append(deliver)
        return client

    async def main() -> list[RequestTrace]:
        llm = AsyncLLM.from_client(make_client, processor(), lambda: True)
        prepared = await llm.prepare(["a", "b" * 40], EXPLAINED)
        async with llm.submit(prepared) as sent:
            batches = aiter(sent)
            while llm.num_in_flight:
                delivers[0](client.outputs())
                await anext(batches)
                await asyncio.sleep(0.002)
            return [state.trace for state in sent.states]

    short, long = [trace.explanation() for trace in asyncio.run(main())]
    assert short.facts["completion_tokens"] == 2
    assert long.total_s > short.total_s + 0.05
