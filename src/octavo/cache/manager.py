"""The only door to KV blocks: match -> allocate -> commit -> free, and fork."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.cache.block_pool import BlockPool
from octavo.kv_layout import BLOCK_SIZE

BlockIds = npt.NDArray[np.int32]


class BlockTable:
    """The blocks of one sequence, in token order. Written by CacheManager only.

    position p lies in block block_ids[p // BLOCK_SIZE], at offset p % BLOCK_SIZE
    """

    __slots__ = ("_ids", "num_blocks", "num_committed")

    def __init__(self) -> None:
        self._ids: BlockIds = np.zeros(4, np.int32)
        self.num_blocks = 0
        self.num_committed = 0

    @property
    def block_ids(self) -> BlockIds:
        """Block ids [num_blocks]; a view that later growth may leave behind."""
        return self._ids[: self.num_blocks]

    def extend(self, block_ids: Sequence[int]) -> None:
        """Append blocks."""
        end = self.num_blocks + len(block_ids)
        if end > len(self._ids):
            grown = np.zeros(max(end, 2 * len(self._ids)), np.int32)
            grown[: self.num_blocks] = self.block_ids
            self._ids = grown
        self._ids[self.num_blocks : end] = block_ids
        self.num_blocks = end

    def clear(self) -> None:
        """Forget all blocks."""
        self.num_blocks = 0
        self.num_committed = 0


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """Blocks that already hold the KV of a prompt's first `num_tokens` tokens. Holds a reference to each."""

    num_tokens: int = 0
    block_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Fork:
    """A table that continues another one. `copies` (source block, destination block) must run before the next step."""

    table: BlockTable
    copies: tuple[tuple[int, int], ...] = ()


class CacheManager:
    """Hands out blocks and takes them back. A table belongs to one sequence from `start` or `fork` until `free`.

    A block that is written belongs to one table; shared blocks are full and never written again.
    """

    def __init__(self, num_blocks: int) -> None:
        self._pool = BlockPool(num_blocks)
        self._tables: set[BlockTable] = set()

    @property
    def num_blocks(self) -> int:
        """Blocks in all."""
        return self._pool.num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated."""
        return self._pool.num_free

    @property
    def num_held(self) -> int:
        """Blocks held by sequences."""
        return self.num_blocks - self.num_free - self.num_cached

    @property
    def num_cached(self) -> int:
        """Blocks kept for their content alone. None yet: nothing outlives its sequence."""
        return 0

    def match(self, token_ids: npt.NDArray[np.int32], salt: str | None = None) -> PrefixMatch:
        """Find and hold the longest stored prefix of `token_ids` among requests with the same salt.

        Nothing is stored yet, so nothing is found; the radix tree will answer here.
        """
        return PrefixMatch()

    def release(self, match: PrefixMatch) -> None:
        """Let go of a match that is not used."""
        self._pool.free(match.block_ids)

    def start(self, match: PrefixMatch) -> BlockTable:
        """Open a table that begins with the matched blocks and takes over their references."""
        table = BlockTable()
        table.extend(match.block_ids)
        table.num_committed = match.num_tokens
        self._tables.add(table)
        return table

    def allocate(self, table: BlockTable, num_tokens: int) -> bool:
        """Grow `table` to hold `num_tokens` tokens. False, changing nothing, if too few blocks are free."""
        missing = blocks_for(num_tokens) - table.num_blocks
        if missing <= 0:
            return True
        block_ids = self._pool.allocate(missing)
        if block_ids is None:
            return False
        table.extend(block_ids)
        return True

    def commit(self, table: BlockTable, num_tokens: int) -> None:
        """Say that the first `num_tokens` tokens of `table` are computed: from now on their KV may be shared."""
        table.num_committed = num_tokens

    def fork(self, table: BlockTable, num_tokens: int) -> Fork | None:
        """Open a table that shares the first `num_tokens` committed tokens of another one.

            source   [ full ][ full ][ partial.. ]        the full blocks are shared,
            fork     [ same ][ same ][ own copy  ]        the last partial one is copied, since both will write to it

        None, changing nothing, if no block is free for the copy.
        """
        assert num_tokens <= table.num_committed, "only computed tokens can be shared"
        num_full, num_rest = divmod(num_tokens, BLOCK_SIZE)
        own = self._pool.allocate(1 if num_rest else 0)
        if own is None:
            return None
        shared = table.block_ids[:num_full].tolist()
        self._pool.share(shared)
        child = BlockTable()
        child.extend(shared + own)
        child.num_committed = num_tokens
        self._tables.add(child)
        return Fork(child, tuple((int(table.block_ids[num_full]), block_id) for block_id in own))

    def free(self, table: BlockTable) -> None:
        """Close a table and drop its references."""
        self._tables.remove(table)
        self._pool.free(table.block_ids.tolist())
        table.clear()

    def check_invariants(self) -> None:
        """Check that free + held = total and that every count equals the number of tables holding the block.

        Raises: AssertionError.
        """
        references: dict[int, int] = {}
        for table in self._tables:
            block_ids = table.block_ids.tolist()
            if len(set(block_ids)) != len(block_ids):
                raise AssertionError(f"a table holds a block twice: {block_ids}")
            for block_id in block_ids:
                references[block_id] = references.get(block_id, 0) + 1
        self._pool.check_invariants(references)
        if len(references) != self.num_held:
            raise AssertionError(
                f"{self.num_free} free + {len(references)} held + {self.num_cached} cached blocks "
                f"are not {self.num_blocks}"
            )


def blocks_for(num_tokens: int) -> int:
    """Blocks that hold `num_tokens` tokens of one sequence."""
    return -(-num_tokens // BLOCK_SIZE)
