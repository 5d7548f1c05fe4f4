"""The fixed set of KV blocks: who holds how many references, and which block is given out next."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence


class BlockPool:
    """Block ids 0 .. num_blocks - 1 with reference counts and a free list in eviction order. Every operation is O(1).

    Invariant: a block is in the free list, once, exactly when its count is 0.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least one block, got {num_blocks}")
        self._ref_counts = [0] * num_blocks
        self._free = deque(range(num_blocks))

    @property
    def num_blocks(self) -> int:
        """Blocks in all."""
        return len(self._ref_counts)

    @property
    def num_free(self) -> int:
        """Blocks nobody holds."""
        return len(self._free)

    def allocate(self, count: int) -> list[int] | None:
        """Take the `count` free blocks that are first to be evicted, or None, taking nothing, if there are fewer."""
        if count > len(self._free):
            return None
        block_ids = [self._free.popleft() for _ in range(count)]
        for block_id in block_ids:
            self._ref_counts[block_id] = 1
        return block_ids

    def share(self, block_ids: Iterable[int]) -> None:
        """Add a reference to each of these held blocks."""
        for block_id in block_ids:
            assert self._ref_counts[block_id] > 0, f"block {block_id} is free and cannot be shared"
            self._ref_counts[block_id] += 1

    def free(self, block_ids: Sequence[int]) -> None:
        """Drop one reference to each of the blocks of a sequence, given in sequence order.

        What is free holds nothing worth keeping: it is given out first, while its memory is still in the cache, and
        before memory that was never touched.
        """
        for block_id in block_ids:
            count = self._ref_counts[block_id] - 1
            assert count >= 0, f"block {block_id} freed more often than held"
            self._ref_counts[block_id] = count
            if count == 0:
                self._free.appendleft(block_id)

    def check_invariants(self, references: dict[int, int]) -> None:
        """Compare with `references`, the number of holders by block id, counted by who handed the blocks out.

        Raises: AssertionError naming the first block that differs.
        """
        free = set(self._free)
        if len(free) != len(self._free):
            raise AssertionError("a block is in the free list twice")
        for block_id, count in enumerate(self._ref_counts):
            expected = references.get(block_id, 0)
            if count != expected:
                raise AssertionError(f"block {block_id}: {count} references, {expected} holders")
            if (count == 0) != (block_id in free):
                raise AssertionError(
                    f"block {block_id}: {count} references, free: {block_id in free}"
                )
