"""What the benchmarks are asked for. Flags come from the fields; lists are written 1,8,32."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from octavo.bench.stats import Slo
from octavo.errors import InvalidRequest

CONTEXT_TOKENS: Final = 128
"""Prompt tokens of the requests that are decoded, as in the benchmarks of other engines we compare with."""


def _meta(help_: str) -> dict[str, object]:
    return {"help": help_}


class WorkloadKind(Enum):
    """What the requests of `bench serve` look like."""

    RANDOM = "random"
    SHAREGPT = "sharegpt"
    PREFIX = "prefix"


class PromptKind(Enum):
    """How a prompt is sent."""

    IDS = "ids"
    WORDS = "words"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureConfig:
    """What `bench engine` measures."""

    prompt: int = field(default=512, metadata=_meta("tokens of the prompt that prefill reads"))
    gen: int = field(default=64, metadata=_meta("tokens each request generates"))
    batch: str = field(default="1,8,32", metadata=_meta("numbers of requests decoded together"))
    repeat: int = field(default=3, metadata=_meta("timed rounds, after one that is not timed"))
    seed: int = field(default=0, metadata=_meta("of the random token ids"))
    limits: bool = field(
        default=True,
        metadata=_meta(
            "measure what the machine allows, around each reading too, and each figure's share of it"
        ),
    )

    def __post_init__(self) -> None:
        for name, least in (("prompt", 1), ("gen", 2), ("repeat", 1), ("seed", 0)):
            at_least(name, getattr(self, name), least)
        _ = self.batches

    @property
    def batches(self) -> tuple[int, ...]:
        """The batch sizes."""
        return parse_counts("batch", self.batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpsConfig:
    """Which steps `bench ops` takes apart."""

    prompt: int = field(default=512, metadata=_meta("tokens of the prompt that prefill reads"))
    context: int = field(default=128, metadata=_meta("tokens of the prompts before decoding"))
    gen: int = field(default=32, metadata=_meta("decode steps that are counted, or a few more"))
    batch: str = field(default="1,32", metadata=_meta("numbers of requests decoded together"))
    seed: int = field(default=0, metadata=_meta("of the random token ids"))
    limits: bool = field(
        default=True, metadata=_meta("measure what the machine allows, and each operation's share")
    )

    def __post_init__(self) -> None:
        for name, least in (("prompt", 1), ("context", 1), ("gen", 1), ("seed", 0)):
            at_least(name, getattr(self, name), least)
        _ = self.batches

    @property
    def batches(self) -> tuple[int, ...]:
        """The batch sizes."""
        return parse_counts("batch", self.batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimsConfig:
    """What `bench claims` measures, and on what requests."""

    only: str | None = field(
        default=None, metadata=_meta("these claims, such as continuous,paged; default: all")
    )
    num_requests: int = field(
        default=32, metadata=_meta("continuous: requests that 8 places serve")
    )
    output_len: int = field(
        default=48,
        metadata=_meta("continuous: median of the tokens they generate, 4 times it the most"),
    )
    gen: int = field(default=64, metadata=_meta("tokens each request decodes in the other claims"))
    long_prompt: int = field(
        default=1024, metadata=_meta("chunked, int8x2: tokens of the prompt to read")
    )
    reserved_len: int = field(
        default=2048, metadata=_meta("paged: tokens that a reservation holds")
    )
    shared_len: int = field(
        default=2000, metadata=_meta("prefix: tokens of the prompt that requests share")
    )
    num_sharing: int = field(default=100, metadata=_meta("prefix: requests that share it"))
    repeat: int = field(default=3, metadata=_meta("timed rounds, after one that is not timed"))
    seed: int = field(default=0, metadata=_meta("of prompts and lengths"))

    def __post_init__(self) -> None:
        for name, least in (
            ("num_requests", 1), ("output_len", 1), ("gen", 1), ("long_prompt", 1), ("reserved_len", 16),
            ("shared_len", 1), ("num_sharing", 3), ("repeat", 1), ("seed", 0),
        ):  # fmt: skip
            at_least(name, getattr(self, name), least)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadConfig:
    """The requests that `bench serve` sends."""

    workload: WorkloadKind = field(
        default=WorkloadKind.RANDOM,
        metadata=_meta(
            "random: fixed lengths; sharegpt: lengths like those of chats; prefix: groups that share a system prompt"
        ),
    )
    prompt_kind: PromptKind = field(
        default=PromptKind.IDS, metadata=_meta("send token ids, or words as text")
    )
    input_len: int = field(
        default=128, metadata=_meta("tokens (or words) of a prompt; with prefix: of its own part")
    )
    output_len: int = field(default=64, metadata=_meta("tokens to generate"))
    num_groups: int = field(default=4, metadata=_meta("prefix: groups of requests"))
    prefix_len: int = field(default=256, metadata=_meta("prefix: tokens (or words) a group shares"))
    max_token_id: int = field(default=32000, metadata=_meta("random ids stay below this"))
    ignore_eos: bool = field(default=True, metadata=_meta("always generate the whole length"))
    seed: int = field(default=0, metadata=_meta("of prompts, lengths and arrivals"))

    def __post_init__(self) -> None:
        for name, least in (
            ("input_len", 1), ("output_len", 1), ("num_groups", 1), ("prefix_len", 1), ("max_token_id", 2), ("seed", 0),
        ):  # fmt: skip
            at_least(name, getattr(self, name), least)


@dataclass(frozen=True, slots=True)
class Level:
    """One run of a sweep: a closed loop of `concurrency` clients, or an open one of `rate` requests a second."""

    concurrency: int | None = None
    rate: float | None = None
    arrivals: tuple[float, ...] | None = None

    @property
    def label(self) -> str:
        """How tables name it."""
        if self.concurrency is not None:
            return f"concurrency {self.concurrency}"
        return "trace" if self.rate is None else f"rate {self.rate:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadConfig:
    """How `bench serve` sends its requests, and what it expects."""

    concurrency: str | None = field(
        default=None,
        metadata=_meta("closed loop: requests in flight, or a list to sweep; default: 8"),
    )
    rate: str | None = field(
        default=None, metadata=_meta("open loop: requests a second (Poisson), or a list to sweep")
    )
    trace: Path | None = field(
        default=None, metadata=_meta("open loop: file of arrival times in seconds, one a line")
    )
    num_requests: int = field(default=64, metadata=_meta("requests at each level of the sweep"))
    num_warmup: int = field(default=1, metadata=_meta("requests before the first that counts"))
    timeout: float = field(
        default=600.0, metadata=_meta("seconds after which a level is cut short")
    )
    slo_ttft_ms: float | None = field(
        default=None, metadata=_meta("goodput: longest time to the first token")
    )
    slo_tpot_ms: float | None = field(
        default=None, metadata=_meta("goodput: longest time per token after it")
    )
    limits: bool = field(
        default=True,
        metadata=_meta("measure what this machine allows before the load, if the server is on it"),
    )

    def __post_init__(self) -> None:
        if sum(way is not None for way in (self.concurrency, self.rate, self.trace)) > 1:
            raise InvalidRequest("rate, trace and concurrency exclude each other", param="rate")
        at_least("num_requests", self.num_requests, 1)
        at_least("num_warmup", self.num_warmup, 0)
        for name in ("timeout", "slo_ttft_ms", "slo_tpot_ms"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InvalidRequest(f"{name} must be above 0, got {value}", param=name)
        self.levels(())

    def levels(self, trace: tuple[float, ...]) -> tuple[Level, ...]:
        """The runs of the sweep; `trace` is what the trace file holds."""
        if self.rate is not None:
            return tuple(Level(rate=rate) for rate in parse_rates("rate", self.rate))
        if self.trace is not None:
            return (Level(arrivals=trace[: self.num_requests]),)
        counts = parse_counts("concurrency", self.concurrency or "8")
        return tuple(Level(concurrency=count) for count in counts)

    @property
    def slo(self) -> Slo | None:
        """The limits, None if none is set."""
        if self.slo_ttft_ms is None and self.slo_tpot_ms is None:
            return None
        return Slo(self.slo_ttft_ms, self.slo_tpot_ms)


def parse_counts(name: str, text: str) -> tuple[int, ...]:
    """Whole numbers above zero, such as "1,8,32". Raises: InvalidRequest."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise InvalidRequest(
            f"{name} {text!r}: write whole numbers above 0, such as 1,8,32", param=name
        )
    return tuple(dict.fromkeys(int(part) for part in parts))


def parse_rates(name: str, text: str) -> tuple[float, ...]:
    """Numbers above zero, such as "0.5,2". Raises: InvalidRequest."""
    try:
        values = tuple(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        values = ()
    if not values or not all(0 < value < math.inf for value in values):
        raise InvalidRequest(f"{name} {text!r}: write numbers above 0, such as 0.5,2", param=name)
    return values


def at_least(name: str, value: int, least: int) -> None:
    """Raises: InvalidRequest if the value of this flag is too small."""
    if value < least:
        raise InvalidRequest(f"{name} must be at least {least}, got {value}", param=name)
