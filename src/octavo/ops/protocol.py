"""What a model is written against: about 25 operations over opaque tensors. These docstrings are the specification.

`T` is a backend's activation tensor, `W` its loaded weight; a model never looks inside either. `reference.py` is the
executable definition of each operation, every backend is tested against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from octavo.dtypes import HostTensor
from octavo.kv_layout import KVLayout
from octavo.observability.limits import MachineCeilings, ModelWork
from octavo.observability.op_costs import OpCost

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

T = TypeVar("T")
W = TypeVar("W")


class RopeOrder(Enum):
    """Which channels form a rotated pair: NEOX (i, i + d/2), ADJACENT (2i, 2i + 1)."""

    NEOX = "neox"
    ADJACENT = "adjacent"


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding of one kind of layer.

    The angle of pair i at position p is p * base**(-2i / num_dims) / (linear_factor * freq_factors[i]).
    Only the first `num_dims` of each head's channels are rotated.
    """

    head_dim: int
    num_dims: int
    base: float
    order: RopeOrder
    linear_factor: float = 1.0
    freq_factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Shape and variant of one attention layer. `window` w: position p sees max(0, p - w + 1) .. p."""

    layer: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    softcap: float | None = None


class Activation(Enum):
    """Gate activation: SILU x*sigmoid(x); GELU_TANH the tanh approximation of gelu."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"


@dataclass(slots=True)
class Batch:
    """The tokens of one step, all requests, flat.

    Shapes: token_ids, positions, slots [T]; query_start [R + 1] (request r owns tokens query_start[r] ..
    query_start[r + 1] - 1, in position order); seq_lens [R] tokens in the cache after this step;
    block_tables [R, max_blocks], padded with 0; output_rows [K], ascending token indices whose logits are wanted.
    A slot is block id * BLOCK_SIZE + offset: where the token's K and V are written.
    """

    token_ids: Int32s
    positions: Int32s
    slots: Int32s
    query_start: Int32s
    seq_lens: Int32s
    block_tables: Int32s
    output_rows: Int32s


@dataclass(slots=True)
class SampleBatch:
    """What to do with the logits of each output row. All arrays are [K]; ragged lists use start offsets [K + 1].

    A row with `is_scored` draws nothing: its token is `targets` (prompt log-probabilities). Otherwise one token is
    drawn. `num_logprobs` is -1 for none, 0 for the chosen token only, else the number of alternatives.
    `seen_*` are the ids for repetition_penalty (prompt and output), `made_*` the output ids (with repeats) for
    presence and frequency penalties; both are filled only for rows that need them. `bias_*` is added to raw logits
    first; -inf bans. `positions` is the index of the token among the outputs: the counter of the random stream.
    """

    temperature: Floats
    top_k: Int32s
    top_p: Floats
    min_p: Floats
    typical_p: Floats
    repetition_penalty: Floats
    presence_penalty: Floats
    frequency_penalty: Floats
    seeds: UInt64s
    choices: Int32s
    positions: Int32s
    is_scored: Bools
    targets: Int32s
    num_logprobs: Int32s
    bias_start: Int32s
    bias_ids: Int32s
    bias_values: Floats
    seen_start: Int32s
    seen_ids: Int32s
    made_start: Int32s
    made_ids: Int32s


@dataclass(slots=True)
class DecodeRun:
    """Several decode steps in one call: what a row draws is its next input.

    At most `num_steps` steps; fewer if a row draws one of its end ids (end_ids ragged, end_start [R + 1]), with whose
    step the run ends for all rows, and fewer once another thread writes something other than 0 to `stop` [1]: then the
    step at hand is the last.
    """

    num_steps: int
    end_start: Int32s
    end_ids: Int32s
    stop: Int32s = field(default_factory=lambda: np.zeros(1, np.int32))


@dataclass(slots=True)
class SampleResult:
    """Tokens of the output rows, in their order.

    Shapes: token_ids, ranks [K]; logprobs [K] (NaN where none was asked); top_ids, top_logprobs [K, M] with M the
    largest num_logprobs (0 if none), sorted by falling logprob then rising id, padded with -1 / NaN.
    Logprobs and ranks are those of the raw distribution: log-softmax of the untouched logits. A rank is 1 + the number
    of ids with a greater logit.
    """

    token_ids: Int32s
    logprobs: Floats
    ranks: Int32s
    top_ids: Int32s
    top_logprobs: Floats


