"""Checks and evens out the messages and tools of a conversation before a chat template sees them.

Content parts are joined by a newline. The role developer becomes system. Keys whose value is null are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from octavo.errors import InvalidRequest

_ROLES: Final = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_TEXT_PARTS: Final = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
}
_PART_SEPARATOR: Final = "\n"


def normalise_messages(messages: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """Return messages with a known role and string content. The input stays as it is.

    A tool result without name gets that of the function it answers. Raises InvalidRequest that names the field.
    """
    if isinstance(messages, str) or not isinstance(messages, Sequence) or not messages:
        raise InvalidRequest("messages must be a list with at least one message", param="messages")
    name_by_call_id: dict[str, str] = {}
    return [
        _normalise(message, f"messages[{i}]", name_by_call_id) for i, message in enumerate(messages)
    ]


def _normalise(
    message: Mapping[str, object], where: str, name_by_call_id: dict[str, str]
) -> dict[str, object]:
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{where} must be an object", param=where)
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise InvalidRequest(
            f"unknown role {role!r}: use {', '.join(_ROLES)}", param=f"{where}.role"
        )
    result = {key: value for key, value in message.items() if value is not None}
    result["role"] = _ROLES[role]
    result["content"] = _content(
        message.get("content"), f"{where}.content", may_be_null=role in ("assistant", "tool")
    )
    calls = result.pop("tool_calls", None)
    if calls:
        if role != "assistant":
            raise InvalidRequest("only the assistant calls tools", param=f"{where}.tool_calls")
        result["tool_calls"] = _tool_calls(calls, f"{where}.tool_calls", name_by_call_id)
    if role == "tool":
        _check_answer(result, where, name_by_call_id)
    return result


def _content(content: object, where: str, *, may_be_null: bool) -> str:
    if isinstance(content, str):
        return content
    if content is None and may_be_null:
        return ""
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise InvalidRequest(f"{where} must be a string or a list of parts", param=where)
    return _PART_SEPARATOR.join(_part(part, f"{where}[{j}]") for j, part in enumerate(content))


def _part(part: object, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    key = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if not isinstance(part, Mapping) or key is None:
        raise InvalidRequest(
            f"this model takes text only, not content of type {kind!r}", param=where
        )
    text = part.get(key)
    if not isinstance(text, str):
        raise InvalidRequest(f"{where}.{key} must be a string", param=f"{where}.{key}")
    return text


def _tool_calls(
    calls: object, where: str, name_by_call_id: dict[str, str]
) -> list[dict[str, object]]:
    if not isinstance(calls, Sequence) or isinstance(calls, (str, bytes)):
        raise InvalidRequest(f"{where} must be a list", param=where)
    result = []
    for j, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if (
            not isinstance(call, Mapping)
            or not isinstance(function, Mapping)
            or not isinstance(name, str)
        ):
            raise InvalidRequest(
                "a tool call needs function.name", param=f"{where}[{j}].function.name"
            )
        arguments = function.get("arguments")
        if not isinstance(arguments, (str, Mapping, type(None))):
            raise InvalidRequest(
                "tool arguments must be JSON text or an object",
                param=f"{where}[{j}].function.arguments",
            )
        call_id = call.get("id")
        if not isinstance(call_id, (str, type(None))):
            raise InvalidRequest("a tool call id must be a string", param=f"{where}[{j}].id")
        if call_id:
            name_by_call_id[call_id] = name
        filled = {**function, "arguments": "{}" if arguments is None else arguments}
        result.append({"type": "function", **call, "function": filled})
    return result


def _check_answer(
    message: dict[str, object], where: str, name_by_call_id: Mapping[str, str]
) -> None:
    call_id = message.get("tool_call_id")
    if call_id is None:
        return
    name = name_by_call_id.get(call_id) if isinstance(call_id, str) else None
    if name is None:
        raise InvalidRequest(
            f"tool_call_id {call_id!r} answers no tool call before it",
            param=f"{where}.tool_call_id",
        )
    message.setdefault("name", name)


def normalise_tools(
    tools: Sequence[Mapping[str, object]] | None,
) -> list[Mapping[str, object]] | None:
    """Return the tools, or None if there are none. Raises InvalidRequest that names the field."""
    if tools is None:
        return None
    if isinstance(tools, (str, bytes)) or not isinstance(tools, Sequence):
        raise InvalidRequest("tools must be a list", param="tools")
    for i, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or not name:
            raise InvalidRequest("a tool needs function.name", param=f"tools[{i}].function.name")
    return list(tools) or None
