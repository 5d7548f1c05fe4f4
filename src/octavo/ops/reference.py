"""The operations in slow, obvious numpy: the definition that every backend is tested against.

Activations are float32 arrays [n, channels]. Sums are taken in float64 where that is cheap; matrix products are
float32 (BLAS), so results agree with exact arithmetic to about 1e-6 of a row's size, not to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.dtypes import HostTensor
from octavo.ops.protocol import (
    Activation,
    AttentionSpec,
    Batch,
    Bools,
    Floats,
    Int32s,
    Int64s,
    RopeOrder,
    RopeSpec,
)
from octavo.ops.reference_kv import ReferenceKV, rotated

Dequantize = Callable[[HostTensor], Floats]
"""Elements of a tensor as float32, in the tensor's shape."""


@dataclass(frozen=True, slots=True)
class ReferenceWeight:
    """A matrix as float32. Shapes: values [out, in]."""

    name: str
    values: Floats


class ReferenceOps:
    """Ops over numpy arrays. Loading needs `dequantize` only; `attention` also needs the `kv` of an executor."""

    def __init__(self, dequantize: Dequantize, kv: ReferenceKV | None = None) -> None:
        self._dequantize = dequantize
        self._kv = kv
        self.counter: Int64s = np.zeros(1, np.int64)
        """Products so far, [1]; may be replaced."""

    def with_kv(self, kv: ReferenceKV) -> ReferenceOps:
        """The same operations, with this KV memory behind `attention`."""
        return ReferenceOps(self._dequantize, kv)

    def weight(self, tensor: HostTensor) -> ReferenceWeight:
        """See Ops.weight."""
        if len(tensor.shape) != 2:
            raise ValueError(f"{tensor.name} is not a matrix: shape {tensor.shape}")
        return ReferenceWeight(tensor.name, self._load(tensor))

    def vector(self, tensor: HostTensor) -> Floats:
        """See Ops.vector."""
        if len(tensor.shape) != 1:
            raise ValueError(f"{tensor.name} is not a vector: shape {tensor.shape}")
        return self._load(tensor)

    def _load(self, tensor: HostTensor) -> Floats:
        values = np.array(self._dequantize(tensor), dtype=np.float32).reshape(tensor.shape)
        tensor.release()
        return values

    def embed(self, table: ReferenceWeight, batch: Batch, scale: float = 1.0) -> Floats:
        """See Ops.embed."""
        rows: Floats = table.values[batch.token_ids] * np.float32(scale)
        return rows

    def linear(self, x: Floats, weight: ReferenceWeight, bias: Floats | None = None) -> Floats:
        """See Ops.linear."""
        y: Floats = x @ weight.values.T
        self.counter[0] += 1
        if bias is not None:
            y += bias
        return y

    def rms_norm(self, x: Floats, weight: Floats, eps: float) -> Floats:
        """See Ops.rms_norm."""
        groups = x.reshape(x.shape[0], -1, len(weight)).astype(np.float64)
        mean_square = np.mean(groups * groups, axis=-1, keepdims=True)
        normed: Floats = (groups / np.sqrt(mean_square + eps) * weight).astype(np.float32)
        return normed.reshape(x.shape)

    def rope(self, x: Floats, spec: RopeSpec, batch: Batch) -> Floats:
        """See Ops.rope."""
        angles = batch.positions[:, None] * rope_frequencies(spec)  # [n, num_dims / 2]
        cos, sin = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]  # the same for all heads
        heads = x.reshape(x.shape[0], -1, spec.head_dim)
        if spec.order is RopeOrder.NEOX:
            half = spec.num_dims // 2
            first, second = slice(0, half), slice(half, spec.num_dims)
        else:
            first, second = slice(0, spec.num_dims, 2), slice(1, spec.num_dims, 2)
        a, b = heads[..., first].astype(np.float64), heads[..., second].astype(np.float64)
        rotated = heads.copy()
        rotated[..., first] = a * cos - b * sin
        rotated[..., second] = b * cos + a * sin
        return rotated.reshape(x.shape)

    def attention(
        self, q: Floats, k: Floats, v: Floats, spec: AttentionSpec, batch: Batch
    ) -> Floats:
        """See Ops.attention. The softmax is over the whole row at once: tiles differ from it by rounding only."""
        if self._kv is None:
            raise RuntimeError(
                "attention needs the KV memory of an executor: compile the model first"
            )
        n = q.shape[0]
        k = k.reshape(n, spec.num_kv_heads, spec.head_dim)
        v = v.reshape(n, spec.num_kv_heads, spec.head_dim)
        self._kv.write(spec.layer, batch.slots, k, v)
        out = np.empty((n, spec.num_heads, spec.head_dim), np.float32)
        heads = q.reshape(out.shape)
        if self._kv.has_rotated_keys:
            heads = rotated(heads)
        for r, num_tokens in enumerate(batch.seq_lens):
            rows = slice(batch.query_start[r], batch.query_start[r + 1])
            if rows.start == rows.stop:
                continue
            keys, values = self._kv.read(spec.layer, batch.block_tables[r], int(num_tokens))
            visible = _visible(batch.positions[rows], int(num_tokens), spec.window)
            out[rows] = _attend(heads[rows], keys, values, visible, spec)
        return out.reshape(n, -1)

    def gated(self, gate: Floats, up: Floats, activation: Activation) -> Floats:
        """See Ops.gated."""
        x = gate.astype(np.float64)
        if activation is Activation.SILU:
            # x * sigmoid(x), written with tanh because exp(-x) overflows
            y = x * (0.5 + 0.5 * np.tanh(0.5 * x))
        else:
            inner = np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)
            y = 0.5 * x * (1.0 + np.tanh(inner))
        return (y * up).astype(np.float32)

    def add(self, a: Floats, b: Floats) -> Floats:
        """See Ops.add."""
        return a + b

    def softcap(self, x: Floats, cap: float) -> Floats:
        """See Ops.softcap."""
        return (cap * np.tanh(x.astype(np.float64) / cap)).astype(np.float32)


def rope_frequencies(spec: RopeSpec) -> npt.NDArray[np.float64]:
    """Radians per position of each rotated pair, float64 [num_dims / 2]."""
    pairs = np.arange(spec.num_dims // 2, dtype=np.float64)
    frequencies = spec.base ** (-2.0 * pairs / spec.num_dims) / spec.linear_factor
    return frequencies / np.array(spec.freq_factors) if spec.freq_factors else frequencies


def _visible(positions: Int32s, num_tokens: int, window: int | None) -> Bools:
    """Which cached positions each query sees -> [queries, num_tokens]."""
    cached = np.arange(num_tokens)
    visible = cached <= positions[:, None]
    if window is not None:
        visible &= cached > positions[:, None] - window
    return visible


def _attend(q: Floats, keys: Floats, values: Floats, visible: Bools, spec: AttentionSpec) -> Floats:
    """Attention of one sequence: q [queries, heads, dim], keys and values [tokens, kv_heads, dim] -> like q."""
    group = spec.num_heads // spec.num_kv_heads
    out = np.empty_like(q)
    for head in range(spec.num_heads):
        kv_head = head // group
        scores = (q[:, head] @ keys[:, kv_head].T).astype(np.float64) * spec.scale
        if spec.softcap is not None:
            scores = spec.softcap * np.tanh(scores / spec.softcap)
        scores = np.where(visible, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out[:, head] = weights.astype(np.float32) @ values[:, kv_head]
    return out
