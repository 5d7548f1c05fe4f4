"""Which blocks hold the keys and values of which token prefixes. Tokens and block ids; no counts, no memory.

    root (salt None) -- [t0 .. t15] -- [t16 .. t31] -- [t32 .. t47]
                                    \\- [t16 .. t20]                  a leaf that is not full

A node is one block, found below its parent by its tokens (ADR 0004). A block that is not full is always a leaf.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from octavo.kv_layout import BLOCK_SIZE

_TOKEN_BYTES: Final = 4

TokenIds = Sequence[int] | npt.NDArray[np.int32]


def key_of(token_ids: TokenIds) -> bytes:
    """Tokens as bytes that sort like the tokens."""
    return np.asarray(token_ids, ">u4").tobytes()


def tokens_of(key: bytes) -> list[int]:
    """The tokens again."""
    return np.frombuffer(key, ">u4").tolist()  # type: ignore[no-any-return]


class MissReason(Enum):
    """Why a prompt is not computed further than it is."""

    COLD = "cold"
    """Nobody has been there."""
    DIVERGED = "diverged"
    """Others went on with other tokens."""
    EVICTED = "evicted"
    """It was there, and its memory was needed."""
    SALT = "salt"
    """It is there, for requests with another salt."""
    DISABLED = "disabled"
    """Nothing is stored."""


class Miss(NamedTuple):
    """Why a block was not found, and what others have in its place: the tokens from the first that differs."""

    reason: MissReason
    others: tuple[int, ...] = ()


class Node:
    """One block of a prefix. `key`: its tokens; fewer than BLOCK_SIZE only in a leaf.

    `digest` stands for all tokens up to its end and the salt, `plain_digest` for the tokens alone.
    """

    __slots__ = ("_order", "block_id", "children", "digest", "key", "parent", "plain_digest")

    def __init__(
        self, parent: Node | None, key: bytes, block_id: int, salt: str | None = None
    ) -> None:
        self.parent = parent
        self.key = key
        self.block_id = block_id
        self.digest: int = hash((salt if parent is None else parent.digest, key))
        self.plain_digest: int = hash((None if parent is None else parent.plain_digest, key))
        self.children: dict[bytes, Node] = {}
        self._order: list[bytes] = []  # keys of the children, sorted

    @property
    def is_full(self) -> bool:
        """Whether nothing more fits into the block."""
        return len(self.key) == BLOCK_SIZE * _TOKEN_BYTES

    def add(self, child: Node) -> None:
        """Take in a child whose key is new."""
        self.children[child.key] = child
        insort(self._order, child.key)

    def remove(self, child: Node) -> None:
        """Let go of a child."""
        del self.children[child.key]
        del self._order[bisect_left(self._order, child.key)]

    def closest(self, key: bytes) -> tuple[Node, int] | None:
        """The child that begins with the most tokens of `key`, and their number; None if none shares its first."""
        # Among sorted keys the longest common prefix is with a neighbour.
        at = bisect_left(self._order, key)
        best, most = None, 0
        for neighbour in self._order[max(0, at - 1) : at + 1]:
            common = _num_common_tokens(neighbour, key)
            if common > most:
                best, most = self.children[neighbour], common
        return None if best is None else (best, most)

    def part_of(self, key: bytes) -> Node | None:
        """A child that is not full, with nothing but the first tokens of `key`."""
        at = bisect_left(self._order, key)
        if at == 0:
            return None
        before = self._order[at - 1]
        return self.children[before] if len(before) < len(key) and key.startswith(before) else None

    def begins_with(self, key: bytes) -> bool:
        """Whether a child begins with all of `key`."""
        at = bisect_left(self._order, key)
        return at < len(self._order) and self._order[at].startswith(key)


class _Root(Node):
    """Where the prefixes of one salt begin: no block."""

    __slots__ = ("salt",)

    def __init__(self, salt: str | None) -> None:
        super().__init__(None, b"", -1, salt)
        self.salt = salt


class RadixTree:
    """Prefixes by salt. Requests of different salts share nothing."""

    def __init__(self, num_remembered: int) -> None:
        """It remembers that many evicted blocks, to say why they are not found."""
        self._roots: dict[str | None, _Root] = {}
        self._node_of_block: dict[int, Node] = {}
        self._num_by_plain_digest: Counter[int] = Counter()
        self._evicted: OrderedDict[int, None] = OrderedDict()
        self._num_remembered = num_remembered

    def __len__(self) -> int:
        """Blocks in the tree."""
        return len(self._node_of_block)

    def __contains__(self, block_id: object) -> bool:
        """Whether a block is in the tree."""
        return block_id in self._node_of_block

    def node_of(self, block_id: int) -> Node:
        """The node of a block in the tree."""
        return self._node_of_block[block_id]

    def walk(
        self, token_ids: TokenIds, salt: str | None
    ) -> tuple[list[Node], tuple[Node, int] | None]:
        """The full blocks that begin `token_ids`, and the block with most tokens of what follows them, if any."""
        key = key_of(token_ids)
        width = BLOCK_SIZE * _TOKEN_BYTES
        node: Node | None = self._roots.get(salt)
        path: list[Node] = []
        if node is None:
            return path, None
        for start in range(0, len(key), width):
            child = node.children.get(key[start : start + width])
            if child is None or not child.is_full:
                return path, node.closest(key[start : start + width])
            path.append(child)
            node = child
        return path, None

    def below(self, parent: Node | None, salt: str | None) -> Node:
        """The node itself; the root of the salt for None. A root lives as long as it has children."""
        if parent is None:
            parent = self._roots.get(salt)
            if parent is None:
                parent = self._roots[salt] = _Root(salt)
        return parent

    def insert(self, parent: Node, key: bytes, block_id: int) -> Node:
        """Add a block, unless one with its tokens is there; returns the one that is."""
        node = parent.children.get(key)
        if node is None:
            node = self._node_of_block[block_id] = Node(parent, key, block_id)
            parent.add(node)
            self._num_by_plain_digest[node.plain_digest] += 1
            self._evicted.pop(node.digest, None)
        return node

    def evict(self, block_id: int) -> None:
        """Take out the block of a leaf, and remember that it was there."""
        self._evicted[self._node_of_block[block_id].digest] = None
        if len(self._evicted) > self._num_remembered:
            self._evicted.popitem(last=False)
        self.remove(block_id)

    def remove(self, block_id: int) -> None:
        """Take out the block of a leaf."""
        node = self._node_of_block.pop(block_id)
        assert not node.children, f"block {block_id} has blocks below it"
        assert node.parent is not None
        node.parent.remove(node)
        self._num_by_plain_digest[node.plain_digest] -= 1
        if not self._num_by_plain_digest[node.plain_digest]:
            del self._num_by_plain_digest[node.plain_digest]
        if isinstance(node.parent, _Root) and not node.parent.children:
            del self._roots[node.parent.salt]

    def miss(self, node: Node | None, salt: str | None, key: bytes) -> Miss:
        """Why the block `key` is not there after `node`, or at the beginning."""
        parent = node or self._roots.get(salt) or _Root(salt)
        if hash((parent.digest, key)) in self._evicted:
            return Miss(MissReason.EVICTED)
        if hash((parent.plain_digest, key)) in self._num_by_plain_digest:
            return Miss(MissReason.SALT)
        closest = parent.closest(key)
        if closest is None and (node is None or not parent.children):
            return Miss(MissReason.COLD)
        other, num_common = closest or (next(iter(parent.children.values())), 0)
        others = tuple(tokens_of(other.key)[num_common:])
        return Miss(MissReason.DIVERGED if others else MissReason.COLD, others)

    def clear(self) -> None:
        """Forget every prefix."""
        self._roots.clear()
        self._node_of_block.clear()
        self._num_by_plain_digest.clear()
        self._evicted.clear()

    def nodes(self) -> Iterator[Node]:
        """All blocks, parents before their children."""
        pending = [child for root in self._roots.values() for child in root.children.values()]
        while pending:
            node = pending.pop()
            yield node
            pending.extend(node.children.values())

    def check_invariants(self) -> None:
        """Check that edges, keys and blocks agree. Raises: AssertionError."""
        seen = {}
        for node in self.nodes():
            assert node.block_id not in seen, f"block {node.block_id} is in the tree twice"
            seen[node.block_id] = node
            assert node.parent is not None
            assert node.parent.children.get(node.key) is node, "a block is not where its tokens are"
            assert node.key, "a block in the tree has no tokens"
            assert node.is_full or not node.children, "a block that is not full has blocks below it"
            assert sorted(node.children) == node._order, "the order of the children is wrong"
        assert seen == self._node_of_block, "blocks and nodes disagree"
        digests = Counter(node.plain_digest for node in seen.values())
        assert digests == self._num_by_plain_digest, "blocks are counted wrong"


def _num_common_tokens(a: bytes, b: bytes) -> int:
    length = min(len(a), len(b))
    if a[:length] == b[:length]:
        return length // _TOKEN_BYTES
    return next(i for i in range(length) if a[i] != b[i]) // _TOKEN_BYTES
