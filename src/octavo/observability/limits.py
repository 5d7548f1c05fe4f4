"""What a machine allows at most, what a model's step needs at least, and so how fast it could be: all the formulas.

A step reads each weight once, whatever the batch, and the keys and values that its tokens attend to; it does one
multiply-accumulate per weight and row. Neither can go faster than the memory and the arithmetic of the machine, so

    least time of a step = max(bytes / read bandwidth, int8 MACs / int8 peak + float MACs / f32 peak)

and the share of the limit is this time over the time taken. Left out, so the limit is never too low: attention's
arithmetic, activations, norms, sampling, what the engine does between steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum


class Bound(Enum):
    """What a step cannot be faster than."""

    MEMORY = "memory"
    ARITHMETIC = "arithmetic"


@dataclass(frozen=True, slots=True)
class ReadRate:
    """Bandwidth of reading a buffer of `num_bytes` again and again: a small one comes from a cache."""

    num_bytes: int
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCeilings:
    """What the machine allows one kernel table on a number of threads; all threads together.

    `int8_instructions` says what the int8 peak repeats. `bf16_macs_per_s` is None where the CPU has no such
    instruction. `reads` are ascending in size.
    """

    kernel_table: str
    num_threads: int
    int8_instructions: str
    int8_macs_per_s: float
    bf16_macs_per_s: float | None
    f32_macs_per_s: float
    reads: tuple[ReadRate, ...]

    def read_bytes_per_s(self, num_bytes: float) -> float:
        """Bandwidth of the measured buffer whose size is nearest to this one, by ratio."""
        nearest = min(
            self.reads,
            key=lambda read: max(read.num_bytes, num_bytes) / min(read.num_bytes, num_bytes),
        )
        return nearest.bytes_per_s

    def mean_with(self, other: MachineCeilings) -> MachineCeilings:
        """The mean of two measurements of the same thing, one before and one after: what was allowed between them.

        A virtual machine is moved from core to core, and with them its limits change: by half for memory.
        """
        return MachineCeilings(
            kernel_table=self.kernel_table,
            num_threads=self.num_threads,
            int8_instructions=self.int8_instructions,
            int8_macs_per_s=(self.int8_macs_per_s + other.int8_macs_per_s) / 2,
            bf16_macs_per_s=None,
            f32_macs_per_s=(self.f32_macs_per_s + other.f32_macs_per_s) / 2,
            reads=tuple(
                ReadRate(mine.num_bytes, (mine.bytes_per_s + its.bytes_per_s) / 2)
                for mine, its in zip(self.reads, other.reads, strict=True)
            ),
        )


@dataclass(frozen=True, slots=True)
class MatrixWork:
    """The matrices of a part of a model: multiply-accumulates per row, bytes as packed, read once per step.

    `int8_macs` are those of quantised formats, `float_macs` those of F16 and F32.
    """

    int8_macs: int
    float_macs: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class ModelWork:
    """What a step of a model needs at least: the body per token, the head per row whose logits are wanted.

    Per attention layer: `kv_bytes` of K and V of one token, and in `windows` how many tokens back it sees (0: all).
    """

    body: MatrixWork
    head: MatrixWork
    kv_bytes: tuple[int, ...]
    windows: tuple[int, ...]

    @property
    def weight_bytes(self) -> int:
        """Packed bytes a step with logits reads: an embedding table that is only looked up is not among them."""
        return self.body.num_bytes + self.head.num_bytes

    def context_bytes(self, seq_lens: Collection[int]) -> int:
        """Bytes of K and V that the newest token of each sequence attends to, itself included."""
        layers = Counter(zip(self.kv_bytes, self.windows, strict=True))
        return sum(
            count * size * (min(int(length), window) if window else int(length))
            for (size, window), count in layers.items()
            for length in seq_lens
        )


@dataclass(frozen=True, slots=True)
class StepLimit:
    """The least time of a step: the greater of the two."""

    memory_s: float
    arithmetic_s: float

    @property
    def seconds(self) -> float:
        """No step is faster."""
        return max(self.memory_s, self.arithmetic_s)

    @property
    def bound(self) -> Bound:
        """What sets it."""
        return Bound.MEMORY if self.memory_s >= self.arithmetic_s else Bound.ARITHMETIC


def step_limit(
    work: ModelWork,
    ceilings: MachineCeilings,
    *,
    num_tokens: int,
    num_rows: int,
    context_bytes: int,
) -> StepLimit:
    """The least time of one step of `num_tokens` tokens with `num_rows` rows of logits.

    memory: (packed weights + context_bytes) / bandwidth of a buffer as large as the weights.
    arithmetic: (tokens * body MACs + rows * head MACs) / peak, int8 and float apart.
    """
    int8_macs = num_tokens * work.body.int8_macs + num_rows * work.head.int8_macs
    float_macs = num_tokens * work.body.float_macs + num_rows * work.head.float_macs
    return StepLimit(
        (work.weight_bytes + context_bytes) / ceilings.read_bytes_per_s(work.weight_bytes),
        int8_macs / ceilings.int8_macs_per_s + float_macs / ceilings.f32_macs_per_s,
    )


def decode_limit(
    work: ModelWork, ceilings: MachineCeilings, seq_lens: Collection[int]
) -> StepLimit:
    """The least time of a step that decodes one token of each sequence, their lengths with it being `seq_lens`."""
    return step_limit(
        work,
        ceilings,
        num_tokens=len(seq_lens),
        num_rows=len(seq_lens),
        context_bytes=work.context_bytes(seq_lens),
    )


def prefill_limit(
    work: ModelWork, ceilings: MachineCeilings, *, num_tokens: int, num_seqs: int = 1
) -> StepLimit:
    """The least time of reading prompts of `num_tokens` tokens in all, with logits for the last token of each.

    As if in one step: the weights are counted once, and K and V, which the same step writes, not at all.
    """
    return step_limit(work, ceilings, num_tokens=num_tokens, num_rows=num_seqs, context_bytes=0)
