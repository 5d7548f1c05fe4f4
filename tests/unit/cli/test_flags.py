"""Flags from dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import pytest
from cyclopts import App, CycloptsError

from octavo.cli.flags import with_flags
from octavo.config import (
    ActivationPrecision,
    CacheConfig,
    ComputeConfig,
    ModelConfig,
    SchedulerConfig,
)
from octavo.errors import InvalidRequest
from octavo.params import SamplingParams
from tests.unit.cli.conftest import Octavo


@dataclass(frozen=True, kw_only=True)
class SpeedConfig:
    model: str
    speed_bytes: int = field(default=5, metadata={"help": "how fast", "aliases": ("fast",)})
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.speed_bytes > 100:
            raise InvalidRequest("speed_bytes is too fast", param="speed_bytes")


def parse(*args: str) -> SpeedConfig:
    app = App(result_action="return_value")

    @app.default
    @with_flags({"names": ("x",)}, speed=SpeedConfig)
    def verb(model: str, /, *, speed: SpeedConfig) -> SpeedConfig:
        return speed

    result = app(args, exit_on_error=False, print_error=False)
    assert isinstance(result, SpeedConfig)
    return result


def test_a_verb_gets_its_dataclass_built_from_flags() -> None:
    assert parse("m") == SpeedConfig(model="m", names=("x",))
    given = parse("m", "--fast", "0.05kB", "--names", "a", "--names", "b")
    assert given == SpeedConfig(model="m", speed_bytes=50, names=("a", "b"))


def test_a_value_that_the_dataclass_refuses_is_wrong_usage_in_the_users_spelling() -> None:
    with pytest.raises(CycloptsError, match="--speed-bytes is too fast"):
        parse("m", "--speed-bytes", "1GiB")


def test_a_choice_is_typed_as_its_member_is_named() -> None:
    app = App(result_action="return_value")

    @app.default
    @with_flags(compute=ComputeConfig)
    def verb(*, compute: ComputeConfig) -> ComputeConfig:
        return compute

    given = app(["--activation-precision", "int8x2"], exit_on_error=False, print_error=False)
    assert given == ComputeConfig(activation_precision=ActivationPrecision.INT8X2)


def test_each_field_of_the_configs_is_a_flag_of_run(octavo: Octavo) -> None:
    out = octavo("run", "--help").out
    groups = (SamplingParams, ModelConfig, SchedulerConfig, CacheConfig, ComputeConfig)
    names = {f.name for group in groups for f in fields(group)} - {"model", "n"}
    assert [name for name in names if f"--{name.replace('_', '-')}" not in out] == []
