"""Loading a model: the tokenizer and the engine at once, and what becomes of one when the other fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from octavo.api.runtime import load_both
from octavo.errors import CapacityError, CorruptWeights


@dataclass
class FakeEngine:
    """Knows whether it was closed."""

    is_closed: bool = False

    def close(self) -> None:
        self.is_closed = True


def failing(error: Exception) -> Callable[[], object]:
    def fail() -> object:
        raise error

    return fail


def planned(result: object) -> Callable[[Callable[[], None]], object]:
    """A load that plans, then returns or raises this."""

    def load(on_planned: Callable[[], None]) -> object:
        on_planned()
        if isinstance(result, Exception):
            raise result
        return result

    return load


def test_both_come_back() -> None:
    engine = FakeEngine()
    got = load_both(planned(engine), lambda: ("tokenizer", None))  # type: ignore[arg-type,return-value]
    assert got == (engine, ("tokenizer", None))
    assert not engine.is_closed


def test_an_engine_whose_tokenizer_fails_is_closed() -> None:
    engine = FakeEngine()
    with pytest.raises(CorruptWeights):
        load_both(planned(engine), failing(CorruptWeights("merges")))  # type: ignore[arg-type,return-value]
    assert engine.is_closed


def test_the_error_of_the_tokenizer_comes_first() -> None:
    full = planned(CapacityError("full"))
    with pytest.raises(CapacityError):
        load_both(full, lambda: ("tokenizer", None))  # type: ignore[arg-type,return-value]
    with pytest.raises(CorruptWeights):
        load_both(full, failing(CorruptWeights("merges")))  # type: ignore[arg-type]


def test_no_tokenizer_is_built_where_the_plan_refuses() -> None:
    built = []
    with pytest.raises(CapacityError):
        load_both(failing_load(CapacityError("full")), lambda: built.append(1))  # type: ignore[arg-type,return-value,func-returns-value]
    assert not built


def failing_load(error: Exception) -> Callable[[object], object]:
    def load(on_planned: object) -> object:
        raise error

    return load
