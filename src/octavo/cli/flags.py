"""Command-line flags made from config dataclasses: declared once, in the dataclass."""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from enum import Enum
from typing import Annotated, Any, Final, get_args, get_type_hints

from cyclopts import CycloptsError, Parameter, Token

from octavo.config import parse_size
from octavo.dtypes import KV_DTYPE_BY_NAME, KVDType
from octavo.errors import InvalidRequest

_HIDDEN: Final = frozenset({"n"})
"""Fields that no verb can show the result of."""


def with_flags(
    defaults: Mapping[str, object] | None = None, /, **groups: type
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a verb one flag per field of each dataclass; the verb receives the built objects by group name.

    `@with_flags(sampling=SamplingParams)` on `def run(model, *, sampling)` yields `run(model, *, temperature=1.0, ...)`.
    A field without default is taken from the verb's own argument of that name. `defaults` replaces field defaults.
    An InvalidRequest that names a flag, from a dataclass or from the verb, becomes wrong usage.
    """
    replaced = dict(defaults or {})

    def decorate(verb: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(verb, eval_str=True)
        own = [p for p in signature.parameters.values() if p.name not in groups]
        own_signature = signature.replace(parameters=own)
        flags = [flag for cls in groups.values() for flag in _flags_of(cls, replaced)]
        default_by_name = {flag.name: flag.default for flag in flags}

        @functools.wraps(verb)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            given = default_by_name | {
                k: kwargs.pop(k) for k in list(kwargs) if k in default_by_name
            }
            bound = own_signature.bind(*args, **kwargs)
            bound.apply_defaults()
            known = given | bound.arguments
            try:
                built = {
                    group: cls(**{f.name: known[f.name] for f in fields(cls) if f.name in known})
                    for group, cls in groups.items()
                }
                return verb(*bound.args, **bound.kwargs, **built)
            except InvalidRequest as error:
                if error.param not in default_by_name:
                    raise
                raise CycloptsError(msg=_spelled_as_flag(error)) from None

        parameters = [*own, *flags]
        wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
        return wrapper

    return decorate


def _flags_of(cls: type, replaced: Mapping[str, object]) -> list[inspect.Parameter]:
    hints = get_type_hints(cls)
    section = re.sub(r"(Config|Params)$", "", cls.__name__)
    return [
        _flag(f, hints[f.name], replaced, section)
        for f in fields(cls)
        if f.name not in _HIDDEN and _has_default(f)
    ]


def _has_default(f: Field[Any]) -> bool:
    return f.default is not MISSING or f.default_factory is not MISSING


def _default(f: Field[Any]) -> object:
    return f.default_factory() if f.default_factory is not MISSING else f.default


def _flag(
    f: Field[Any], hint: Any, replaced: Mapping[str, object], section: str
) -> inspect.Parameter:
    default = replaced.get(f.name, _default(f))
    options: dict[str, Any] = {
        "name": [_spelling(name) for name in (f.name, *f.metadata.get("aliases", ()))],
        "help": f.metadata.get("help", ""),
        "group": section,
    }
    if f.name.endswith("_bytes") or f.metadata.get("is_size"):
        options.update(converter=_size, metavar="SIZE")
        if default is not None:
            options["show_default"] = _size_text
    elif hint == dict[int, float]:
        options.update(
            converter=_bias, accepts_keys=False, n_tokens=1, metavar="JSON", show_default=False
        )
    elif hint in (tuple[str, ...], tuple[int, ...]):
        options.update(negative=(), show_default=False)
        options["help"] += "; may be given again"
    elif hint is bool and default is False:
        options.update(negative=(), show_default=False)
    elif hint in (int, int | None):
        options["converter"] = _whole
    elif hint == KVDType | None:
        options.update(converter=_kv_dtype, metavar="TYPE", show_choices=False, show_default=False)
    elif isinstance(default, Enum):
        options["show_default"] = lambda value: _choice(value.name)
        options["name_transform"] = _choice
    elif any(isinstance(kind, type) and issubclass(kind, Enum) for kind in get_args(hint)):
        options["name_transform"] = _choice
    return inspect.Parameter(
        f.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[hint, Parameter(**options)],
    )


def _spelling(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _choice(name: str) -> str:
    """An enum member as it is typed; the library's own rule would cut INT8X2 into int8-x2."""
    return name.lower().replace("_", "-")


def _spelled_as_flag(error: InvalidRequest) -> str:
    """The error's message, its first word as the user wrote it."""
    name = error.param or ""
    return re.sub(rf"\b{name}\b", _spelling(name), error.message, count=1)


def _whole(type_: Any, tokens: Sequence[Token]) -> int:
    """An int, where cyclopts would round 5.5."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r} is not a whole number") from None


def _size(type_: Any, tokens: Sequence[Token]) -> int:
    return parse_size(tokens[0].value)


def _size_text(num_bytes: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if num_bytes % size == 0:
            return f"{num_bytes // size}{unit}"
    return str(num_bytes)


def _kv_dtype(type_: Any, tokens: Sequence[Token]) -> KVDType | None:
    """A KV type by any of its spellings; None for "auto"."""
    if tokens[0].value.lower() == "auto":
        return None
    found = KV_DTYPE_BY_NAME.get(tokens[0].value.lower())
    if found is None:
        choices = ", ".join(f'"{name}"' for name in KV_DTYPE_BY_NAME)
        raise ValueError(f'no KV type "{tokens[0].value}": choose one of {choices}')
    return found


def _bias(type_: Any, tokens: Sequence[Token]) -> dict[int, float]:
    """A JSON object of id to bias, such as '{"905": -100}'."""
    try:
        value = json.loads(tokens[0].value)
        return {int(k): float(v) for k, v in value.items()}
    except (ValueError, TypeError, AttributeError):
        raise ValueError('write a JSON object of token id to bias, such as {"905": -100}') from None
