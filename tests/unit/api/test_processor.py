from __future__ import annotations

import pytest

from octavo.api.processor import ChatOptions, Processor, RequestOptions
from octavo.errors import ContextLengthExceeded, InvalidRequest
from octavo.params import SamplingParams
from tests.unit.api.fakes import END, INFO, START, VOCAB_SIZE, FakeTokenizer, ids_of, processor

PARAMS = SamplingParams(max_tokens=4)


@pytest.mark.parametrize(
    "prompt", ["hi", [104, 105], {"prompt": "hi"}, {"prompt_token_ids": [104, 105]}]
)
def test_every_form_of_a_prompt_gives_its_ids(prompt: object) -> None:
    prepared = processor().prepare(prompt, PARAMS, "r")  # type: ignore[arg-type]
    assert prepared.request.prompt_token_ids == [104, 105]
    assert prepared.prompt == (
        None if isinstance(prompt, list) or "prompt_token_ids" in prompt else "hi"
    )  # type: ignore[operator]


def test_a_request_reaches_the_engine_with_every_value_resolved() -> None:
    request = processor().prepare("hi", SamplingParams(max_tokens=None, seed=-1), "r").request
    assert request.params.max_tokens == 98
    assert request.params.seed == 2**64 - 1
    assert request.eos_token_ids == [END]


def test_control_tokens_in_a_raw_prompt_are_parsed() -> None:
    assert processor().prepare("<|start|>a", PARAMS, "r").request.prompt_token_ids == [START, 97]


def test_seeds_differ_between_requests_and_repeat_between_processors() -> None:
    def seeds() -> list[int | None]:
        p = processor(seed=7)
        return [p.prepare("x", PARAMS, str(i)).request.params.seed for i in range(3)]

    assert len(set(seeds())) == 3
    assert seeds() == seeds()


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("", "empty"),
        ([], "empty"),
        ([VOCAB_SIZE], f"token id {VOCAB_SIZE}"),
        ([-1], "token id -1"),
        ([2**63], "vocabulary"),
        ([1.5], "whole numbers"),
        ([True], "whole numbers"),
        (5, "a prompt is"),
        ({"prompt": "x", "multi_modal_data": {}}, "text only"),
    ],
)
def test_a_bad_prompt_is_refused_with_its_reason(prompt: object, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text) as caught:
        processor().prepare(prompt, PARAMS, "r")  # type: ignore[arg-type]
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("params", "param"),
    [
        (SamplingParams(stop_token_ids=(VOCAB_SIZE,)), "stop_token_ids"),
        (SamplingParams(logit_bias={-1: 1.0}), "logit_bias"),
        (SamplingParams(max_tokens=None, min_tokens=99), "min_tokens"),
    ],
)
def test_parameters_that_the_model_cannot_serve_are_refused(
    params: SamplingParams, param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        processor().prepare("hi", params, "r")
    assert caught.value.param == param


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers() -> None:
    with pytest.raises(
        ContextLengthExceeded, match=r"maximum context length is 100 .*101"
    ) as caught:
        processor().prepare([1] * 101, PARAMS, "r")
    assert caught.value.param == "prompt"


def test_a_full_context_leaves_room_for_no_output_only() -> None:
    with pytest.raises(ContextLengthExceeded):
        processor().prepare([1] * 100, SamplingParams(max_tokens=None), "r")
    request = processor().prepare([1] * 100, SamplingParams(max_tokens=0), "r").request
    assert request.params.max_tokens == 0


def test_an_explicit_max_tokens_is_never_cut_but_a_default_is() -> None:
    with pytest.raises(ContextLengthExceeded) as caught:
        processor().prepare([1] * 99, SamplingParams(max_tokens=2), "r")
    assert caught.value.param == "max_tokens"
    options = RequestOptions(default_max_tokens=16)
    request = (
        processor().prepare([1] * 99, SamplingParams(max_tokens=None), "r", options=options).request
    )
    assert request.params.max_tokens == 1


def test_the_prompt_at_fault_is_named_among_several() -> None:
    prompts = ["a", [1] * 200, "b"]
    with pytest.raises(ContextLengthExceeded, match="index 1"):
        processor().prepare_all(prompts, [PARAMS] * 3, ["0", "1", "2"])


def test_a_conversation_is_rendered_with_the_models_template() -> None:
    prepared = processor().prepare_chat([{"role": "user", "content": "Hi"}], PARAMS, "r")
    assert prepared.request.prompt_token_ids == [
        START, *ids_of("user\nHi"), END, START, *ids_of("assistant\n"),
    ]  # fmt: skip
    assert prepared.prompt is None


def test_without_template_a_chat_is_refused_with_the_way_out() -> None:
    with pytest.raises(InvalidRequest, match="--chat-template"):
        processor(chat_template=None).render([{"role": "user", "content": "Hi"}])
    chat = ChatOptions(chat_template="{{ messages[0].content }}")
    assert processor(chat_template=None).render([{"role": "user", "content": "Hi"}], chat) == [
        72,
        105,
    ]


def test_prefill_and_generation_prompt_exclude_each_other() -> None:
    chat = ChatOptions(continue_final_message=True, add_generation_prompt=True)
    with pytest.raises(InvalidRequest, match="exclude"):
        processor().render([{"role": "assistant", "content": "x"}], chat)


def test_a_conversation_too_long_names_the_messages() -> None:
    with pytest.raises(ContextLengthExceeded, match="maximum context length is 100") as caught:
        processor().prepare_chat([{"role": "user", "content": "x" * 200}], PARAMS, "r")
    assert caught.value.param == "messages"


def test_what_is_far_too_long_is_refused_before_it_is_tokenised() -> None:
    class Counting(FakeTokenizer):
        num_encoded = 0

        def encode(self, text: str, **options: object) -> list[int]:
            self.num_encoded += 1
            return super().encode(text, **options)  # type: ignore[arg-type]

    tokenizer = Counting()
    one = Processor(INFO, tokenizer, chat_template=None)
    with pytest.raises(ContextLengthExceeded, match="characters"):
        one.encode("x" * 100_000, add_special=True)
    assert tokenizer.num_encoded == 0
    assert len(one.encode("x" * 1000, add_special=True)) == 1000
