"""Where a key or value lies inside a KV block, and how many bytes blocks take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from octavo.dtypes import KVDType

BLOCK_SIZE: Final = 16
"""Tokens per KV block. A constant: kernels are unrolled over it."""


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Bytes and strides of a KV block. A block holds every layer of BLOCK_SIZE tokens, contiguously.

    block [layer][kv_head] { K [head_dim][BLOCK_SIZE] | V [BLOCK_SIZE][head_dim] }

    Keys are stored with the token innermost (scores of 16 tokens fill one register without a horizontal sum),
    values with the channel innermost.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: KVDType = KVDType.F16

    @property
    def head_bytes(self) -> int:
        """Bytes of K (or V) of one head in one layer of one block."""
        return self.head_dim * BLOCK_SIZE * self.dtype.value

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer of one block, K and V of all heads."""
        return 2 * self.num_kv_heads * self.head_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, all layers."""
        return self.num_layers * self.layer_bytes

    @property
    def token_bytes(self) -> int:
        """Bytes one token takes: 2 x layers x kv_heads x head_dim x bytes per element."""
        return self.block_bytes // BLOCK_SIZE

    def num_blocks(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens of one sequence."""
        return -(-num_tokens // BLOCK_SIZE)
