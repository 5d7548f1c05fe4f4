"""What will be held in memory, decided from the file's header before a weight is read. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from octavo.config import BackendName
from octavo.dtypes import QuantFormat
from octavo.engine.machine import MachineLimits
from octavo.errors import CapacityError
from octavo.kv_layout import BLOCK_SIZE, KVLayout
from octavo.weights.source import TensorInfo

_MIB: Final = 2**20
_MAX_DEFAULT_KV_BYTES: Final = 4 * 2**30
_MIN_DEFAULT_CONTEXT: Final = 256
"""A shorter context, unless asked for or all the model has, is of no use: refuse instead."""

_OVERHEAD_BYTES: Final = 96 * _MIB
"""Interpreter, tokenizer, thread stacks, queues: what VmHWM shows beside the rest, rounded up."""

_LOGIT_ROWS: Final = 64
"""Rows of logits held at once, at most."""

_PACKED_BITS: Final = {
    QuantFormat.F32: 32.0,
    QuantFormat.F16: 16.0,
    QuantFormat.BF16: 16.0,
    QuantFormat.Q2_K: 4.0,
    QuantFormat.Q3_K: 4.0,
    QuantFormat.Q4_0: 4.5,
    QuantFormat.Q4_1: 5.0,
    QuantFormat.Q4_K: 5.0,
    QuantFormat.Q5_0: 5.5,
    QuantFormat.Q5_1: 6.0,
    QuantFormat.Q5_K: 6.0,
    QuantFormat.Q6_K: 7.0,
    QuantFormat.Q8_0: 8.5,
    QuantFormat.IQ4_NL: 4.5,
    QuantFormat.IQ4_XS: 4.5,
}
"""Bits per weight in the native layouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What the plan must know of a model; all from the header. Units: bytes, tokens."""

    trained_len: int
    layout: KVLayout
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    weights_bytes: int
    file_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryWish:
    """What the user asked for; None leaves the choice to the plan."""

    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_cache_memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One line of the printed table."""

    what: str
    asked: str
    available: str
    chosen: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What was chosen. `rows` say how, `is_lowered` whether any default or wish had to give way."""

    max_model_len: int
    max_num_seqs: int
    num_blocks: int
    total_bytes: int
    is_lowered: bool
    rows: tuple[PlanRow, ...]

    def table(self) -> str:
        """The plan as text, one line a row."""
        cells = [("", "asked", "available", "chosen")]
        cells += [(row.what, row.asked, row.available, row.chosen) for row in self.rows]
        widths = [max(len(row[i]) for row in cells) for i in range(4)]
        lines = ("  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)) for r in cells)
        return "\n".join(line.rstrip() for line in lines)


def weights_bytes(tensors: Iterable[TensorInfo], backend: BackendName) -> int:
    """Memory the backend will hold for these tensors; vectors are kept as float32."""
    total = 0.0
    for tensor in tensors:
        is_float = backend is BackendName.REFERENCE or len(tensor.shape) < 2
        bits = 32.0 if is_float else _PACKED_BITS[tensor.format]
        total += tensor.num_elements * bits / 8
    return int(total)


def plan_memory(facts: ModelFacts, wish: MemoryWish, limits: MachineLimits) -> MemoryPlan:
    """Divide the memory that is granted.

    The KV cache gets what was asked, by default the least of: what max_num_seqs contexts of max_model_len need, a
    quarter of the available memory, 4 GiB, what the rest leaves. What does not fit gives way in this order: the
    context, if it was not asked for; then the number of sequences.

    Raises: CapacityError with the numbers, and the options that would fit, if something asked for does not fit.
    """
    available = _available(facts, limits)
    activations = _activation_bytes(facts, wish.max_num_batched_tokens)
    fixed = facts.weights_bytes + activations + _OVERHEAD_BYTES
    room = available - fixed
    budget = _kv_budget(facts, wish, available, room, limits)
    max_model_len = _context(facts, wish, budget, room)
    block_bytes = facts.layout.block_bytes
    num_blocks = budget // block_bytes
    max_num_seqs = min(wish.max_num_seqs, num_blocks)
    needed = max_num_seqs * facts.layout.num_blocks(max_model_len)
    if wish.kv_cache_memory_bytes is None:
        num_blocks = min(num_blocks, needed)
    kv_bytes = num_blocks * block_bytes
    asked_kv = wish.kv_cache_memory_bytes
    rows = (
        PlanRow(
            "context",
            f"{wish.max_model_len or facts.trained_len} tokens",
            f"{budget // block_bytes * BLOCK_SIZE} tokens",
            f"{max_model_len} tokens",
        ),
        PlanRow("sequences", str(wish.max_num_seqs), str(budget // block_bytes), str(max_num_seqs)),
        PlanRow(
            "KV cache",
            format_size(needed * block_bytes if asked_kv is None else asked_kv),
            format_size(max(0, room)),
            f"{format_size(kv_bytes)} ({num_blocks} blocks, {num_blocks * BLOCK_SIZE} tokens)",
        ),
        PlanRow("weights", "", "", format_size(facts.weights_bytes)),
        PlanRow("activations", "", "", format_size(activations)),
        PlanRow("overhead", "", "", format_size(_OVERHEAD_BYTES)),
        PlanRow("total", "", format_size(available), format_size(fixed + kv_bytes)),
    )
    return MemoryPlan(
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        num_blocks=num_blocks,
        total_bytes=fixed + kv_bytes,
        is_lowered=max_model_len < (wish.max_model_len or facts.trained_len)
        or max_num_seqs < wish.max_num_seqs,
        rows=rows,
    )


def exceeds_memory(facts: ModelFacts, limits: MachineLimits) -> bool:
    """Whether the weights alone leave nothing of the memory: they can only be mapped from a build then."""
    return facts.weights_bytes + _OVERHEAD_BYTES >= limits.memory_bytes


def mapped_facts(facts: ModelFacts) -> ModelFacts:
    """The same model with its packed weights mapped: they take address space, and only memory that is to spare."""
    return replace(facts, weights_bytes=0, file_bytes=facts.file_bytes + facts.weights_bytes)


def format_size(num_bytes: int) -> str:
    """A size for people that `config.parse_size` reads back: whole MiB below 10 GiB, else GiB with one digit."""
    if num_bytes < 10 * _MIB:
        return f"{-(-num_bytes // 1024)}KiB"
    if num_bytes < 10 * 1024 * _MIB:
        return f"{-(-num_bytes // _MIB)}MiB"
    return f"{num_bytes / 2**30:.1f}GiB"


def _available(facts: ModelFacts, limits: MachineLimits) -> int:
    if limits.address_space_bytes is None:
        return limits.memory_bytes
    # The mapped file takes address space while the weights are packed, though no memory.
    return max(0, min(limits.memory_bytes, limits.address_space_bytes - facts.file_bytes))


def _activation_bytes(facts: ModelFacts, num_tokens: int) -> int:
    # Residual, normed, q, k, v, attended, their 8-bit copies; gate, up and their product.
    per_token = 4 * (8 * facts.hidden_size + 3 * facts.intermediate_size)
    return num_tokens * per_token + _LOGIT_ROWS * facts.vocab_size * 4


def _kv_budget(
    facts: ModelFacts, wish: MemoryWish, available: int, room: int, limits: MachineLimits
) -> int:
    asked = wish.kv_cache_memory_bytes
    block_bytes = facts.layout.block_bytes
    shortest = min(facts.trained_len, wish.max_model_len or facts.trained_len, _MIN_DEFAULT_CONTEXT)
    least = block_bytes * (facts.layout.num_blocks(shortest) if asked is None else 1)
    numbers = (
        f"weights {format_size(facts.weights_bytes)}, {format_size(available)} available "
        f"({limits.memory_source})"
    )
    if room < least:
        short = least - room
        raise CapacityError(
            f"the model does not fit: {format_size(short)} are missing even for a context of {shortest} tokens; "
            f"{numbers}. Free that much memory or take a smaller model or quantisation"
        )
    if asked is None:
        return max(least, min(available // 4, _MAX_DEFAULT_KV_BYTES, room))
    if asked < block_bytes:
        raise CapacityError(
            f"a KV cache of {format_size(asked)} holds no block of {BLOCK_SIZE} tokens; "
            f"it would fit with: --kv-cache-memory-bytes {format_size(block_bytes)}"
        )
    if asked > room:
        raise CapacityError(
            f"a KV cache of {format_size(asked)} does not fit: {format_size(room)} are left; {numbers}. "
            f"It would fit with: --kv-cache-memory-bytes {room // _MIB}MiB"
        )
    return asked


def _context(facts: ModelFacts, wish: MemoryWish, budget: int, room: int) -> int:
    num_fitting = budget // facts.layout.block_bytes * BLOCK_SIZE
    if wish.max_model_len is None:
        return min(facts.trained_len, num_fitting)
    if wish.max_model_len <= num_fitting:
        return wish.max_model_len
    needed = facts.layout.num_blocks(wish.max_model_len) * facts.layout.block_bytes
    options = f"--max-model-len {num_fitting}"
    if needed <= room:
        options += f", or with: --kv-cache-memory-bytes {-(-needed // 1024)}KiB"
    raise CapacityError(
        f"a context of {wish.max_model_len} tokens needs {format_size(needed)} of KV cache, but {format_size(budget)} "
        f"are planned for it and {format_size(room)} are left beside the weights. It would fit with: {options}"
    )
