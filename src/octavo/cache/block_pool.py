"""The fixed set of KV blocks: who holds how many references, and which block is given out next."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Container, Iterable, Sequence


class BlockPool:
    """Block ids 0 .. num_blocks - 1 with reference counts. Every operation is O(1) a block.

    A block that nobody holds is free, or kept for what is in it. Free ones are given out first, then those that were
    kept longest.

    Invariant: a block is in exactly one of the two, once, exactly when its count is 0.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[int], None]) -> None:
        """`on_evict` is told of each kept block that is given out."""
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least one block, got {num_blocks}")
        self._ref_counts = [0] * num_blocks
        self._free = deque(range(num_blocks))
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._on_evict = on_evict

    @property
    def num_blocks(self) -> int:
        """Blocks in all."""
        return len(self._ref_counts)

    @property
    def num_free(self) -> int:
        """Blocks nobody holds, those that are kept among them."""
        return len(self._free) + len(self._kept)

    @property
    def num_kept(self) -> int:
        """Blocks that nobody holds, but kept for what is in them."""
        return len(self._kept)

    def allocate(self, count: int) -> list[int] | None:
        """Take `count` blocks, or None, taking nothing, if fewer are there."""
        if count > self.num_free:
            return None
        block_ids = [self._next() for _ in range(count)]
        for block_id in block_ids:
            self._ref_counts[block_id] = 1
        return block_ids

    def _next(self) -> int:
        if self._free:
            return self._free.popleft()
        block_id, _ = self._kept.popitem(last=False)
        self._on_evict(block_id)
        return block_id

    def share(self, block_ids: Iterable[int]) -> None:
        """Add a reference to each of these blocks, which somebody holds or which are kept."""
        for block_id in block_ids:
            if self._ref_counts[block_id] == 0:
                assert block_id in self._kept, f"block {block_id} is free and cannot be shared"
                del self._kept[block_id]
            self._ref_counts[block_id] += 1

    def free(self, block_ids: Sequence[int], kept: Container[int] = ()) -> None:
        """Drop one reference to each of the blocks of a sequence, given in sequence order.

        Of those that nobody holds any more, the ones in `kept` are kept; the end of the sequence is given out before
        its beginning. What is free holds nothing worth keeping: it is given out first, while its memory is still in
        the cache, and before memory that was never touched.
        """
        for block_id in block_ids:
            count = self._ref_counts[block_id] - 1
            assert count >= 0, f"block {block_id} freed more often than held"
            self._ref_counts[block_id] = count
            if count == 0 and block_id not in kept:
                self._free.appendleft(block_id)
        for block_id in reversed(block_ids):
            if self._ref_counts[block_id] == 0 and block_id in kept:
                self._kept[block_id] = None

    def discard(self, block_id: int) -> None:
        """Keep a kept block no longer."""
        del self._kept[block_id]
        self._free.appendleft(block_id)

    def discard_all(self) -> None:
        """Keep no block."""
        self._free.extendleft(self._kept)
        self._kept.clear()

    def is_kept(self, block_id: int) -> bool:
        """Whether nobody holds the block, and it is kept."""
        return block_id in self._kept

    def check_invariants(self, references: dict[int, int], kept: Container[int]) -> None:
        """Compare with what whoever handed the blocks out counts.

        `references` are the holders by block id, `kept` the blocks with something worth keeping.

        Raises: AssertionError naming the first block that differs.
        """
        free = set(self._free)
        assert len(free) == len(self._free), "a block is in the free list twice"
        for block_id, count in enumerate(self._ref_counts):
            expected = references.get(block_id, 0)
            assert count == expected, f"block {block_id}: {count} references, {expected} holders"
            is_free, is_kept = block_id in free, block_id in self._kept
            where = f"block {block_id}: {count} references, free: {is_free}, kept: {is_kept}"
            assert (is_free, is_kept) == (
                count == 0 and block_id not in kept,
                count == 0 and block_id in kept,
            ), where
