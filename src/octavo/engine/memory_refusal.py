"""What a refusal for lack of memory says: the numbers, and what would fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Final

from octavo.config import format_size
from octavo.engine.machine import ON_MACHINE, RLIMIT_AS, MachineLimits
from octavo.engine.memory_choice import (
    MIN_DEFAULT_CONTEXT,
    Choice,
    MemoryWish,
    asked_choice,
    choose,
    dtype_name,
    fallbacks,
    kv_costs,
)
from octavo.engine.memory_costs import Costs, ModelFacts
from octavo.errors import CapacityError
from octavo.kv_layout import BLOCK_SIZE

_MIB: Final = 2**20
_FEW_TOKENS: Final = 64
"""Tokens per step of the last resort."""
_SPARE: Final = 64
"""Advice leaves one part in so many of the memory: what is available changes from one start to the next."""


def refusal(
    facts: ModelFacts, wish: MemoryWish, limits: MachineLimits, costs: Costs
) -> CapacityError:
    """The error of a wish that `choose` found no choice for, or, if it is strict, only a lesser one."""
    parts = (
        f"weights {format_size(costs.weights)}, activations {format_size(costs.activations)}, "
        f"overhead {format_size(costs.overhead)}; {format_size(costs.available)} available ({costs.source})"
    )
    flags = _fitting_flags(facts, wish, limits)
    if flags:
        return CapacityError(
            f"{_complaint(facts, wish, costs)}; {parts}. It would fit with: {' '.join(flags)}",
            flags=flags,
        )
    layouts = (facts.layout, *wish.smaller_layouts)
    shortest = min(facts.trained_len, MIN_DEFAULT_CONTEXT)
    kv_bytes = min(layout.num_blocks(shortest) * layout.block_bytes for layout in layouts)
    short = kv_bytes - costs.room
    return CapacityError(
        f"the model does not fit: {format_size(short)} are missing even for a context of {shortest} tokens; "
        f"needed {format_size(costs.fixed + kv_bytes)}: KV cache {format_size(kv_bytes)}, {parts}. "
        f"{_raise_limit(limits, costs, short)}, or take a smaller model or quantisation"
    )


def _complaint(facts: ModelFacts, wish: MemoryWish, costs: Costs) -> str:
    asked, asked_kv = asked_choice(facts, wish), wish.kv_cache_memory_bytes
    left = format_size(max(0, costs.room))
    if asked_kv is not None and asked_kv > costs.room:
        return f"a KV cache of {format_size(asked_kv)} does not fit: {left} are left"
    if asked_kv is not None and asked_kv < facts.layout.block_bytes:
        return (
            f"a KV cache of {format_size(asked_kv)} holds no block of {BLOCK_SIZE} tokens, "
            f"which takes {facts.layout.block_bytes} bytes"
        )
    choice = choose(facts, wish, costs)
    if choice is not None:
        gave = ", ".join(str(fallback) for fallback in fallbacks(asked, choice))
        return f"not everything fits, and --strict-memory forbids: {gave}"
    needed = format_size(facts.layout.num_blocks(asked.max_model_len) * facts.layout.block_bytes)
    there = left if asked_kv is None else format_size(asked_kv)
    return f"a context of {asked.max_model_len} tokens needs {needed} of KV cache, and {there} are left for it"


def _fitting_flags(facts: ModelFacts, wish: MemoryWish, limits: MachineLimits) -> tuple[str, ...]:
    """The options that would fit, those that change least; none if nothing does."""
    facts = replace(facts, trained_len=asked_choice(facts, wish).max_model_len)
    for part in (_SPARE, 0):
        for changed in _lesser(wish):
            costs = kv_costs(facts, changed, limits)
            if part:
                costs = replace(costs, available=costs.available - costs.available // part)
            choice = choose(facts, changed, costs)
            if choice is not None:
                return tuple(_flags(facts, wish, changed, costs, choice))
    return ()


def _lesser(wish: MemoryWish) -> Iterator[MemoryWish]:
    """The wish with more and more of it left open; the wish itself first, for what a strict one forbids."""
    tokens = wish.max_num_batched_tokens
    for num_tokens, has_chosen, length, kv_bytes in product(
        dict.fromkeys((tokens, min(tokens, _FEW_TOKENS))),
        dict.fromkeys((wish.has_chosen_dtype, False)),
        dict.fromkeys((wish.max_model_len, None)),
        dict.fromkeys((wish.kv_cache_memory_bytes, None)),
    ):
        yield replace(
            wish,
            max_num_batched_tokens=num_tokens,
            has_chosen_dtype=has_chosen,
            kv_cache_memory_bytes=kv_bytes,
            max_model_len=length,
        )


def _flags(
    facts: ModelFacts, wish: MemoryWish, changed: MemoryWish, costs: Costs, choice: Choice
) -> Iterator[str]:
    asked = asked_choice(facts, wish)
    if choice.max_model_len != asked.max_model_len:
        yield f"--max-model-len {choice.max_model_len}"
    if choice.max_num_seqs != asked.max_num_seqs:
        yield f"--max-num-seqs {choice.max_num_seqs}"
    if choice.layout != asked.layout:
        yield f"--kv-cache-dtype {dtype_name(choice.layout)}"
    if changed.kv_cache_memory_bytes != wish.kv_cache_memory_bytes:
        yield f"--kv-cache-memory-bytes {_round_size(choice.least_bytes, costs.room)}"
    if changed.max_num_batched_tokens != wish.max_num_batched_tokens:
        yield f"--max-num-batched-tokens {changed.max_num_batched_tokens}"


def _round_size(least: int, most: int) -> str:
    """The largest size up to `most` in whole MiB, or `least`."""
    whole = most // _MIB
    return f"{whole}MiB" if whole * _MIB >= least else str(least)


def _raise_limit(limits: MachineLimits, costs: Costs, short: int) -> str:
    by = short + costs.available // _SPARE + _MIB
    if costs.source == RLIMIT_AS and limits.address_space_limit is not None:
        return f"Raise the limit, with: ulimit -v {-(-(limits.address_space_limit + by) // 1024)}"
    return f"{'Free' if costs.source == ON_MACHINE else 'Raise the limit by'} {format_size(by)}"
