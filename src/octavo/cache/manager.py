"""The only door to KV blocks: match -> start -> allocate -> commit -> free, and fork."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from octavo.cache.block_pool import BlockPool
from octavo.cache.radix_tree import MissReason, Node, RadixTree, TokenIds, key_of
from octavo.kv_layout import BLOCK_SIZE

BlockIds = npt.NDArray[np.int32]

TokensOf = Callable[[int, int], TokenIds]
"""The tokens of a sequence from one position to another."""

Copy = tuple[int, int]
"""A block to be copied, and the one it is copied to."""


class BlockTable:
    """The blocks of one sequence, in token order. Written by CacheManager only.

    position p lies in block block_ids[p // BLOCK_SIZE], at offset p % BLOCK_SIZE
    """

    __slots__ = (
        "_ids",
        "node",
        "num_blocks",
        "num_committed",
        "num_in_tree",
        "num_swaps",
        "salt",
        "tokens_of",
    )

    def __init__(self, salt: str | None = None, tokens_of: TokensOf | None = None) -> None:
        """Without `tokens_of` nothing of it is found by others."""
        self._ids: BlockIds = np.zeros(4, np.int32)
        self.num_blocks = 0
        self.num_committed = 0
        self.salt = salt
        self.tokens_of = tokens_of
        self.node: Node | None = None
        """The last of its blocks in the tree."""
        self.num_in_tree = 0
        self.num_swaps = 0
        """How often a block was replaced by another one with the same content."""

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

    def swap(self, at: int, block_id: int) -> None:
        """Put another block in the place of one. Views that were handed out keep what they had."""
        self._ids = self._ids.copy()
        self._ids[at] = block_id
        self.num_swaps += 1

    def enter(self, node: Node) -> None:
        """Note that the next block is in the tree."""
        self.node = node
        self.num_in_tree += 1

    def leave_tree(self) -> None:
        """Be found no more."""
        self.tokens_of = self.node = None
        self.num_in_tree = 0

    def clear(self) -> None:
        """Forget all blocks."""
        self.num_blocks = self.num_committed = 0
        self.leave_tree()


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """Blocks that already hold the KV of a sequence's first `num_tokens` tokens. Holds a reference to each.

    The last one may be `partial`: its first `num_tokens` % BLOCK_SIZE tokens are those of the sequence.
    """

    num_tokens: int = 0
    block_ids: tuple[int, ...] = ()
    node: Node | None = None
    partial: int | None = None

    @property
    def num_full(self) -> int:
        """Blocks that are taken over as they are."""
        return len(self.block_ids) - (self.partial is not None)


NO_MATCH = PrefixMatch()

_REMEMBERED_PER_BLOCK: Final = 4
"""Evicted blocks that are remembered, for each block of the pool."""


@dataclass(frozen=True, slots=True)
class PrefixMiss:
    """Where a prompt left what is stored, and why. `others`: what those of the same salt have there, if they diverge."""

    num_tokens: int
    reason: MissReason
    others: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Opened:
    """A table that continues what others computed. The copies must run before the next step."""

    table: BlockTable
    copies: tuple[Copy, ...] = ()


class Tier(Protocol):
    """Where prefixes are stored that may leave the memory."""

    def offer(self, salt: str | None, keys: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Store a prefix, given by its full blocks. They hold it until they are given up."""
        ...

    def give_up(self, block_id: int) -> None:
        """Told before a block in the tree is used for something else."""
        ...

    def give_up_all(self) -> None:
        """Told before all of them are."""
        ...


class CacheManager:
    """Hands out blocks and takes them back. A table belongs to one sequence from `start` or `fork` until `free`.

    Blocks that are computed are found by other sequences with the same salt that begin with the same tokens: full ones
    at once, the last one of a sequence when it ends. A block that is written belongs to one table; blocks in the tree
    are never written again. What nobody holds is kept until its block is needed, least recently used first.

    Invariant: who holds a block of the tree holds all above it, so kept blocks are given out leaves first.
    """

    def __init__(
        self, num_blocks: int, *, is_sharing: bool = True, tier: Tier | None = None
    ) -> None:
        """Unless `is_sharing`, nothing is kept and nothing found. What ends is offered to `tier`."""
        self._tree = RadixTree(_REMEMBERED_PER_BLOCK * num_blocks)
        self._pool = BlockPool(num_blocks, functools.partial(_evict, self._tree, tier))
        self._tier = tier
        self._tables: set[BlockTable] = set()
        self._is_sharing = is_sharing

    @property
    def num_blocks(self) -> int:
        """Blocks in all."""
        return self._pool.num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated, cached ones among them."""
        return self._pool.num_free

    @property
    def num_held(self) -> int:
        """Blocks held by sequences."""
        return self.num_blocks - self.num_free

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds, kept for their content."""
        return self._pool.num_kept

    def match(self, token_ids: TokenIds, salt: str | None = None) -> PrefixMatch:
        """Find and hold the longest stored prefix of `token_ids`. The last token is never part of it.

        It is to be computed whatever is stored, for its logits, into a block of the sequence's own.
        """
        if not self._is_sharing:
            return NO_MATCH
        path, closest = self._walk(token_ids, salt)
        block_ids = tuple(node.block_id for node in path)
        num_tokens = len(path) * BLOCK_SIZE
        partial = None
        if closest is not None:
            node, num_common = closest
            partial = node.block_id
            block_ids += (partial,)
            num_tokens += num_common
        self._pool.share(block_ids)
        return PrefixMatch(num_tokens, block_ids, path[-1] if path else None, partial)

    def _walk(
        self, token_ids: TokenIds, salt: str | None
    ) -> tuple[list[Node], tuple[Node, int] | None]:
        """RadixTree.walk of all tokens but the last one."""
        return self._tree.walk(token_ids[: len(token_ids) - 1], salt)

    def match_length(self, token_ids: TokenIds, salt: str | None = None) -> int:
        """Tokens that `match` would find, without holding them."""
        if not self._is_sharing:
            return 0
        path, closest = self._walk(token_ids, salt)
        return len(path) * BLOCK_SIZE + (0 if closest is None else closest[1])

    def miss_of(
        self, token_ids: TokenIds, match: PrefixMatch, salt: str | None = None
    ) -> PrefixMiss | None:
        """Why `match` does not reach further into `token_ids`; None if it reaches as far as it may."""
        if match.num_tokens >= len(token_ids) - 1:
            return None
        if not self._is_sharing:
            return PrefixMiss(0, MissReason.DISABLED)
        first = match.num_full * BLOCK_SIZE
        key = key_of(token_ids[first : first + BLOCK_SIZE])
        return PrefixMiss(match.num_tokens, *self._tree.miss(match.node, salt, key))

    def release(self, match: PrefixMatch) -> None:
        """Let go of a match that is not used."""
        self._pool.free(match.block_ids, self._tree)

    def start(
        self, match: PrefixMatch, salt: str | None = None, tokens_of: TokensOf | None = None
    ) -> Opened | None:
        """Open a table that begins with the matched tokens, and take over or let go of the match's references.

            match    [ full ][ full ][ a b c d e f ]      the full blocks are shared,
            table    [ same ][ same ][ a b c . . . ]      of the last one the common tokens are copied

        None, letting go of the match, if no block is free for the copy.
        """
        table = BlockTable(salt, tokens_of if self._is_sharing else None)
        copies: tuple[Copy, ...] = ()
        full = match.block_ids[: match.num_full]
        table.extend(full)
        if match.partial is not None:
            own = self._pool.allocate(1)
            if own is None:
                self.release(match)
                return None
            table.extend(own)
            copies = ((match.partial, own[0]),)
            # Until the copy is made nobody writes to it: copies run in order, before anything else of a step.
            self._pool.free([match.partial], self._tree)
        table.num_committed = match.num_tokens
        table.node, table.num_in_tree = match.node, match.num_full
        self._tables.add(table)
        return Opened(table, copies)

    def start_loading(
        self, match: PrefixMatch, num_tokens: int, salt: str | None, tokens_of: TokensOf
    ) -> BlockTable | None:
        """Open a table on the match's full blocks, with room up to `num_tokens` that somebody else fills.

        What is filled is to be committed, like what is computed. The match stays the caller's. None if too few blocks
        are free.
        """
        full = match.block_ids[: match.num_full]
        self._pool.share(full)
        shared = PrefixMatch(match.num_full * BLOCK_SIZE, full, match.node)
        opened = self.start(shared, salt, tokens_of)
        assert opened is not None, "nothing is copied"
        if self.allocate(opened.table, num_tokens):
            return opened.table
        self.free(opened.table)
        return None

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
        """Say that the first `num_tokens` tokens of `table` are computed: from now on their KV may be shared.

        Where another sequence was first with the same tokens, its block takes the place of this one's: the bits are the
        same.
        """
        table.num_committed = num_tokens
        if table.tokens_of is None:
            return
        for at in range(table.num_in_tree, num_tokens // BLOCK_SIZE):
            key = key_of(table.tokens_of(at * BLOCK_SIZE, (at + 1) * BLOCK_SIZE))
            own = int(table.block_ids[at])
            parent = self._tree.below(table.node, table.salt)
            node = self._tree.insert(parent, key, own)
            if node.block_id != own:
                self._pool.share([node.block_id])
                table.swap(at, node.block_id)
                self._pool.free([own])
            elif (part := parent.part_of(key)) is not None:
                self._forget(part)
            table.enter(node)

    def fork(
        self, table: BlockTable, num_tokens: int, tokens_of: TokensOf | None = None
    ) -> Opened | None:
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
        child = BlockTable(table.salt, None if table.tokens_of is None else tokens_of)
        child.extend(shared + own)
        child.num_committed = num_tokens
        child.num_in_tree = min(num_full, table.num_in_tree)
        if child.num_in_tree:
            child.node = self._tree.node_of(shared[child.num_in_tree - 1])
        self._tables.add(child)
        return Opened(child, tuple((int(table.block_ids[num_full]), block_id) for block_id in own))

    def free(self, table: BlockTable) -> None:
        """Close a table and drop its references. What it computed stays to be found until its blocks are needed."""
        self._tables.remove(table)
        self._keep_last_block(table)
        if self._tier is not None and table.node is not None:
            self._offer(self._tier, table.node, table.salt)
        self._pool.free(table.block_ids.tolist(), self._tree)
        table.clear()

    def reset(self) -> None:
        """Forget all prefixes. Sequences under way keep their blocks; nothing of them is found any more."""
        if self._tier is not None:
            self._tier.give_up_all()
        self._tree.clear()
        self._pool.discard_all()
        for table in self._tables:
            table.leave_tree()

    def _offer(self, tier: Tier, last: Node, salt: str | None) -> None:
        keys, block_ids = [], []
        node: Node | None = last
        while node is not None and node.parent is not None:
            keys.append(node.key)
            block_ids.append(node.block_id)
            node = node.parent
        tier.offer(salt, keys[::-1], block_ids[::-1])

    def _keep_last_block(self, table: BlockTable) -> None:
        num_rest = table.num_committed % BLOCK_SIZE
        num_full = table.num_committed // BLOCK_SIZE
        if table.tokens_of is None or not num_rest or table.num_in_tree != num_full:
            return
        key = key_of(table.tokens_of(table.num_committed - num_rest, table.num_committed))
        parent = self._tree.below(table.node, table.salt)
        if parent.begins_with(key):
            return
        part = parent.part_of(key)
        self._tree.insert(parent, key, int(table.block_ids[num_full]))
        if part is not None:
            self._forget(part)

    def _forget(self, part: Node) -> None:
        """Drop a block that is not full, all of whose tokens are in another one now."""
        if self._pool.is_kept(part.block_id):
            self._tree.remove(part.block_id)
            self._pool.discard(part.block_id)

    def check_invariants(self) -> None:
        """Check that free + held + cached = total, every count equals the number of tables holding the block.

        Also that blocks in the tree hold the tokens they are found by, under blocks that are held as well.

        Raises: AssertionError.
        """
        references: dict[int, int] = {}
        for table in self._tables:
            block_ids = table.block_ids.tolist()
            if len(set(block_ids)) != len(block_ids):
                raise AssertionError(f"a table holds a block twice: {block_ids}")
            for block_id in block_ids:
                references[block_id] = references.get(block_id, 0) + 1
            self._check_path(table)
        self._tree.check_invariants()
        self._pool.check_invariants(references, self._tree)
        if len(references) != self.num_held:
            raise AssertionError(
                f"{self.num_free} free or cached + {len(references)} held blocks are not {self.num_blocks}"
            )

    def _check_path(self, table: BlockTable) -> None:
        node = table.node
        for at in reversed(range(table.num_in_tree)):
            assert node is not None, "a table is deeper in the tree than the tree"
            assert node.block_id == table.block_ids[at], "a table's block is not the tree's"
            if table.tokens_of is not None:
                tokens = table.tokens_of(at * BLOCK_SIZE, (at + 1) * BLOCK_SIZE)
                assert node.key == key_of(tokens), "a block in the tree holds other tokens"
            node = node.parent


def _evict(tree: RadixTree, tier: Tier | None, block_id: int) -> None:
    if tier is not None:
        tier.give_up(block_id)
    tree.evict(block_id)


def blocks_for(num_tokens: int) -> int:
    """Blocks that hold `num_tokens` tokens of one sequence."""
    return -(-num_tokens // BLOCK_SIZE)
