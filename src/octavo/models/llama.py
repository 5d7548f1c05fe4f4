"""The llama family: Llama 1-3, SmolLM, Mistral, TinyLlama and others with the GGUF architecture "llama"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic

from octavo.models.base import ArchConfig, MetadataFields, WeightLoader
from octavo.models.bricks import (
    Attention,
    GatedMLP,
    load_attention,
    load_gated_mlp,
    load_head,
    read_rope,
    read_rotated_dims,
)
from octavo.ops.protocol import Activation, AttentionSpec, Batch, Ops, RopeOrder, T, W

DEFAULT_ROPE_BASE: Final = 10000.0


@dataclass(frozen=True, slots=True)
class _Layer(Generic[T, W]):
    attn_norm: T
    attention: Attention[T, W]
    mlp_norm: T
    mlp: GatedMLP[T, W]


class LlamaModel(Generic[T, W]):
    """Pre-norm decoder with SwiGLU. Raises as `WeightLoader` does if the file's tensors do not fit its numbers."""

    def __init__(
        self, config: ArchConfig, fields: MetadataFields, weights: WeightLoader[T, W]
    ) -> None:
        self._config = config
        # GGUF permutes q and k of this family so that a rotated pair lies side by side. Llama 3.1's frequency
        # scaling comes as a tensor of divisors.
        num_pairs = read_rotated_dims(fields, config) // 2
        self._rope = read_rope(
            fields,
            config,
            RopeOrder.ADJACENT,
            default_base=DEFAULT_ROPE_BASE,
            freq_factors=weights.numbers("rope_freqs.weight", num_pairs),
        )
        self._embedding = weights.matrix("token_embd.weight", config.vocab_size, config.hidden_size)
        self._layers = [self._load_layer(weights, i) for i in range(config.num_layers)]
        self._head = load_head(weights, config, self._embedding)

    def _load_layer(self, weights: WeightLoader[T, W], layer: int) -> _Layer[T, W]:
        config = self._config
        prefix = f"blk.{layer}"
        spec = AttentionSpec(
            layer=layer,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scale=config.head_dim**-0.5,
        )
        return _Layer(
            attn_norm=weights.vector(f"{prefix}.attn_norm.weight", config.hidden_size),
            attention=load_attention(weights, prefix, config, rope=self._rope, spec=spec),
            mlp_norm=weights.vector(f"{prefix}.ffn_norm.weight", config.hidden_size),
            mlp=load_gated_mlp(weights, prefix, config, Activation.SILU),
        )

    def forward(self, ops: Ops[T, W], batch: Batch) -> T:
        """See DecoderModel.forward."""
        eps = self._config.rms_norm_eps
        x = ops.embed(self._embedding, batch)
        for w in self._layers:
            x = ops.add(x, w.attention(ops, ops.rms_norm(x, w.attn_norm, eps), batch))
            x = ops.add(x, w.mlp(ops, ops.rms_norm(x, w.mlp_norm, eps)))
        return x

    def logits(self, ops: Ops[T, W], rows: T) -> T:
        """See DecoderModel.logits."""
        return self._head(ops, rows)
