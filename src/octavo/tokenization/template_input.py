"""What a chat template is given: a copy of the caller's data in plain types, with control-token text marked."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Final

from octavo.errors import InvalidRequest
from octavo.tokenization.control_text import ControlText
from octavo.tokenization.template_env import InputList

_MAX_DEPTH: Final = 100
_NODE_BYTES: Final = 16
_ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool"})
_UNMARKED_EDGES: Final = frozenset({"role", "type", "id", "tool_call_id"})
"""Fields that templates compare or measure; a mark at their ends would be seen."""


class InputSize:
    """Adds up the bytes of values while walking them."""

    def __init__(self) -> None:
        self.num_bytes = 0

    def walk(self, value: object, depth: int = 0) -> Iterator[str]:
        """Every string in `value`, keys included. Raises InvalidRequest if it is nested too deeply."""
        if depth > _MAX_DEPTH:
            raise InvalidRequest(
                f"the messages are nested more than {_MAX_DEPTH} levels deep", param="messages"
            )
        self.num_bytes += _NODE_BYTES
        if isinstance(value, str):
            self.num_bytes += sys.getsizeof(value)
            yield value
        elif isinstance(value, Mapping):
            for key, item in value.items():
                yield from self.walk(key, depth + 1)
                yield from self.walk(item, depth + 1)
        elif isinstance(value, (list, tuple)):
            for item in value:
                yield from self.walk(item, depth + 1)


def plain(value: object) -> object:
    """Return a deep copy of JSON-like data in plain types; anything else is refused."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    raise InvalidRequest(
        f"messages hold JSON values only, not {type(value).__name__}", param="messages"
    )


def marked(value: object, control_text: ControlText, mark: str, *, key: str = "") -> object:
    """Return a copy of plain data with control-token text marked, in keys too."""
    if isinstance(value, str):
        if key == "role" and value in _ROLES:
            return value
        return control_text.mark(value, mark, with_edges=key not in _UNMARKED_EDGES)
    if isinstance(value, dict):
        return {
            control_text.mark(name, mark, with_edges=False): marked(
                item, control_text, mark, key=name
            )
            for name, item in value.items()
        }
    if isinstance(value, list):
        return InputList(marked(item, control_text, mark) for item in value)
    return value


def argument_objects(messages: object) -> Iterator[object]:
    """The arguments of every tool call in `messages` that has them as an object."""
    for message in messages if isinstance(messages, list) else ():
        for call in message.get("tool_calls") or ():
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict) and isinstance(function.get("arguments"), dict):
                yield function["arguments"]
