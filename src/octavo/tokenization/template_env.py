"""The jinja2 environment that chat templates run in: sandboxed, metered, with the functions that templates expect."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, NoReturn

from jinja2 import pass_context
from jinja2.exceptions import SecurityError
from jinja2.runtime import BlockReference, Context, LoopContext, Macro, TemplateReference
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Namespace

from octavo.tokenization.template_filters import metered_filters, metered_tests, words
from octavo.tokenization.template_limits import (
    TemplateRefused,
    check_binary,
    check_format,
    check_str_method,
    weigh,
)
from octavo.tokenization.template_state import state_of

_MAX_DATE_PATTERN: Final = 256
_MAX_MESSAGE: Final = 1000


_STR_ATTRIBUTES: Final = words(
    "capitalize casefold center count endswith expandtabs find format format_map index isalnum isalpha isascii "
    "isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip "
    "partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines "
    "startswith strip swapcase title upper zfill"
)
_ATTRIBUTES: Final[tuple[tuple[type, frozenset[str]], ...]] = (
    (str, _STR_ATTRIBUTES),
    (dict, words("copy get items keys values")),
    (list, words("copy count index")),
    (tuple, words("count index")),
    (
        LoopContext,
        words(
            "changed cycle depth depth0 first index index0 last length nextitem previtem revindex revindex0"
        ),
    ),
    (Macro, words("arguments caller catch_kwargs catch_varargs name")),
    (Cycler, words("current next reset")),
    (BlockReference, frozenset({"super"})),
)
"""All that a template may read by attribute; whatever is not here is refused."""


class TemplateRaised(Exception):
    """The template called raise_exception. The text is the template's."""


class InputList(list[object]):
    """A list of the caller's, which templates may not change, unlike lists they made themselves."""


class TemplateNamespace(Namespace):
    """A namespace whose attributes cannot pass for Python's own."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # jinja2's signature, so that a template may write namespace(self=...).
        self, args = args[0], args[1:]
        values = dict(*args, **kwargs)
        for name in values:
            _check_plain_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_plain_name(name)
        super().__setitem__(name, value)


def _check_plain_name(name: object) -> None:
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError("a namespace attribute may not begin with an underscore")


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Runs rewritten templates (see template_rewrite). Stateless: what a rendering spends is in its context."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, extensions: list[str | type[Any]], clock: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            autoescape=False,
            optimized=False,  # constants are computed under a budget, at run time
            finalize=_finalize,
            extensions=extensions,
        )
        self.metered_step = _step
        self.metered_concat = _concat
        self.metered_slice = _slice
        self.metered_tuple = _tuple
        self.metered_operand = _operand
        self.filters = metered_filters()
        self.tests = metered_tests()
        del self.globals["lipsum"]
        self.globals.update(
            dict=_make_dict,
            namespace=TemplateNamespace,
            raise_exception=_raise_exception,
            strftime_now=lambda format: _strftime(clock(), format),
        )

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if type(obj) is list and attr in ("append", "pop"):
            return True
        for kind, names in _ATTRIBUTES:
            if isinstance(obj, kind):
                return attr in names
        if isinstance(obj, (Namespace, TemplateReference)):
            return not attr.startswith("_")
        return False

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        pattern: str = value.__self__

        @pass_context
        def metered(context: Context, *args: Any, **kwargs: Any) -> str:
            values = args[0].values() if value.__name__ == "format_map" and args else args
            check_format(state_of(context).budget, pattern, (*values, *kwargs.values()))
            return wrapped(*args, **kwargs)

        return metered

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        check_binary(state_of(context).budget, operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget = state_of(__context).budget
        budget.step()
        owner = getattr(__obj, "__self__", None)
        is_new = isinstance(__obj, Macro)
        if isinstance(owner, str):
            args = check_str_method(budget, owner, __obj.__name__, args, kwargs)
            is_new = True
        elif isinstance(owner, (list, tuple, dict)):
            is_new = __obj.__name__ == "copy"
            for value in args:
                weigh(budget, value, with_text=False)
            budget.charge(64)
        elif isinstance(owner, LoopContext):
            for value in args:
                weigh(budget, value, with_text=False)
        result = super().call(__context, __obj, *args, **kwargs)
        if is_new:
            budget.charge_result(result)
        return result


@pass_context
def _finalize(context: Context, value: object) -> object:
    state_of(context).check_printed(value)
    return value


@pass_context
def _step(context: Context, num_bytes: int) -> bool:
    """One round of a loop, macro or block that writes `num_bytes` of literal text."""
    state_of(context).budget.charge(num_bytes)
    return True


@pass_context
def _concat(context: Context, *parts: object) -> str:
    state = state_of(context)
    for part in parts:
        state.check_printed(part)
    return "".join(map(str, parts))


@pass_context
def _slice(context: Context, value: Any, start: Any, stop: Any, step: Any) -> Any:
    result = value[start:stop:step]
    state_of(context).budget.charge_result(result)
    return result


@pass_context
def _tuple(context: Context, *items: object) -> tuple[object, ...]:
    weigh(state_of(context).budget, items, with_text=False)
    return items


@pass_context
def _operand(context: Context, value: object) -> object:
    weigh(state_of(context).budget, value, with_text=False)
    return value


@pass_context
def _raise_exception(context: Context, message: object = "") -> NoReturn:
    state_of(context).check_printed(message)
    raise TemplateRaised(str(message)[:_MAX_MESSAGE])


def _strftime(now: datetime, pattern: str) -> str:
    if len(pattern) > _MAX_DATE_PATTERN:
        raise TemplateRefused("the chat template asks for too long a date")
    return now.strftime(pattern)


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)
