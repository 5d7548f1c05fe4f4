"""The forms in which a conversation with tool calls is offered to a template, because templates disagree on them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

Message = dict[str, object]

_ID_RULE: Final = re.compile(
    r"\bids?\b.*\b(?:length|alphanumeric)|\b(?:length|alphanumeric)\b.*\bids?\b", re.I | re.S
)
_ID_LENGTH: Final = 9
_ID_ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Variant:
    """One form: tool arguments as objects or JSON text, empty content beside tool calls as "" or None."""

    arguments_as_text: bool = False
    empty_content_as_none: bool = False


def variants(messages: Sequence[Message], source: str) -> list[list[Variant]]:
    """The forms to try with the template `source`, in groups; of a group, the first that renders is taken."""
    calls = [message for message in messages if message.get("tool_calls")]
    may_want_none = "none" in source.lower() and any(
        not message.get("content") for message in calls
    )
    return [
        [Variant(as_text, as_none) for as_text in ((False, True) if calls else (False,))]
        for as_none in ((False, True) if may_want_none else (False,))
    ]


def apply(messages: Sequence[Message], variant: Variant) -> list[Message]:
    """Return `messages` in the form of `variant`. Arguments that are no JSON object stay text."""
    result = []
    for original in messages:
        message = dict(original)
        calls = message.get("tool_calls")
        if isinstance(calls, (list, tuple)):
            message["tool_calls"] = [
                _with_arguments(call, as_text=variant.arguments_as_text) for call in calls
            ]
            if calls and not message.get("content"):
                message["content"] = None if variant.empty_content_as_none else ""
        result.append(message)
    return result


def _with_arguments(call: object, *, as_text: bool) -> object:
    if not isinstance(call, dict) or not isinstance(function := call.get("function"), dict):
        return call
    arguments = function.get("arguments")
    if as_text and isinstance(arguments, dict):
        arguments = json.dumps(arguments, ensure_ascii=False)
    elif not as_text and isinstance(arguments, str):
        arguments = _parse_object(arguments)
    elif arguments is None:
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _parse_object(text: str) -> object:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def tool_variants(tools: object) -> Iterator[object]:
    """The forms of a tool list, best first: an empty list for templates that always loop over it, and parameters with
    the type and description that some templates read unasked."""
    yield tools or None
    yield [_with_parameter_defaults(tool) for tool in tools] if isinstance(tools, list) else []


def _with_parameter_defaults(tool: object) -> object:
    if not isinstance(tool, dict) or not isinstance(function := tool.get("function"), dict):
        return tool
    parameters = function.get("parameters")
    parameters = parameters if isinstance(parameters, dict) else {}
    properties = parameters.get("properties")
    filled = {
        name: {"type": "string", "description": "", **schema}
        if isinstance(schema, dict)
        else schema
        for name, schema in (properties if isinstance(properties, dict) else {}).items()
    }
    parameters = {"type": "object", "required": [], **parameters, "properties": filled}
    return {**tool, "function": {"description": "", **function, "parameters": parameters}}


def called_names(messages: Sequence[Message]) -> list[str]:
    """Names of all functions called in `messages`."""
    names = []
    for message in messages:
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, (list, tuple)) else ():
            function = call.get("function") if isinstance(call, dict) else None
            name = function.get("name") if isinstance(function, dict) else None
            if isinstance(name, str):
                names.append(name)
    return names


def restricts_ids(error_text: str) -> bool:
    """Whether a template's own error says that tool call ids must have a certain form."""
    return _ID_RULE.search(error_text) is not None


def with_short_ids(messages: Sequence[Message]) -> list[Message]:
    """Return `messages` with each tool call id as 9 letters and digits, the same in call and result.

    The new id depends on the old one only. A call without id gets one from its position; a result without id belongs to
    the first call that has no result yet.
    """
    result = []
    waiting: list[str] = []
    for message_idx, original in enumerate(messages):
        message = dict(original)
        calls = message.get("tool_calls")
        if isinstance(calls, (list, tuple)):
            renamed = [
                {**call, "id": _short_id(call.get("id") or f"{message_idx}:{call_idx}")}
                if isinstance(call, dict)
                else call
                for call_idx, call in enumerate(calls)
            ]
            message["tool_calls"] = renamed
            waiting += [call["id"] for call in renamed if isinstance(call, dict)]
        elif message.get("role") == "tool":
            old_id = message.get("tool_call_id")
            new_id = (
                _short_id(old_id)
                if old_id
                else (waiting[0] if waiting else _short_id(f"{message_idx}"))
            )
            message["tool_call_id"] = new_id
            if new_id in waiting:
                waiting.remove(new_id)
        result.append(message)
    return result


def _short_id(old: object) -> str:
    text = str(old)
    if len(text) == _ID_LENGTH and text.isascii() and text.isalnum():
        return text
    number = int.from_bytes(
        hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big"
    )
    digits = []
    for _ in range(_ID_LENGTH):
        number, digit = divmod(number, len(_ID_ALPHABET))
        digits.append(_ID_ALPHABET[digit])
    return "".join(digits)
