"""The filters and tests of chat templates, each paying for its work before it is done."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from jinja2 import Undefined, pass_context
from jinja2.filters import FILTERS
from jinja2.runtime import Context
from jinja2.tests import TESTS
from jinja2.utils import _PassArg

from octavo.tokenization.template_limits import (
    charge_join,
    charge_replace,
    check_percent,
    check_width,
    weigh,
)
from octavo.tokenization.template_state import RenderState, state_of


def words(text: str) -> frozenset[str]:
    """The words of `text` as a set."""
    return frozenset(text.split())


_PRINTING_FILTERS: Final = words(
    "string safe escape e upper lower title capitalize trim center truncate indent replace format int float "
    "urlencode"
)
_COMPARING_FILTERS: Final = words("sort unique groupby min max dictsort")
_LAZY_OR_PICKING_FILTERS: Final = words(
    "abs attr count d default first items last length map reject rejectattr round select selectattr"
)
_WIDE_FILTERS: Final = words("batch center indent slice round")
_OTHER_FILTERS: Final = words("batch join list reverse slice")
_COMPARING_TESTS: Final = words("eq equalto == ne != lt lessthan < le <= gt greaterthan > ge >= in")
_ELEMENT_BYTES: Final = 32  # a number or character that a filter makes beside its place in a list


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write `value` as JSON the way templates were made for: no HTML escapes, keys in their order."""
    check_width((indent, *(separators or ())))
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_list_of_iterator,
    )


def _list_of_iterator(value: object) -> list[object]:
    if isinstance(value, (Iterator, type({}.keys()), type({}.values()), type({}.items()))):
        return list(value)
    raise TypeError(f"a value of type {type(value).__name__} has no JSON form")


def _sum_numbers(values: Any, attribute: Any = None, start: Any = 0) -> Any:
    if attribute is not None:
        values = [value[attribute] for value in values]
    return sum((value for value in (*values, start) if isinstance(value, (int, float))), 0)


def metered_filters() -> dict[str, Any]:
    """All filters a chat template may use, by name."""
    names = (
        _PRINTING_FILTERS
        | _COMPARING_FILTERS
        | _LAZY_OR_PICKING_FILTERS
        | _WIDE_FILTERS
        | _OTHER_FILTERS
    )
    own = {"tojson": to_json, "from_json": json.loads, "fromjson": json.loads, "sum": _sum_numbers}
    all_filters: dict[str, Any] = {**{name: FILTERS[name] for name in names}, **own}
    return {name: _metered_filter(name, function) for name, function in all_filters.items()}


def metered_tests() -> dict[str, Any]:
    """All tests a chat template may use, by name."""
    tests: dict[str, Any] = {**TESTS}
    return {
        name: _metered_test(test) if name in _COMPARING_TESTS else test
        for name, test in tests.items()
    }


def _metered_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that pays for its work before and for its result after the call."""
    wanted = _PassArg.from_obj(function)

    @pass_context
    def metered(context: Context, value: Any = None, *args: Any, **kwargs: Any) -> Any:
        state = state_of(context)
        state.budget.step()
        value = _prepare(state, name, value, args, kwargs)
        if wanted is _PassArg.context:
            result = function(context, value, *args, **kwargs)
        elif wanted is _PassArg.eval_context:
            result = function(context.eval_ctx, value, *args, **kwargs)
        elif wanted is _PassArg.environment:
            result = function(context.environment, value, *args, **kwargs)
        else:
            result = function(value, *args, **kwargs)
        if name not in _LAZY_OR_PICKING_FILTERS:
            state.budget.charge_result(result)
            if isinstance(result, list):
                state.budget.charge(_ELEMENT_BYTES * len(result))
        return result

    return metered


def _prepare(
    state: RenderState, name: str, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Pay for filter `name` on `value`; returns the value to give it."""
    budget = state.budget
    values = (*args, *kwargs.values())
    if name in _WIDE_FILTERS:
        check_width(item for item in values if isinstance(item, (int, float, str)))
    if name in _PRINTING_FILTERS:
        state.check_printed(value)
    elif name in _COMPARING_FILTERS:
        weigh(budget, value, with_text=False)
    elif name == "tojson":
        weigh(budget, value, with_text=True)
    elif isinstance(value, str):
        budget.charge(len(value) * 64 if name in _OTHER_FILTERS else len(value))
    if name == "replace" and len(values) >= 2:
        charge_replace(budget, str(value), values[0], values[1])
    elif name == "indent":
        width = next((item for item in values if isinstance(item, (int, str))), 4)
        budget.charge(
            str(value).count("\n") * (len(width) if isinstance(width, str) else int(width))
        )
    elif name == "format":
        check_percent(budget, str(value), values)
    elif name == "join" and not isinstance(value, (str, Undefined)):
        separator = kwargs.get("d", args[0] if args else "")
        return charge_join(budget, str(separator), value)
    return value


def _metered_test(test: Callable[..., Any]) -> Callable[..., Any]:
    @pass_context
    def metered(context: Context, *args: Any) -> Any:
        for value in args:
            weigh(state_of(context).budget, value, with_text=False)
        return test(*args)

    return metered
