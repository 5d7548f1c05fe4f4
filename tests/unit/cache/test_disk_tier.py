"""The tier's threads: what they do when the disk does not play along, and what they never do."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from octavo.cache.block_files import BlockFiles, Bytes, Link
from octavo.cache.disk_space import pin, scan
from octavo.cache.disk_tier import DiskTier, Fetch
from octavo.cache.radix_tree import key_of

BLOCK_BYTES = 200


class Memory:
    """Blocks that know their own id, until they are overwritten."""

    def __init__(self) -> None:
        self.blocks = {i: np.full(BLOCK_BYTES, i, np.uint8) for i in range(40)}

    def read_block(self, block_id: int) -> Bytes:
        return self.blocks[block_id].copy()

    def write_block(self, block_id: int, data: Bytes) -> None:
        self.blocks[block_id] = data.copy()


class FullDisk(BlockFiles):
    """A disk with room for a few blocks."""

    num_left = 2

    def write(self, link: Link, block: Bytes, used_ns: int) -> None:
        if self.num_left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.num_left -= 1
        super().write(link, block, used_ns)


def keys(*seeds: int) -> list[bytes]:
    return [key_of([seed] * 16) for seed in seeds]


@contextmanager
def tier_of(
    directory: Path, max_bytes: int = 2**20, kind: type[BlockFiles] = BlockFiles
) -> Iterator[tuple[DiskTier, Memory]]:
    memory = Memory()
    tier = DiskTier(kind(directory, {"model": "m"}, BLOCK_BYTES), max_bytes, memory)
    try:
        yield tier, memory
    finally:
        tier.close()


def fetched(tier: DiskTier, prefix: list[bytes], block_ids: list[int]) -> int:
    """Blocks that were loaded."""
    fetch: Fetch = tier.fetch(tier.find(None, prefix, 0), block_ids, tier.clock() + 10)
    while True:
        tier.wait(10)
        if fetch in tier.finished():
            return fetch.num_loaded


def test_what_is_offered_comes_back_to_other_blocks(tmp_path: Path) -> None:
    with tier_of(tmp_path) as (tier, _):
        tier.offer(None, keys(1, 2, 3), [7, 8, 9])
        assert tier.drain(10)
        assert len(tier.find(None, keys(1, 2, 4), 0)) == 2
        assert [link.at for link in tier.find(None, keys(1, 2, 3), 1)] == [1, 2]
        assert tier.find("salt", keys(1, 2, 3), 0) == []
    with tier_of(tmp_path) as (tier, memory):
        assert fetched(tier, keys(1, 2, 3), [20, 21, 22]) == 3
        assert [int(memory.blocks[i][0]) for i in (20, 21, 22)] == [7, 8, 9]


def test_a_block_that_is_given_up_is_stored_as_it_was(tmp_path: Path) -> None:
    with tier_of(tmp_path) as (tier, memory):
        for round_ in range(50):
            tier.offer(None, keys(round_, 1, 2), [3, 4, 5])
            for block_id in (3, 4, 5):
                tier.give_up(block_id)
                memory.blocks[block_id] = np.full(BLOCK_BYTES, 255, np.uint8)
            assert tier.drain(10)
            for block_id in (3, 4, 5):
                memory.blocks[block_id] = np.full(BLOCK_BYTES, block_id, np.uint8)
            assert fetched(tier, keys(round_, 1, 2), [20, 21, 22]) == 3
            assert [int(memory.blocks[i][0]) for i in (20, 21, 22)] == [3, 4, 5]


def test_a_full_disk_is_told_of_once_and_read_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with tier_of(tmp_path, kind=FullDisk) as (tier, _):
        for seed in range(4):
            tier.offer(None, keys(seed, 1, 2), [1, 2, 3])
            assert tier.drain(10)
        assert (tier.num_stored, fetched(tier, keys(0, 1), [20, 21])) == (2, 2)
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "No space left" in caplog.text
    assert not list(tmp_path.glob("*/*/*.tmp"))


def test_a_directory_full_of_pinned_blocks_takes_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    size = 128 + BLOCK_BYTES + 16
    with tier_of(tmp_path, 3 * size) as (tier, _):
        tier.offer(None, keys(1, 2, 3), [1, 2, 3])
        assert tier.drain(10)
        for file in scan(tmp_path):
            pin(file.path)
        tier.offer(None, keys(9), [4])
        assert tier.drain(10)
        assert tier.find(None, keys(9), 0) == []
        assert len(tier.find(None, keys(1, 2, 3), 0)) == 3
    assert not caplog.records


def test_a_smaller_quota_holds_from_the_start(tmp_path: Path) -> None:
    size = 128 + BLOCK_BYTES + 16
    with tier_of(tmp_path) as (tier, _):
        tier.offer(None, keys(*range(10)), list(range(10)))
        assert tier.drain(10)
    with tier_of(tmp_path, 4 * size) as (tier, _):
        assert len(tier.find(None, keys(*range(10)), 0)) == 4, "its beginning stays"
        assert len(scan(tmp_path)) == 4


def test_nothing_is_taken_after_the_end(tmp_path: Path) -> None:
    with tier_of(tmp_path) as (tier, _):
        pass
    tier.offer(None, keys(1), [1])
    tier.give_up_all()
    assert tier.find(None, keys(1), 0) == []
    assert tier.drain(0)
    assert not scan(tmp_path)
