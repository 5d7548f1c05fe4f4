"""User configuration + model + machine -> values, once. Nothing is "auto" or None afterwards."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from octavo.config import BackendName, EngineConfig
from octavo.dtypes import KVDType
from octavo.engine.kv_costs import quality_warning
from octavo.engine.machine import MachineLimits
from octavo.engine.memory_choice import MemoryWish
from octavo.engine.memory_costs import ModelFacts
from octavo.engine.memory_plan import MemoryPlan, plan_memory
from octavo.errors import InvalidRequest
from octavo.kv_layout import KVLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConfig:
    """What an engine is built with. `warnings` are for the log, each says what the user can do."""

    model_name: str
    backend: BackendName
    num_threads: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_step_s: float
    max_model_len: int
    num_blocks: int
    layout: KVLayout
    plan: MemoryPlan
    warnings: tuple[str, ...]


def resolve(config: EngineConfig, facts: ModelFacts, limits: MachineLimits) -> ResolvedConfig:
    """Check the user's values and fill in what they left open.

    `facts.layout` has the KV type that the user chose, or the default one. Raises: InvalidRequest naming the field, CapacityError.
    """
    scheduler = config.scheduler
    _at_least("max_num_seqs", scheduler.max_num_seqs, 1)
    _at_least("max_num_batched_tokens", scheduler.max_num_batched_tokens, 1)
    _at_least("max_step_ms", scheduler.max_step_ms, 1)
    num_threads = (
        limits.num_cores if config.compute.num_threads is None else config.compute.num_threads
    )
    _at_least("num_threads", num_threads, 1)
    max_model_len = _asked_len(config.model.max_model_len, facts.trained_len)
    wish = MemoryWish(
        max_model_len=max_model_len,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        kv_cache_memory_bytes=config.cache.kv_cache_memory_bytes,
        num_threads=num_threads,
        smaller_layouts=smaller_layouts(facts.layout),
        has_chosen_dtype=config.cache.kv_cache_dtype is not None,
        is_strict=config.cache.strict_memory,
    )
    plan = plan_memory(facts, wish, limits)
    return ResolvedConfig(
        model_name=config.model.served_model_name or config.model.model,
        backend=config.compute.backend,
        num_threads=num_threads,
        max_num_seqs=plan.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_step_s=scheduler.max_step_ms / 1000,
        max_model_len=plan.max_model_len,
        num_blocks=plan.num_blocks,
        layout=plan.layout,
        plan=plan,
        warnings=tuple(_warnings(max_model_len, num_threads, plan, facts, limits)),
    )


_FALLBACK_KV_DTYPES: Final = (KVDType.INT8, KVDType.INT8_INT4)
"""Taken when the memory is short and the user chose none: docs/perf/kv-types.md has what they cost."""


def smaller_layouts(layout: KVLayout) -> tuple[KVLayout, ...]:
    """The same cache in types that take less memory for little quality, the largest first."""
    layouts = [replace(layout, dtype=dtype) for dtype in _FALLBACK_KV_DTYPES]
    return tuple(other for other in layouts if other.block_bytes < layout.block_bytes)


def _asked_len(asked: int | None, trained_len: int) -> int | None:
    """0 asks for the trained context, whatever it is; None for that or what fits."""
    if asked is None:
        return None
    if asked == 0:
        return trained_len
    _at_least("max_model_len", asked, 2)  # one token of prompt, one of output
    return asked


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise InvalidRequest(f"{name} must be at least {least}, got {value}", param=name)


def _warnings(
    asked_len: int | None,
    num_threads: int,
    plan: MemoryPlan,
    facts: ModelFacts,
    limits: MachineLimits,
) -> list[str]:
    warnings = []
    if asked_len is not None and asked_len > facts.trained_len:
        warnings.append(
            f"a context of {asked_len} tokens is longer than the {facts.trained_len} the model was trained for: "
            f"answers get worse beyond that; --max-model-len {facts.trained_len} avoids it"
        )
    if plan.is_lowered:
        warnings.append(
            f"not everything fits the memory, gave way: {', '.join(map(str, plan.fallbacks))}; "
            "more memory avoids it, and --strict-memory refuses instead"
        )
    if (warning := quality_warning(facts.layout.dtype)) is not None:
        warnings.append(warning)
    if num_threads > limits.num_cores:
        warnings.append(
            f"{num_threads} threads on {limits.num_cores} granted cores slow each other down; "
            f"--num-threads {limits.num_cores} avoids it"
        )
    return warnings
