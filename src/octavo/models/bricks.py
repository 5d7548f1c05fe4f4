"""Parts that decoders share, each written once against Ops, with the loader of its tensors beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from octavo.errors import UnsupportedArchitecture
from octavo.models.base import ArchConfig, MetadataFields, WeightLoader
from octavo.ops.protocol import (
    Activation,
    AttentionSpec,
    Batch,
    Ops,
    RopeOrder,
    RopeSpec,
    T,
    W,
)


@dataclass(frozen=True, slots=True)
class Linear(Generic[T, W]):
    """A weight with its optional bias."""

    weight: W
    bias: T | None

    def __call__(self, ops: Ops[T, W], x: T) -> T:
        """x [n, in] -> [n, out]."""
        return ops.linear(x, self.weight, self.bias)


def load_linear(
    weights: WeightLoader[T, W], prefix: str, num_out: int, num_in: int
) -> Linear[T, W]:
    """`<prefix>.weight` [num_out, num_in] and, if there, `<prefix>.bias` [num_out]."""
    weight = weights.matrix(f"{prefix}.weight", num_out, num_in)
    return Linear(weight, weights.optional_vector(f"{prefix}.bias", num_out))


@dataclass(frozen=True, slots=True)
class GatedMLP(Generic[T, W]):
    """down(activation(gate(x)) * up(x))."""

    gate: Linear[T, W]
    up: Linear[T, W]
    down: Linear[T, W]
    activation: Activation

    def __call__(self, ops: Ops[T, W], x: T) -> T:
        """x [n, hidden] -> [n, hidden]."""
        return self.down(ops, ops.gated(self.gate(ops, x), self.up(ops, x), self.activation))


def load_gated_mlp(
    weights: WeightLoader[T, W], prefix: str, config: ArchConfig, activation: Activation
) -> GatedMLP[T, W]:
    """The MLP of one layer, from `<prefix>.ffn_*`."""
    hidden, inner = config.hidden_size, config.intermediate_size
    return GatedMLP(
        gate=load_linear(weights, f"{prefix}.ffn_gate", inner, hidden),
        up=load_linear(weights, f"{prefix}.ffn_up", inner, hidden),
        down=load_linear(weights, f"{prefix}.ffn_down", hidden, inner),
        activation=activation,
    )


@dataclass(frozen=True, slots=True)
class Attention(Generic[T, W]):
    """Projections, optional norm per head, rotary positions, attention over the cache, output projection."""

    q: Linear[T, W]
    k: Linear[T, W]
    v: Linear[T, W]
    out: Linear[T, W]
    q_norm: T | None
    k_norm: T | None
    norm_eps: float
    rope: RopeSpec
    spec: AttentionSpec

    def __call__(self, ops: Ops[T, W], x: T, batch: Batch) -> T:
        """x [n, hidden] -> [n, hidden]."""
        q, k, v = self.q(ops, x), self.k(ops, x), self.v(ops, x)
        if self.q_norm is not None:
            q = ops.rms_norm(q, self.q_norm, self.norm_eps)
        if self.k_norm is not None:
            k = ops.rms_norm(k, self.k_norm, self.norm_eps)
        q, k = ops.rope(q, self.rope, batch), ops.rope(k, self.rope, batch)
        return self.out(ops, ops.attention(q, k, v, self.spec, batch))


def load_attention(
    weights: WeightLoader[T, W],
    prefix: str,
    config: ArchConfig,
    *,
    rope: RopeSpec,
    spec: AttentionSpec,
) -> Attention[T, W]:
    """The attention of one layer, from `<prefix>.attn_*`; norms per head are used where the file has them."""
    hidden, head_dim = config.hidden_size, config.head_dim
    q_size, kv_size = config.num_heads * head_dim, config.num_kv_heads * head_dim
    return Attention(
        q=load_linear(weights, f"{prefix}.attn_q", q_size, hidden),
        k=load_linear(weights, f"{prefix}.attn_k", kv_size, hidden),
        v=load_linear(weights, f"{prefix}.attn_v", kv_size, hidden),
        out=load_linear(weights, f"{prefix}.attn_output", hidden, q_size),
        q_norm=weights.optional_vector(f"{prefix}.attn_q_norm.weight", head_dim),
        k_norm=weights.optional_vector(f"{prefix}.attn_k_norm.weight", head_dim),
        norm_eps=config.rms_norm_eps,
        rope=rope,
        spec=spec,
    )


@dataclass(frozen=True, slots=True)
class Head(Generic[T, W]):
    """Final norm and output projection. A file without `output.weight` uses the embedding for it."""

    norm: T
    weight: W
    norm_eps: float
    softcap: float | None = None

    def __call__(self, ops: Ops[T, W], rows: T) -> T:
        """rows [rows, hidden] -> logits [rows, vocab]."""
        logits = ops.linear(ops.rms_norm(rows, self.norm, self.norm_eps), self.weight)
        return logits if self.softcap is None else ops.softcap(logits, self.softcap)


def load_head(
    weights: WeightLoader[T, W], config: ArchConfig, embedding: W, softcap: float | None = None
) -> Head[T, W]:
    """The head, tied to `embedding` (the same handle, so held once) unless the file has its own matrix."""
    weight = embedding
    if weights.has("output.weight"):
        weight = weights.matrix("output.weight", config.vocab_size, config.hidden_size)
    norm = weights.vector("output_norm.weight", config.hidden_size)
    return Head(norm, weight, config.rms_norm_eps, softcap)


def read_rope(
    fields: MetadataFields,
    config: ArchConfig,
    order: RopeOrder,
    *,
    default_base: float,
    freq_factors: tuple[float, ...] = (),
) -> RopeSpec:
    """Rotary positions as the file declares them. `freq_factors` holds one divisor per rotated pair, or nothing."""
    return RopeSpec(
        head_dim=config.head_dim,
        num_dims=read_rotated_dims(fields, config),
        base=fields.number("rope.freq_base", default_base),
        order=order,
        linear_factor=_read_linear_factor(fields),
        freq_factors=freq_factors,
    )


def read_rotated_dims(fields: MetadataFields, config: ArchConfig) -> int:
    """Channels of a head that are rotated: even, at most head_dim."""
    num_dims = fields.count("rope.dimension_count", config.head_dim)
    if num_dims % 2 or num_dims > config.head_dim:
        raise fields.corrupt(
            "rope.dimension_count", f"must be even and at most {config.head_dim}, not {num_dims}"
        )
    return num_dims


def _read_linear_factor(fields: MetadataFields) -> float:
    """By how much positions are squeezed. llama3's scaling is a tensor of divisors instead, see `freq_factors`."""
    # A factor without a type is linear: such files are older than the type.
    match fields.text("rope.scaling.type", "linear"):
        case "none":
            return 1.0
        case "linear":
            factor = fields.optional_number("rope.scaling.factor")
            return factor or fields.optional_number("rope.scale_linear") or 1.0
        case other:
            raise UnsupportedArchitecture(
                f"{fields.architecture}.rope.scaling.type {other!r} is not supported; "
                "supported: none, linear, and llama3 by its rope_freqs tensor"
            )