class Ops(Protocol[T, W]):
    """The operations. `n` is the number of tokens of the step, or of output rows in the head."""

    def weight(self, tensor: HostTensor) -> W:
        """Take over a matrix [out, in] in its file format (repacked as the backend likes). Used by linear and embed."""
        ...

    def vector(self, tensor: HostTensor) -> T:
        """Take over a vector [size] as float32: norm weights, biases."""
        ...

    def embed(self, table: W, batch: Batch, scale: float = 1.0) -> T:
        """Rows of `table` [vocab, hidden] for batch.token_ids, times `scale` -> [n, hidden]."""
        ...

    def linear(self, x: T, weight: W, bias: T | None = None) -> T:
        """x [n, in] @ weight[out, in].T + bias[out] -> [n, out]."""
        ...

    def rms_norm(self, x: T, weight: T, eps: float) -> T:
        """x / sqrt(mean(x^2) + eps) * weight over groups of len(weight) channels -> like x.

        A weight as long as the row normalises the row; a weight of head_dim normalises each head (qk-norm).
        """
        ...

    def rope(self, x: T, spec: RopeSpec, batch: Batch) -> T:
        """Rotate each head of x [n, heads * head_dim] by its token's position -> like x."""
        ...

    def attention(self, q: T, k: T, v: T, spec: AttentionSpec, batch: Batch) -> T:
        """Write k and v [n, kv_heads * head_dim] at batch.slots of layer spec.layer, then attend -> [n, heads * head_dim].

        Keys and values are read from the cache only, in their stored type: softmax(softcap(scale * q.k)) over the
        positions a token may see, in fixed tiles of 128 positions from 0. Query head h uses kv head
        h // (num_heads // num_kv_heads).
        """
        ...

    def gated(self, gate: T, up: T, activation: Activation) -> T:
        """activation(gate) * up -> like gate."""
        ...

    def add(self, a: T, b: T) -> T:
        """a + b -> like a."""
        ...

    def softcap(self, x: T, cap: float) -> T:
        """cap * tanh(x / cap) -> like x."""
        ...


class DecoderModel(Protocol[T, W]):
    """A decoder, written once. `if` looks at its config only, never at tensor values or the backend."""

    def forward(self, ops: Ops[T, W], batch: Batch) -> T:
        """Hidden state of every token after the last layer, before the final norm -> [n, hidden]."""
        ...

    def logits(self, ops: Ops[T, W], rows: T) -> T:
        """Final norm and head of the hidden rows that need logits -> [rows, vocab]: a linear, or the softcap of one."""
        ...


class Executor(Protocol):
    """A model compiled by a backend, with its KV memory. One thread calls it."""

    @property
    def kernel_table(self) -> str:
        """Name of the kernels in use, for logs and receipts."""
        ...

    @property
    def work(self) -> ModelWork | None:
        """What a step needs at least; None if that is not known."""
        ...

    def measure_ceilings(self, seconds: float) -> MachineCeilings | None:
        """Measure what the machine allows this executor, for about `seconds`, between steps; None if it cannot."""
        ...

    def set_counting(self, is_counting: bool) -> None:
        """Whether steps from now on are counted, operation by operation; turning it on starts from zero."""
        ...

    def op_costs(self) -> list[OpCost]:
        """What was counted, one for each kind of operation and shape; empty for a backend that counts nothing."""
        ...

    def watch(self, counter: Int64s) -> None:
        """Add 1 to `counter` [1] after every operation from now on: who watches it sees whether a long step hangs."""
        ...

    def execute(self, batch: Batch, sample: SampleBatch) -> SampleResult:
        """Run one step. Rows of logits are computed and sampled in slabs, so memory never grows with K x vocab.

        The random number of a row is Philox4x32-10, key = seed (low, high word), counter = (position, choice, 0, 0);
        u = ((r0 << 21) ^ (r1 >> 11)) * 2**-53 in [0, 1). Order: bias; repetition, presence, frequency penalties;
        temperature 0 takes the greatest logit (lowest id on ties); else divide by temperature, softmax, then min_p,
        top_k, top_p, typical_p, each over what the one before kept, renormalised; the token is the first id, in
        rising id order over the kept ids, whose cumulative probability exceeds u.
        Ranking within top_k, top_p, typical_p breaks ties by rising id.
        """
        ...

    def decode(self, batch: Batch, sample: SampleBatch, run: DecodeRun) -> Int32s:
        """Run decode steps -> the tokens drawn, [steps done, R]: the same bits as that many calls of `execute`.

        The batch has one token and one output row per request, and block tables that reach num_steps further. No row
        is scored or asks for log-probabilities, a bias or penalties.
        """
        ...

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole KV blocks, (source id, destination id), in order, before the next step."""
        ...

    def read_block(self, block_id: int) -> Bytes:
        """A copy of a KV block's bytes, [KVLayout.block_bytes]: opaque, right for this executor and those like it.

        Any thread may call it for a block that no step writes meanwhile, and `write_block` for one that no step uses.
        """
        ...

    def write_block(self, block_id: int, data: Bytes) -> None:
        """Overwrite a KV block with bytes of `read_block`."""
        ...

    def fill_kv(self, value: float) -> None:
        """Overwrite all KV memory. For tests: no result may depend on what free blocks hold."""
        ...

    def close(self) -> None:
        """Free memory and threads. Idempotent; the executor is unusable afterwards."""
        ...


class Backend(Protocol[T, W]):
    """Loads weights and compiles models."""

    @property
    def ops(self) -> Ops[T, W]:
        """The operations to build a model with."""
        ...

    def compile(
        self, model: DecoderModel[T, W], layout: KVLayout, num_blocks: int, max_batched_tokens: int
    ) -> Executor:
        """Make the model runnable with a KV pool of `num_blocks` blocks (memory is touched on first use)."""
        ...


AnyBackend = Backend[Any, Any]
AnyModel = DecoderModel[Any, Any]
