from __future__ import annotations

import pytest

from tests.server.wire import error_of, events, fake_app, post
from tests.unit.api.fakes import END, WORLD, FakeClient, always, ids_of, token

URL = "/v1/completions"


def own_prompt(request: object, index: int) -> list[int]:
    return [*request.prompt_token_ids, END]  # type: ignore[attr-defined]


def test_an_answer_has_the_shape_of_the_openai_api() -> None:
    body = post(fake_app(always("out")), URL, {"prompt": "in", "max_tokens": 9}).json()
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {"index": 0, "text": "out", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    ]
    assert body["usage"]["total_tokens"] == 6


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("ab", ["ab"]),
        ([97, 98], ["ab"]),
        (["a", "b"], ["a", "b"]),
        ([[97], [98, 99]], ["a", "bc"]),
        (["a", [98]], ["a", "b"]),
    ],
)
def test_every_form_of_prompt_is_answered_in_order(prompt: object, texts: list[str]) -> None:
    body = post(fake_app(own_prompt), URL, {"prompt": prompt}).json()
    assert [choice["text"] for choice in body["choices"]] == texts
    assert [choice["index"] for choice in body["choices"]] == list(range(len(texts)))


def test_the_default_length_is_16_and_gives_way_to_the_context() -> None:
    app = fake_app(token(WORLD))
    assert post(app, URL, {"prompt": "x"}).json()["usage"]["completion_tokens"] == 16
    assert post(app, URL, {"prompt": [1] * 95}).json()["usage"]["completion_tokens"] == 5


def test_choices_are_numbered_prompt_by_prompt() -> None:
    app = fake_app(lambda request, index: [request.prompt_token_ids[0], *ids_of(str(index)), END])
    body = {"prompt": ["a", "b"], "n": 2, "seed": 1}
    answer = post(app, URL, body).json()
    assert [(c["index"], c["text"]) for c in answer["choices"]] == [
        (0, "a0"),
        (1, "a1"),
        (2, "b0"),
        (3, "b1"),
    ]
    assert answer["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 12,
        "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    chunks = [chunk["choices"][0] for chunk in events(post(app, URL, {**body, "stream": True}))]
    streamed = {i: "".join(c["text"] for c in chunks if c["index"] == i) for i in range(4)}
    assert streamed == {0: "a0", 1: "a1", 2: "b0", 3: "b1"}


def test_echo_with_logprobs_covers_prompt_and_answer() -> None:
    app = fake_app(lambda request, index: [WORLD] * 9)
    body = {"prompt": "Hé", "echo": True, "logprobs": 1, "max_tokens": 2}
    choice = post(app, URL, body).json()["choices"][0]
    assert choice["text"] == "Hé world world"
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == ["H", r"bytes:\xc3", r"bytes:\xa9", " world", " world"]
    assert logprobs["text_offset"] == [0, 1, 1, 2, 8]
    assert logprobs["token_logprobs"] == [None, -0.25, -0.25, -0.25, -0.25]
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["top_logprobs"][3] == {" world": -0.25}
    chunks = [chunk["choices"][0] for chunk in events(post(app, URL, {**body, "stream": True}))]
    assert "".join(c["text"] for c in chunks) == choice["text"]
    for name, values in logprobs.items():
        assert [v for c in chunks if c["logprobs"] for v in c["logprobs"][name]] == values


def test_max_tokens_0_scores_the_prompt_and_generates_nothing() -> None:
    app = fake_app(always("x"))
    body = {"prompt": "ab", "max_tokens": 0, "echo": True, "logprobs": 0}
    answer = post(app, URL, body).json()
    assert answer["choices"][0]["text"] == "ab"
    assert answer["choices"][0]["logprobs"]["tokens"] == ["a", "b"]
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0


def test_best_of_returns_the_likeliest_per_token() -> None:
    client = FakeClient(lambda request, index: [*ids_of("abc"[index]), END])
    scores = {0: -0.25, 1: -0.1, 2: -0.9}
    plain = client._step

    def step(key: tuple[str, int]):  # type: ignore[no-untyped-def]
        output = plain(key)
        for score in output.scores:
            score.logprob = scores[output.index]
        return output

    client._step = step  # type: ignore[method-assign]
    answer = post(fake_app(client), URL, {"prompt": "x", "best_of": 3, "n": 2, "seed": 1}).json()
    assert [(c["index"], c["text"], c["logprobs"]) for c in answer["choices"]] == [
        (0, "b", None),
        (1, "a", None),
    ]
    assert answer["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": [264]}, "prompt"),
        ({"prompt": ["x"] * 1025}, "prompt"),
        ({"prompt": ["x"] * 100, "n": 100}, "n"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 99}, None),
        ({"max_tokens": 1e18}, "max_tokens"),
    ],
)
def test_a_bad_field_is_named(extra: dict[str, object], param: str | None) -> None:
    response = post(fake_app(token(WORLD)), URL, {"prompt": "x", **extra})
    if param is None:
        assert response.status_code == 200
    else:
        assert error_of(response)["param"] == param


def test_one_bad_prompt_of_a_list_refuses_all_and_is_named() -> None:
    error = error_of(post(fake_app(always("x")), URL, {"prompt": ["a", "x" * 200, "b"]}))
    assert "index 1" in error["message"]
    assert error["code"] == "context_length_exceeded"
