"""Which context, number of sequences and KV type fit: the order in which wishes give way. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from octavo.config import format_size
from octavo.engine.machine import MachineLimits
from octavo.engine.memory_costs import Costs, ModelFacts, costs_under
from octavo.kv_layout import BLOCK_SIZE, KVLayout

MIN_DEFAULT_CONTEXT: Final = 256
"""A shorter context, unless asked for or all the model has, is of no use: refuse instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryWish:
    """What the user asked for; None leaves the choice to the plan.

    `smaller_layouts`: KV layouts that take less than the model's, the largest first; one of them may be taken if the
    user did not choose the type, and is advised otherwise.
    """

    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_cache_memory_bytes: int | None
    num_threads: int = 1
    smaller_layouts: tuple[KVLayout, ...] = ()
    has_chosen_dtype: bool = False
    is_strict: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """A context, a number of sequences and a KV type."""

    max_model_len: int
    max_num_seqs: int
    layout: KVLayout

    @property
    def least_bytes(self) -> int:
        """KV memory without which this is an empty promise: one full context, and a block for every sequence."""
        return self.num_blocks * self.layout.block_bytes

    @property
    def num_blocks(self) -> int:
        """Blocks of `least_bytes`."""
        return max(self.layout.num_blocks(self.max_model_len), self.max_num_seqs)


@dataclass(frozen=True, slots=True)
class Fallback:
    """What gave way: from what was asked to what was chosen, and the bytes of KV cache that need not be there."""

    what: str
    asked: str
    chosen: str
    saved_bytes: int

    def __str__(self) -> str:
        return f"{self.what} {self.asked} -> {self.chosen} (saves {format_size(self.saved_bytes)})"


def kv_costs(facts: ModelFacts, wish: MemoryWish, limits: MachineLimits) -> Costs:
    """What is there and what is taken, under the limit that leaves least."""
    return costs_under(
        facts,
        limits,
        num_batched_tokens=wish.max_num_batched_tokens,
        num_threads=wish.num_threads,
    )


def asked_choice(facts: ModelFacts, wish: MemoryWish) -> Choice:
    """All that was asked for, defaults included."""
    return Choice(wish.max_model_len or facts.trained_len, wish.max_num_seqs, facts.layout)


def choose(facts: ModelFacts, wish: MemoryWish, costs: Costs) -> Choice | None:
    """What fits, with the fewest fallbacks; None if nothing does."""
    kv_bytes = costs.room if wish.kv_cache_memory_bytes is None else wish.kv_cache_memory_bytes
    if kv_bytes > costs.room:
        return None
    layouts = (facts.layout,) if wish.has_chosen_dtype else (facts.layout, *wish.smaller_layouts)
    for layout in layouts:
        choice = replace(asked_choice(facts, wish), layout=layout)
        num_blocks = max(0, kv_bytes // layout.block_bytes)
        if choice.num_blocks > num_blocks and wish.max_model_len is None:
            fitting = max(num_blocks * BLOCK_SIZE, _shortest(facts, wish))
            choice = replace(choice, max_model_len=min(choice.max_model_len, fitting))
        if choice.num_blocks > num_blocks:
            fewer = max(1, min(choice.max_num_seqs, num_blocks))
            choice = replace(choice, max_num_seqs=fewer)
        if choice.num_blocks <= num_blocks:
            return choice
    return None


def _shortest(facts: ModelFacts, wish: MemoryWish) -> int:
    """The shortest context worth a start. Of a KV cache of a given size it is what that holds."""
    if wish.max_model_len is not None:
        return wish.max_model_len
    if wish.kv_cache_memory_bytes is not None:
        return min(facts.trained_len, BLOCK_SIZE)
    return min(facts.trained_len, MIN_DEFAULT_CONTEXT)


def fallbacks(asked: Choice, choice: Choice) -> Iterator[Fallback]:
    """What gave way, in the order of the walk."""
    old = asked.layout
    if choice.max_model_len != asked.max_model_len:
        num_blocks = old.num_blocks(asked.max_model_len) - old.num_blocks(choice.max_model_len)
        yield Fallback(
            "context",
            f"{asked.max_model_len}",
            f"{choice.max_model_len} tokens",
            num_blocks * old.block_bytes,
        )
    if choice.max_num_seqs != asked.max_num_seqs:
        num_fewer = asked.max_num_seqs - choice.max_num_seqs
        yield Fallback(
            "sequences",
            f"{asked.max_num_seqs}",
            f"{choice.max_num_seqs}",
            num_fewer * old.block_bytes,
        )
    if choice.layout != old:
        saved = choice.num_blocks * (old.block_bytes - choice.layout.block_bytes)
        yield Fallback("KV type", dtype_name(old), dtype_name(choice.layout), saved)


def dtype_name(layout: KVLayout) -> str:
    """The KV type as it is written on the command line."""
    return layout.dtype.value
