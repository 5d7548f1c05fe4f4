"""What will be held in memory, decided from the file's header before a weight is read. Pure arithmetic.

What does not fit gives way in a fixed order: the context, the number of sequences, the type of the KV cache. Each only
where the user left it open, none under `is_strict`. What is refused is refused with what would fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from octavo.config import format_size
from octavo.engine.machine import MachineLimits
from octavo.engine.memory_choice import (
    Choice,
    Fallback,
    MemoryWish,
    asked_choice,
    choose,
    dtype_name,
    fallbacks,
    kv_costs,
)
from octavo.engine.memory_costs import Costs, ModelFacts
from octavo.engine.memory_refusal import refusal
from octavo.kv_layout import BLOCK_SIZE, KVLayout

_MAX_DEFAULT_KV_BYTES: Final = 4 * 2**30


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One line of the printed table."""

    what: str
    asked: str
    available: str
    chosen: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What was chosen. `rows` say how, `fallbacks` what had to give way, in that order."""

    max_model_len: int
    max_num_seqs: int
    layout: KVLayout
    num_blocks: int
    total_bytes: int
    limited_by: str
    fallbacks: tuple[Fallback, ...]
    rows: tuple[PlanRow, ...]

    @property
    def is_lowered(self) -> bool:
        """Whether any default or wish had to give way."""
        return bool(self.fallbacks)

    def table(self) -> str:
        """The plan as text, one line a row, then what limits it, then a line for each fallback."""
        cells = [("", "asked", "available", "chosen")]
        cells += [(row.what, row.asked, row.available, row.chosen) for row in self.rows]
        widths = [max(len(row[i]) for row in cells) for i in range(4)]
        lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)) for r in cells]
        lines.append(f"limited by {self.limited_by}")
        lines += [f"gave way: {fallback}" for fallback in self.fallbacks]
        return "\n".join(line.rstrip() for line in lines)


def plan_memory(facts: ModelFacts, wish: MemoryWish, limits: MachineLimits) -> MemoryPlan:
    """Divide the memory that is granted.

    The KV cache gets what was asked. By default it gets what max_num_seqs contexts of max_model_len need, at most a
    quarter of the available memory and 4 GiB, but always one full context, if the rest leaves as much.

    Raises: CapacityError with the numbers, and the options that would fit, if something asked for does not fit.
    """
    costs = kv_costs(facts, wish, limits)
    choice = choose(facts, wish, costs)
    asked = asked_choice(facts, wish)
    if choice is None or (wish.is_strict and choice != asked):
        raise refusal(facts, wish, limits, costs)
    num_blocks = _num_blocks(wish, costs, choice)
    return MemoryPlan(
        max_model_len=choice.max_model_len,
        max_num_seqs=choice.max_num_seqs,
        layout=choice.layout,
        num_blocks=num_blocks,
        total_bytes=costs.fixed + num_blocks * choice.layout.block_bytes,
        limited_by=costs.source,
        fallbacks=tuple(fallbacks(asked, choice)),
        rows=_rows(wish, costs, asked, choice, num_blocks),
    )


def _num_blocks(wish: MemoryWish, costs: Costs, choice: Choice) -> int:
    block_bytes = choice.layout.block_bytes
    if wish.kv_cache_memory_bytes is not None:
        return wish.kv_cache_memory_bytes // block_bytes
    share = min(costs.available // 4, _MAX_DEFAULT_KV_BYTES, costs.room)
    useful = choice.max_num_seqs * choice.layout.num_blocks(choice.max_model_len)
    return max(choice.num_blocks, min(useful, share // block_bytes))


def _rows(
    wish: MemoryWish, costs: Costs, asked: Choice, choice: Choice, num_blocks: int
) -> tuple[PlanRow, ...]:
    block_bytes = choice.layout.block_bytes
    kv_bytes = costs.room if wish.kv_cache_memory_bytes is None else wish.kv_cache_memory_bytes
    fitting = kv_bytes // block_bytes
    useful = asked.max_num_seqs * asked.layout.num_blocks(asked.max_model_len)
    asked_kv = wish.kv_cache_memory_bytes or useful * asked.layout.block_bytes
    held = f"{format_size(num_blocks * block_bytes)} ({num_blocks} blocks, {num_blocks * BLOCK_SIZE} tokens)"
    total = costs.fixed + num_blocks * block_bytes
    return (
        PlanRow(
            "context",
            f"{asked.max_model_len} tokens",
            f"{fitting * BLOCK_SIZE} tokens",
            f"{choice.max_model_len} tokens",
        ),
        PlanRow("sequences", str(asked.max_num_seqs), str(fitting), str(choice.max_num_seqs)),
        PlanRow("KV type", dtype_name(asked.layout), "", dtype_name(choice.layout)),
        PlanRow("KV cache", format_size(asked_kv), format_size(costs.room), held),
        PlanRow("weights", "", "", format_size(costs.weights)),
        PlanRow("activations", "", "", format_size(costs.activations)),
        PlanRow("overhead", "", "", format_size(costs.overhead)),
        PlanRow("total", "", f"{format_size(costs.available)}", format_size(total)),
    )
