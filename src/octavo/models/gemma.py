"""Gemma 3, text only: five layers with a sliding window, then one that sees everything; norms around both blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Generic

from octavo.models.base import ArchConfig, MetadataFields, WeightLoader
from octavo.models.bricks import (
    Attention,
    GatedMLP,
    load_attention,
    load_gated_mlp,
    load_head,
    read_rope,
)
from octavo.ops.protocol import Activation, AttentionSpec, Batch, Ops, RopeOrder, RopeSpec, T, W

# Values the architecture fixes and files may leave out. Source: the Gemma 3 report (2025) and its published configs.
DEFAULT_ROPE_BASE: Final = 1_000_000.0
DEFAULT_LOCAL_ROPE_BASE: Final = 10_000.0
DEFAULT_LAYER_PERIOD: Final = 6
# The 27B model, the only one of 62 layers, scales scores by hidden_size / num_heads instead of head_dim.
_NUM_LAYERS_27B: Final = 62


@dataclass(frozen=True, slots=True)
class _Layer(Generic[T, W]):
    attn_norm: T
    attention: Attention[T, W]
    post_attn_norm: T
    mlp_norm: T
    mlp: GatedMLP[T, W]
    post_mlp_norm: T


@dataclass(frozen=True, slots=True)
class _AttentionConfig:
    """What the layers' attention needs. Layer i is local unless i + 1 is a multiple of `period`."""

    local_rope: RopeSpec
    global_rope: RopeSpec
    window: int
    period: int
    scale: float
    softcap: float | None

    def is_local(self, layer: int) -> bool:
        return (layer + 1) % self.period != 0


class GemmaModel(Generic[T, W]):
    """Gemma 3. The norm weights of a GGUF file already hold the architecture's "+ 1"."""

    def __init__(
        self, config: ArchConfig, fields: MetadataFields, weights: WeightLoader[T, W]
    ) -> None:
        self._config = config
        self._attention = _read_attention(config, fields)
        self._embedding = weights.matrix("token_embd.weight", config.vocab_size, config.hidden_size)
        self._layers = [self._load_layer(weights, i) for i in range(config.num_layers)]
        softcap = fields.optional_number("final_logit_softcapping")
        self._head = load_head(weights, config, self._embedding, softcap)

    def _load_layer(self, weights: WeightLoader[T, W], layer: int) -> _Layer[T, W]:
        config, attention = self._config, self._attention
        is_local = attention.is_local(layer)
        prefix = f"blk.{layer}"
        spec = AttentionSpec(
            layer=layer,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scale=attention.scale,
            window=attention.window if is_local else None,
            softcap=attention.softcap,
        )
        rope = attention.local_rope if is_local else attention.global_rope

        def norm(name: str) -> T:
            return weights.vector(f"{prefix}.{name}.weight", config.hidden_size)

        return _Layer(
            attn_norm=norm("attn_norm"),
            attention=load_attention(weights, prefix, config, rope=rope, spec=spec),
            post_attn_norm=norm("post_attention_norm"),
            mlp_norm=norm("ffn_norm"),
            mlp=load_gated_mlp(weights, prefix, config, Activation.GELU_TANH),
            post_mlp_norm=norm("post_ffw_norm"),
        )

    def forward(self, ops: Ops[T, W], batch: Batch) -> T:
        """See DecoderModel.forward."""
        eps = self._config.rms_norm_eps
        x = ops.embed(self._embedding, batch, scale=self._config.hidden_size**0.5)
        for w in self._layers:
            attended = w.attention(ops, ops.rms_norm(x, w.attn_norm, eps), batch)
            x = ops.add(x, ops.rms_norm(attended, w.post_attn_norm, eps))
            mixed = w.mlp(ops, ops.rms_norm(x, w.mlp_norm, eps))
            x = ops.add(x, ops.rms_norm(mixed, w.post_mlp_norm, eps))
        return x

    def logits(self, ops: Ops[T, W], rows: T) -> T:
        """See DecoderModel.logits."""
        return self._head(ops, rows)


def _read_attention(config: ArchConfig, fields: MetadataFields) -> _AttentionConfig:
    global_rope = read_rope(fields, config, RopeOrder.NEOX, default_base=DEFAULT_ROPE_BASE)
    local_base = fields.number("rope.freq_base_swa", DEFAULT_LOCAL_ROPE_BASE)
    is_27b = config.num_layers == _NUM_LAYERS_27B
    scaled_dim = config.hidden_size / config.num_heads if is_27b else config.head_dim
    return _AttentionConfig(
        # The larger models squeeze positions (linear scaling) in their global layers only.
        local_rope=replace(global_rope, base=local_base, linear_factor=1.0),
        global_rope=global_rope,
        window=fields.count("attention.sliding_window"),
        period=fields.count("attention.sliding_window_pattern", DEFAULT_LAYER_PERIOD),
        scale=fields.optional_number("attention.scale") or scaled_dim**-0.5,
        softcap=fields.optional_number("attn_logit_softcapping"),
    )
