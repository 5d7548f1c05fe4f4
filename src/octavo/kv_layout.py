"""Where a key or value lies inside a KV block, and how many bytes blocks take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from octavo.dtypes import KVCode, KVDType

BLOCK_SIZE: Final = 16
"""Tokens per KV block. A constant: kernels are unrolled over it."""


KV_GROUP: Final = 64
"""Channels of a head that share a scale, at most."""

_LINE: Final = 64
"""Layers begin at cache lines."""


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Bytes and strides of a KV block. A block holds every layer of BLOCK_SIZE tokens, contiguously.

    block [layer][kv_head] { K [head_dim][BLOCK_SIZE] | V [BLOCK_SIZE][head_dim] }

    Keys are stored with the token innermost (scores of 16 tokens fill one register without a horizontal sum),
    values with the channel innermost. Behind the codes of K, and of V, lie their factors if the type has them: float16
    scales [groups][BLOCK_SIZE], then minima likewise. A layer ends at a whole cache line.
    csrc/kernels/kv_format.h has the same arithmetic.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: KVDType = KVDType.F16

    def side_bytes(self, code: KVCode) -> int:
        """Bytes of K (or V) of one head in one layer of one block, factors included."""
        # 4-bit codes fill whole vectors of 16 channels.
        channels = -(-self.head_dim // 16) * 16 if code.bits < 8 else self.head_dim
        groups = -(-self.head_dim // KV_GROUP)
        return BLOCK_SIZE * (
            channels * code.bits // 8 + groups * 2 * (code.has_scale + code.has_minimum)
        )

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer of one block, K and V of all heads."""
        head = self.side_bytes(self.dtype.keys) + self.side_bytes(self.dtype.values)
        return -(-self.num_kv_heads * head // _LINE) * _LINE

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, all layers."""
        return self.num_layers * self.layer_bytes

    @property
    def token_bytes(self) -> int:
        """Bytes one token takes, all layers, factors included."""
        return self.block_bytes // BLOCK_SIZE

    def num_blocks(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens of one sequence."""
        return -(-num_tokens // BLOCK_SIZE)
