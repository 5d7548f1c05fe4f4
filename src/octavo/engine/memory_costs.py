"""What a model takes, of memory and of address space, from the file's header. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from octavo.config import BackendName
from octavo.dtypes import QuantFormat
from octavo.engine.machine import MachineLimits
from octavo.kv_layout import KVLayout
from octavo.weights.source import TensorInfo

_MIB: Final = 2**20

_OVERHEAD_BYTES: Final = 96 * _MIB
"""Interpreter, tokenizer, thread stacks, queues: what VmHWM shows beside the rest, rounded up."""

_RESERVED_OVERHEAD_BYTES: Final = _OVERHEAD_BYTES + 64 * _MIB
"""The same of address space, with the stacks of Python's threads."""

_THREAD_SPACE: Final = 12 * _MIB
"""Address space of a thread that computes: 8 MiB of stack, and its scratch memory rounded up to huge pages."""

_CHUNK_BYTES: Final = 64 * _MIB
"""Packed weights lie in regions of this size or more (csrc/core/arena.cpp): what is over is reserved, not used."""

_HUGE_PAGE: Final = 2 * _MIB

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
    reserved_bytes: int
    """Address space of the weights: regions are larger than what lies in them. The file itself is mapped already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What is there, and what is taken of it before the KV cache; all in bytes of what `source` limits."""

    available: int
    source: str
    weights: int
    activations: int
    overhead: int

    @property
    def fixed(self) -> int:
        """All that is no KV cache."""
        return self.weights + self.activations + self.overhead

    @property
    def room(self) -> int:
        """Left for the KV cache; below zero if the rest alone does not fit."""
        return self.available - self.fixed


def costs_under(
    facts: ModelFacts, limits: MachineLimits, *, num_batched_tokens: int, num_threads: int
) -> Costs:
    """The costs under the limit that leaves least for the KV cache."""
    activations = _activation_bytes(facts, num_batched_tokens)
    touched = Costs(
        available=limits.memory_bytes,
        source=limits.memory_source,
        weights=facts.weights_bytes,
        activations=activations,
        overhead=_OVERHEAD_BYTES,
    )
    found = [touched]
    for available, source in limits.reserving:
        reserved = replace(
            touched,
            available=available,
            source=source,
            weights=facts.reserved_bytes,
            overhead=_RESERVED_OVERHEAD_BYTES + num_threads * _THREAD_SPACE,
        )
        found.append(reserved)
    return min(found, key=lambda costs: costs.room)


def weights_bytes(tensors: Iterable[TensorInfo], backend: BackendName) -> int:
    """Memory the backend will hold for these tensors; vectors are kept as float32."""
    return int(sum(_tensor_bytes(tensor, backend) for tensor in tensors))


def reserved_bytes(tensors: Iterable[TensorInfo], backend: BackendName) -> int:
    """Address space for these tensors: regions filled one after another, a new one where a tensor does not fit."""
    total = left = 0
    for tensor in tensors:
        size = int(_tensor_bytes(tensor, backend))
        if size > left:
            left = max(size, _CHUNK_BYTES)
            total += left + _HUGE_PAGE
        left -= size
    return total


def exceeds_memory(facts: ModelFacts, limits: MachineLimits) -> bool:
    """Whether the weights alone leave nothing of the memory: they can only be mapped from a build then."""
    return facts.weights_bytes + _OVERHEAD_BYTES >= limits.memory_bytes


def mapped_facts(facts: ModelFacts) -> ModelFacts:
    """The same model with its packed weights mapped: they take address space, and only memory that is to spare."""
    return replace(facts, weights_bytes=0)


def _tensor_bytes(tensor: TensorInfo, backend: BackendName) -> float:
    is_float = backend is BackendName.REFERENCE or len(tensor.shape) < 2
    bits = 32.0 if is_float else _PACKED_BITS[tensor.format]
    return tensor.num_elements * bits / 8


def _activation_bytes(facts: ModelFacts, num_tokens: int) -> int:
    # Residual, normed, q, k, v, attended, their 8-bit copies; gate, up and their product.
    per_token = 4 * (8 * facts.hidden_size + 3 * facts.intermediate_size)
    return num_tokens * per_token + _LOGIT_ROWS * facts.vocab_size * 4
