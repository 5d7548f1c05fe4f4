"""What /openapi.json says of the routes, which read their bodies themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

_NULLABLE: Final = {"anyOf": [{"type": "string"}, {"type": "null"}]}
_ERROR_SCHEMA: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": _NULLABLE,
                "code": _NULLABLE,
            },
        }
    },
}


def _errors(description: str) -> dict[str, Any]:
    return {
        "description": description,
        "content": {"application/json": {"schema": _ERROR_SCHEMA}},
    }


ERRORS: Final[Mapping[int | str, dict[str, Any]]] = {
    "4XX": _errors("The request is at fault: `error` says which field and why."),
    "5XX": _errors("The server is at fault, or busy: `error` says why."),
}
"""The error answers of every route."""


def describe_body(body: type[msgspec.Struct]) -> dict[str, Any]:
    """The part of an operation that tells of its body."""
    schema = msgspec.json.schema(body, ref_template="#/components/schemas/{name}")
    definitions = schema.pop("$defs", {})
    own = _inlined(definitions.pop(body.__name__, schema), definitions)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": own}}}}


def _inlined(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """The schema without references: the few structs within a body are written where they stand."""
    if isinstance(schema, list):
        return [_inlined(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    if name in definitions:
        return _inlined(definitions[name], definitions)
    return {key: _inlined(value, definitions) for key, value in schema.items()}
