from __future__ import annotations

import gc
import threading

import pytest

from octavo.api.llm import LLM
from octavo.errors import EngineDead, InvalidRequest
from octavo.params import SamplingParams
from tests.unit.api.fakes import WORLD, FakeClient, always, ids_of, processor, token

GREEDY = SamplingParams(temperature=0.0, max_tokens=50)


def llm_with(client: FakeClient) -> LLM:
    return LLM.from_client(client, processor())


def echo(client_prompt: object, index: int) -> list[int]:
    """Answers with its own prompt, so that an answer shows whose it is."""
    return [*client_prompt.prompt_token_ids, 256]  # type: ignore[attr-defined]


def texts(outputs: list) -> list[str]:  # type: ignore[type-arg]
    return [output.outputs[0].text for output in outputs]


def test_results_come_in_the_order_of_the_prompts() -> None:
    prompts = ["short", "a much longer prompt", "x", *(str(i) for i in range(50))]
    assert texts(llm_with(FakeClient(echo)).generate(prompts, GREEDY)) == prompts


def test_every_shape_of_input_is_one_list_of_prompts() -> None:
    llm = llm_with(FakeClient(echo))
    assert llm.generate([], GREEDY) == []
    assert texts(llm.generate("one", GREEDY)) == ["one"]
    assert texts(llm.generate([104, 105], GREEDY)) == ["hi"]
    assert texts(llm.generate([[104, 105], [97]], GREEDY)) == ["hi", "a"]
    assert texts(llm.generate({"prompt": "d"}, GREEDY)) == ["d"]
    assert texts(llm.generate([{"prompt": "d"}, "e", [102]], GREEDY)) == ["d", "e", "f"]


def test_a_result_has_what_vllm_users_read() -> None:
    [output] = llm_with(FakeClient(always("out"))).generate("in", GREEDY)
    assert (output.prompt, output.prompt_token_ids) == ("in", [105, 110])
    assert output.finished
    completion = output.outputs[0]
    assert (completion.text, completion.finish_reason, completion.index) == ("out", "stop", 0)
    assert completion.token_ids == [*ids_of("out"), 256]


def test_without_params_the_answer_is_short_and_fits() -> None:
    client = FakeClient(token(WORLD))
    llm = llm_with(client)
    assert len(llm.generate("x")[0].outputs[0].token_ids) == 16
    assert len(llm.generate([1] * 95)[0].outputs[0].token_ids) == 5


def test_what_is_no_prompt_at_all_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="int"):
        llm_with(FakeClient(echo)).generate(5)  # type: ignore[arg-type]


def test_params_may_be_one_for_each_prompt() -> None:
    llm = llm_with(FakeClient(token(WORLD)))
    outputs = llm.generate(["a", "b"], [SamplingParams(max_tokens=1), SamplingParams(max_tokens=3)])
    assert [len(o.outputs[0].token_ids) for o in outputs] == [1, 3]
    with pytest.raises(InvalidRequest, match="1 sampling params for 2 prompts"):
        llm.generate(["a", "b"], [GREEDY])


def test_a_bad_prompt_starts_nothing_and_spoils_nothing() -> None:
    client = FakeClient(echo)
    llm = llm_with(client)
    with pytest.raises(ValueError, match="index 1"):
        llm.generate(["good", ""], GREEDY)
    assert client.requests == []
    assert texts(llm.generate("good", GREEDY)) == ["good"]


def test_a_stop_string_ends_the_request_in_the_engine_too() -> None:
    client = FakeClient(token(WORLD))
    [output] = llm_with(client).generate("x", SamplingParams(max_tokens=90, stop=("d w",)))
    assert output.outputs[0].text == " worl"
    assert output.outputs[0].stop_reason == "d w"
    assert client.aborted == [output.request_id]
    assert not client._open


def test_chat_takes_one_conversation_or_several() -> None:
    llm = llm_with(FakeClient(always("yes")))
    one = [{"role": "user", "content": "Hi"}]
    assert texts(llm.chat(one, GREEDY)) == ["yes"]
    assert texts(llm.chat([one, one], GREEDY)) == ["yes", "yes"]
    assert llm.chat([], GREEDY) == []


def test_a_stream_grows_and_ends_finished() -> None:
    states = list(llm_with(FakeClient(always("abc"))).stream("x", GREEDY))
    assert [state.outputs[0].text for state in states] == ["a", "ab", "abc", "abc"]
    assert [state.is_finished for state in states] == [False, False, False, True]


def test_leaving_a_stream_stops_its_request() -> None:
    client = FakeClient(token(WORLD))
    stream = llm_with(client).stream("x", GREEDY)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert len(client.aborted) == 1


def test_n_choices_are_separate() -> None:
    client = FakeClient(lambda request, index: [*ids_of("abc"[index]), 256])
    [output] = llm_with(client).generate("x", SamplingParams(n=3, max_tokens=5, seed=1))
    assert [(c.index, c.text) for c in output.outputs] == [(0, "a"), (1, "b"), (2, "c")]


def test_threads_share_one_engine() -> None:
    llm = llm_with(FakeClient(echo))
    results: dict[str, list[str]] = {}

    def work(name: str) -> None:
        prompts = [f"{name}{i}" for i in range(20)]
        results[name] = texts(llm.generate(prompts, GREEDY))

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert results == {name: [f"{name}{i}" for i in range(20)] for name in "abcd"}


def test_with_close_and_del_free_the_engine() -> None:
    first, second, third = (FakeClient(echo) for _ in range(3))
    with llm_with(first) as llm:
        llm.generate("x", GREEDY)
    assert first.is_closed
    with pytest.raises(EngineDead, match="closed"):
        llm.generate("x", GREEDY)
    llm = llm_with(second)
    llm.close()
    llm.close()
    assert second.is_closed
    llm = llm_with(third)
    del llm
    gc.collect()
    assert third.is_closed


def test_one_failed_request_does_not_take_the_others_with_it() -> None:
    client = FakeClient(always("abc"))
    client.fails_at = 2
    llm = llm_with(client)
    [output] = llm.generate("x", GREEDY)
    assert (output.outputs[0].text, output.outputs[0].finish_reason) == ("ab", "error")
    client.fails_at = None
    assert texts(llm.generate("x", GREEDY)) == ["abc"]
