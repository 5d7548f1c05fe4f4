"""Messages and tools are checked and evened out, and errors name the field."""

from __future__ import annotations

import pytest

from octavo.api.messages import normalise_messages, normalise_tools
from octavo.errors import InvalidRequest

CALL = {"id": "c1", "function": {"name": "f", "arguments": '{"a": 1}'}}


def test_null_keys_are_left_out_and_null_content_is_empty() -> None:
    message = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [CALL]}
    (result,) = normalise_messages([message])
    assert result == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", **CALL}],
    }
    assert message["content"] is None


def test_a_tool_result_gets_the_name_of_its_function() -> None:
    calls = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    answer = {"role": "tool", "tool_call_id": "c1", "content": "4"}
    assert normalise_messages([calls, answer])[1]["name"] == "f"
    assert normalise_messages([calls, {**answer, "name": "g"}])[1]["name"] == "g"
    assert "name" not in normalise_messages([{"role": "tool", "content": "4"}])[0]


def test_missing_arguments_are_none_and_objects_are_kept() -> None:
    def arguments(function: dict[str, object]) -> object:
        (result,) = normalise_messages(
            [{"role": "assistant", "tool_calls": [{"function": function}]}]
        )
        return result["tool_calls"][0]["function"]["arguments"]

    assert arguments({"name": "f"}) == "{}"
    assert arguments({"name": "f", "arguments": {"a": 1}}) == {"a": 1}


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("Hi", "messages"),
        (["Hi"], "messages[0]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": "x", "tool_calls": [CALL]}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": "f"}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].function.name"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            [{"role": "assistant", "tool_calls": [{**CALL, "id": 5}]}],
            "messages[0].tool_calls[0].id",
        ),
        ([{"role": "tool", "tool_call_id": "x", "content": ""}], "messages[0].tool_call_id"),
    ],
)
def test_wrong_messages_are_refused_by_field(messages: object, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        normalise_messages(messages)
    assert caught.value.param == param


def test_tools_are_checked() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    assert normalise_tools(None) is None
    assert normalise_tools([]) is None
    assert normalise_tools([tool]) == [tool]
    for tools, param in (
        ("f", "tools"),
        ([tool, {}], "tools[1].function.name"),
        ([5], "tools[0].function.name"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            normalise_tools(tools)
        assert caught.value.param == param
