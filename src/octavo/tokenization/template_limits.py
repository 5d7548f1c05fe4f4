"""What a chat template may spend: a budget of bytes and processor time, and the checks made before costly operations.

A template comes with a model file, so it is untrusted code. Nothing can stop a C-level string or list operation once it
runs, therefore its size is charged first; everything else is a sequence of small steps between which the clock is read.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Final

from jinja2 import Undefined

MAX_WIDTH: Final = 10_000
"""Largest padding, indent or group size a template may ask for."""

MAX_INT_BITS: Final = 4096
"""Largest integer a template may compute."""

_BASE_BYTES: Final = 192 << 20
_BYTES_PER_INPUT_BYTE: Final = 128
_CPU_SECONDS: Final = 1.0
_STEPS_PER_CLOCK_READ: Final = 32
_LARGE_BYTES: Final = 1 << 16
_PIECE_BYTES: Final = 64  # a short string and the pointer to it, rounded up

_PAD_METHODS: Final = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})
_SPLIT_METHODS: Final = frozenset({"split", "rsplit", "splitlines"})
_WIDE_FORMAT: Final = re.compile(r":[^{}]*(?:\d{5}|\{)")
_WIDE_PERCENT: Final = re.compile(r"%[^a-zA-Z%]*(?:\*|\d{5})")


class TemplateRefused(Exception):
    """The template asks for more than it may have. The message is fit for the client."""


class Budget:
    """Bytes that one rendering may produce in total, and processor time that it may take."""

    __slots__ = ("_bytes_left", "_deadline", "_steps")

    def __init__(self, input_bytes: int) -> None:
        self._bytes_left = _BASE_BYTES + _BYTES_PER_INPUT_BYTE * input_bytes
        self._deadline = time.thread_time() + _CPU_SECONDS
        self._steps = 0

    def step(self) -> None:
        """Count one operation. Raises TemplateRefused when the time is spent."""
        self._steps += 1
        if self._steps % _STEPS_PER_CLOCK_READ == 0:
            self._read_clock()

    def charge(self, num_bytes: int) -> None:
        """Pay for `num_bytes` about to be produced. Raises TemplateRefused when the bytes or the time are spent."""
        self._bytes_left -= num_bytes
        if self._bytes_left < 0:
            raise TemplateRefused("the chat template produces too much text")
        if num_bytes > _LARGE_BYTES:
            self._read_clock()

    def charge_result(self, value: object) -> None:
        """Pay for a new string or container."""
        if isinstance(value, (str, list, dict, tuple)):
            self.charge(sys.getsizeof(value))

    def _read_clock(self) -> None:
        if time.thread_time() > self._deadline:
            raise TemplateRefused("the chat template takes too long")


def weigh(budget: Budget, value: object, *, with_text: bool, is_printed: bool = False) -> None:
    """Pay for visiting all of `value`, as printing (`with_text`) or comparing it will.

    A list that holds one list many times is small in memory and endless when printed. With `is_printed`, anything but
    data is refused: the text of a function or an object says where it is in memory.
    """
    stack: list[object] = [value]
    cost = 0
    while stack:
        item = stack.pop()
        cost += 8
        if isinstance(item, str):
            cost += len(item) if with_text else 0
        elif isinstance(item, dict):
            stack.extend(item)
            stack.extend(item.values())
        elif isinstance(item, (list, tuple)):
            stack.extend(item)
        elif is_printed and item is not None and not isinstance(item, (int, float, Undefined)):
            raise TemplateRefused("the chat template prints something that is no data")
        if cost > _LARGE_BYTES:
            budget.charge(cost)
            cost = 0
    budget.charge(cost)


def check_width(values: Iterable[object]) -> None:
    """Refuse a width or count above MAX_WIDTH."""
    if any(isinstance(value, (int, float)) and abs(value) > MAX_WIDTH for value in values):
        raise TemplateRefused("the chat template asks for too wide a padding")
    if any(isinstance(value, str) and len(value) > MAX_WIDTH for value in values):
        raise TemplateRefused("the chat template asks for too wide a padding")


def charge_replace(budget: Budget, text: str, old: object, new: object) -> None:
    """Pay for text.replace(old, new)."""
    if isinstance(old, str) and isinstance(new, str):
        budget.charge(sys.getsizeof(text) + text.count(old) * sys.getsizeof(new))


def charge_join(budget: Budget, separator: str, items: Iterable[object]) -> list[object]:
    """Pay for joining `items`, and return them as a list."""
    pieces = list(items)
    weigh(budget, pieces, with_text=True, is_printed=True)
    budget.charge(len(pieces) * sys.getsizeof(separator))
    return pieces


def check_str_method(
    budget: Budget, text: str, name: str, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> tuple[object, ...]:
    """Pay for calling method `name` of `text`; returns the arguments to call it with."""
    values = (*args, *kwargs.values())
    if name in _PAD_METHODS:
        check_width(value for value in values if isinstance(value, int))
        if name == "expandtabs":
            budget.charge(
                text.count("\t") * max((v for v in values if isinstance(v, int)), default=8)
            )
    elif name == "replace" and len(values) >= 2:
        charge_replace(budget, text, values[0], values[1])
    elif name == "join" and len(args) == 1 and isinstance(args[0], Iterable):
        return (charge_join(budget, text, args[0]),)
    elif name in _SPLIT_METHODS:
        separator = values[0] if values else None
        cuts = text.count(separator) if isinstance(separator, str) and separator else len(text) // 2
        budget.charge(sys.getsizeof(text) + cuts * _PIECE_BYTES)
    return args


def check_format(budget: Budget, pattern: str, args: Iterable[object]) -> None:
    """Pay for pattern.format(*args)."""
    if _WIDE_FORMAT.search(pattern):
        raise TemplateRefused("the chat template asks for too wide a padding")
    _charge_filled(budget, pattern, pattern.count("{"), args)


def check_percent(budget: Budget, pattern: str, values: object) -> None:
    """Pay for pattern % values."""
    if _WIDE_PERCENT.search(pattern):
        raise TemplateRefused("the chat template asks for too wide a padding")
    args = tuple(values.values()) if isinstance(values, dict) else values
    _charge_filled(
        budget, pattern, pattern.count("%"), args if isinstance(args, tuple) else (args,)
    )


def _charge_filled(budget: Budget, pattern: str, num_fields: int, args: Iterable[object]) -> None:
    largest = 0
    for value in args:
        weigh(budget, value, with_text=True, is_printed=True)
        largest = max(largest, sys.getsizeof(value))
    budget.charge(sys.getsizeof(pattern) + num_fields * largest)


def check_binary(budget: Budget, operator: str, left: object, right: object) -> None:
    """Pay for `left operator right`."""
    if operator == "%":
        if isinstance(left, str):
            check_percent(budget, left, right)
    elif operator == "+":
        if isinstance(left, (str, list, tuple)):
            budget.charge(sys.getsizeof(left) + sys.getsizeof(right))
    elif operator == "*":
        _check_product(budget, left, right)
    elif operator == "**":
        _check_power(left, right)


def _check_power(base: object, exponent: object) -> None:
    if not isinstance(base, int) or not isinstance(exponent, int):
        return
    if base.bit_length() * max(exponent, 0) > MAX_INT_BITS:
        raise TemplateRefused("the chat template computes too large a number")


def _check_product(budget: Budget, left: object, right: object) -> None:
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > MAX_INT_BITS:
            raise TemplateRefused("the chat template computes too large a number")
        return
    for repeated, times in ((left, right), (right, left)):
        if isinstance(repeated, (str, list, tuple)) and isinstance(times, int):
            budget.charge(sys.getsizeof(repeated) * max(times, 0))
