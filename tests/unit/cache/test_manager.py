"""Blocks are handed out once, counted right, and come back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.cache.block_pool import BlockPool
from octavo.cache.manager import NO_MATCH, BlockTable, CacheManager, blocks_for


def never(block_id: int) -> None:
    raise AssertionError(f"block {block_id} was not kept and cannot be evicted")


def opened(cache: CacheManager) -> BlockTable:
    start = cache.start(NO_MATCH)
    assert start is not None
    return start.table


def started(cache: CacheManager, num_tokens: int) -> BlockTable:
    table = opened(cache)
    assert cache.allocate(table, num_tokens)
    cache.commit(table, num_tokens)
    return table


def test_the_end_of_a_freed_sequence_is_given_out_before_its_beginning() -> None:
    pool = BlockPool(4, never)
    first = pool.allocate(4)
    assert first == [0, 1, 2, 3]
    pool.free(first)
    assert pool.allocate(4) == [3, 2, 1, 0]


def test_allocation_takes_all_or_nothing() -> None:
    pool = BlockPool(3, never)
    assert pool.allocate(4) is None
    assert pool.num_free == 3
    cache = CacheManager(3)
    table = started(cache, 17)
    assert not cache.allocate(table, 49)
    assert (table.num_blocks, cache.num_free) == (2, 1)


def test_shared_block_is_free_only_after_its_last_holder() -> None:
    pool = BlockPool(2, never)
    blocks = pool.allocate(1)
    assert blocks is not None
    pool.share(blocks)
    pool.free(blocks)
    assert pool.num_free == 1
    pool.free(blocks)
    assert pool.num_free == 2
    with pytest.raises(AssertionError, match="more often"):
        pool.free(blocks)
    with pytest.raises(AssertionError, match="cannot be shared"):
        pool.share(blocks)


@pytest.mark.parametrize(
    ("num_tokens", "num_shared", "num_copied"), [(0, 0, 0), (5, 0, 1), (16, 1, 0), (40, 2, 1)]
)
def test_fork_shares_full_blocks_and_copies_the_partial_one(
    num_tokens, num_shared, num_copied
) -> None:
    cache = CacheManager(8)
    source = started(cache, 48)
    fork = cache.fork(source, num_tokens)
    assert fork is not None
    ids = fork.table.block_ids.tolist()
    assert ids[:num_shared] == source.block_ids.tolist()[:num_shared]
    assert [s for s, _ in fork.copies] == source.block_ids.tolist()[
        num_shared : num_shared + num_copied
    ]
    assert [d for _, d in fork.copies] == ids[num_shared:]
    cache.check_invariants()
    cache.free(source)
    cache.check_invariants()
    cache.free(fork.table)
    cache.check_invariants()
    assert cache.num_free == 8


def test_fork_without_a_free_block_changes_nothing() -> None:
    cache = CacheManager(2)
    source = started(cache, 20)
    assert cache.fork(source, 20) is None
    cache.check_invariants()
    assert cache.fork(source, 16) is not None


def test_only_computed_tokens_can_be_forked() -> None:
    cache = CacheManager(4)
    table = opened(cache)
    assert cache.allocate(table, 32)
    with pytest.raises(AssertionError, match="computed"):
        cache.fork(table, 16)


def test_invariant_check_notices_a_leak() -> None:
    cache = CacheManager(4)
    table = started(cache, 32)
    table.clear()
    with pytest.raises(AssertionError, match="holders"):
        cache.check_invariants()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 100)), max_size=60))
def test_any_order_of_operations_keeps_the_invariants(operations) -> None:
    cache = CacheManager(12)
    tables: list[tuple[BlockTable, int]] = []
    for kind, number in operations:
        if kind == 0:
            tables.append((opened(cache), 0))
        elif tables:
            at = number % len(tables)
            table, size = tables[at]
            if kind == 1 and cache.allocate(table, size + number):
                tables[at] = (table, size + number)
                cache.commit(table, size + number)
                assert table.num_blocks == blocks_for(size + number)
            elif kind == 2:
                fork = cache.fork(table, size)
                if fork is not None:
                    tables.append((fork.table, size))
            elif kind == 3:
                cache.free(table)
                del tables[at]
        cache.check_invariants()
    for table, _ in tables:
        cache.free(table)
    cache.check_invariants()
    assert cache.num_free == 12
