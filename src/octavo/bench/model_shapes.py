"""Shapes of models, and which of their tensors has which format."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from octavo.dtypes import QuantFormat

ArchName = Literal["llama"]
SizeName = Literal["tiny", "1b", "3b", "8b"]
TypeName = Literal[
    "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k_m", "q5_k_m", "q6_k"
]
"""Whole-model types, by llama.cpp's names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The numbers of a model. `vocab_size` None is that of the borrowed tokenizer."""

    name: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int | None = 128256
    context_length: int = 131072
    rope_base: float = 500000.0
    is_tied: bool = False


SHAPES: Final = MappingProxyType[SizeName, ModelShape](
    {
        "tiny": ModelShape(
            name="Random tiny", num_layers=4, hidden_size=256, intermediate_size=512, num_heads=4, num_kv_heads=2,
            head_dim=64, vocab_size=None, context_length=2048,
        ),
        "1b": ModelShape(
            name="Random Llama 1B", num_layers=16, hidden_size=2048, intermediate_size=8192, num_heads=32,
            num_kv_heads=8, head_dim=64, is_tied=True,
        ),
        "3b": ModelShape(
            name="Random Llama 3B", num_layers=28, hidden_size=3072, intermediate_size=8192, num_heads=24,
            num_kv_heads=8, head_dim=128, is_tied=True,
        ),
        "8b": ModelShape(
            name="Random Llama 8B", num_layers=32, hidden_size=4096, intermediate_size=14336, num_heads=32,
            num_kv_heads=8, head_dim=128,
        ),
    }
)  # fmt: skip
"""The shapes of Llama 3.2 1B and 3B and of Llama 3.1 8B, and one for a try."""


@dataclass(frozen=True, slots=True)
class WeightMix:
    """Which tensor has which format. `head` is that of the output matrix, or of the embedding where it is both.

    `heavy` goes to attn_v and ffn_down of some layers. Source: llama.cpp's quantisation rules for whole-model types.
    """

    file_type: int
    base: QuantFormat
    head: QuantFormat
    heavy: QuantFormat | None = None

    def of(self, name: str, layer: int, num_layers: int) -> QuantFormat:
        """The format of the matrix `name` ("attn_v", "ffn_down", ...) of a layer."""
        is_sensitive = name in ("attn_v", "ffn_down") and _gets_more_bits(layer, num_layers)
        return self.heavy if is_sensitive and self.heavy is not None else self.base


def _gets_more_bits(layer: int, num_layers: int) -> bool:
    """The first and the last eighth of the layers, and every third between them."""
    eighth = num_layers // 8
    return layer < eighth or layer >= 7 * num_layers // 8 or (layer - eighth) % 3 == 2


_Q: Final = QuantFormat
MIXES: Final = MappingProxyType[TypeName, WeightMix](
    {
        "f32": WeightMix(0, _Q.F32, _Q.F32),
        "f16": WeightMix(1, _Q.F16, _Q.F16),
        "bf16": WeightMix(32, _Q.BF16, _Q.BF16),
        "q8_0": WeightMix(7, _Q.Q8_0, _Q.Q8_0),
        "q4_0": WeightMix(2, _Q.Q4_0, _Q.Q6_K),
        "q4_1": WeightMix(3, _Q.Q4_1, _Q.Q6_K),
        "q5_0": WeightMix(8, _Q.Q5_0, _Q.Q6_K),
        "q5_1": WeightMix(9, _Q.Q5_1, _Q.Q6_K),
        "q4_k_m": WeightMix(15, _Q.Q4_K, _Q.Q6_K, _Q.Q6_K),
        "q5_k_m": WeightMix(17, _Q.Q5_K, _Q.Q6_K, _Q.Q6_K),
        "q6_k": WeightMix(18, _Q.Q6_K, _Q.Q6_K),
    }
)
