"""A stored block is what was written, or nothing."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.cache.block_files import BlockFiles, Bytes, Link, chain, read_header
from octavo.cache.disk_space import make_room, pin, scan, unpin
from octavo.cache.radix_tree import key_of

BLOCK_BYTES = 300
FACTS = {"model": "m", "kv_dtype": "F16"}


def opened(directory: Path, **facts: str) -> BlockFiles:
    return BlockFiles(directory, FACTS | facts, BLOCK_BYTES, "a model")


def links_of(files: BlockFiles, num_blocks: int = 3, salt: str | None = None) -> list[Link]:
    keys = [key_of(range(16 * i, 16 * i + 16)) for i in range(num_blocks)]
    return list(chain(files.namespace, salt, keys))


def block_of(seed: int) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, BLOCK_BYTES).astype(np.uint8)


def stored(directory: Path, num_blocks: int = 3) -> tuple[BlockFiles, list[Link]]:
    files = opened(directory)
    links = links_of(files, num_blocks)
    for i, link in enumerate(links):
        files.write(link, block_of(i), time.time_ns())
    return files, links


def test_what_is_written_is_read_back_by_another_process_like_this(tmp_path: Path) -> None:
    _, links = stored(tmp_path)
    again = opened(tmp_path)
    assert again.names() == {link.digest for link in links}
    for i, link in enumerate(links):
        assert again.read(link) is not None
        np.testing.assert_array_equal(again.read(link), block_of(i))
        assert again.touch(link, 1)
        header = read_header(again.path(link.digest))
        assert header is not None
        assert (header.link, header.namespace) == (link, again.namespace)
    [other] = list(chain(again.namespace, None, [key_of([9] * 16)]))
    assert again.read(other) is None
    assert not again.touch(other, 1)


def test_a_digest_stands_for_all_before_it() -> None:
    a, b, c = (key_of([i] * 16) for i in range(3))
    one, two = b"1" * 16, b"2" * 16

    def last(namespace: bytes, salt: str | None, *keys: bytes) -> bytes:
        return list(chain(namespace, salt, keys))[-1].digest

    digests = {
        last(one, None, a, c),
        last(one, None, b, c),
        last(one, "", a, c),
        last(one, "x", a, c),
        last(two, None, a, c),
        last(one, None, c),
        last(one, None, a, a, c),
    }
    assert len(digests) == 7
    assert last(one, None, a, c) == last(one, None, a, c)


def test_each_fact_makes_a_namespace_of_its_own(tmp_path: Path) -> None:
    files, _ = stored(tmp_path)
    other = opened(tmp_path, kv_dtype="INT8")
    assert other.namespace != files.namespace
    assert other.names() == set()
    assert all(other.read(link) is None for link in links_of(other))


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_damage_makes_a_block_nothing(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    directory = tmp_path_factory.getbasetemp() / "damage"
    files, links = stored(directory)
    link = links[1]
    path = files.path(link.digest)
    sound = path.read_bytes()
    damage = data.draw(st.sampled_from(["flip", "cut", "longer", "zeros", "moved", "other"]))
    if damage == "flip":
        broken = bytearray(sound)
        for at in data.draw(st.sets(st.integers(0, len(sound) - 1), min_size=1, max_size=4)):
            broken[at] ^= data.draw(st.integers(1, 255))
        path.write_bytes(broken)
    elif damage == "cut":
        path.write_bytes(sound[: data.draw(st.integers(0, len(sound) - 1))])
    elif damage == "longer":
        path.write_bytes(sound + data.draw(st.binary(min_size=1, max_size=50)))
    elif damage == "zeros":
        num_kept = data.draw(st.integers(0, len(sound) - 1))
        broken = sound[:num_kept] + bytes(len(sound) - num_kept)
        path.write_bytes(broken)
        if broken == sound:  # pragma: no cover - the checksum ends with a zero byte
            return
    elif damage == "moved":
        path.write_bytes(files.path(links[data.draw(st.sampled_from([0, 2]))].digest).read_bytes())
    else:
        path.write_bytes(data.draw(st.binary(max_size=2 * len(sound))))
    assert files.read(link) is None
    files.write(link, block_of(1), 1)
    np.testing.assert_array_equal(files.read(link), block_of(1))


def test_what_is_no_file_is_nothing(tmp_path: Path) -> None:
    files, links = stored(tmp_path)
    folder, pipe = files.path(links[0].digest), files.path(links[1].digest)
    folder.unlink()
    folder.mkdir()
    pipe.unlink()
    os.mkfifo(pipe)
    assert files.read(links[0]) is None
    assert files.read(links[1]) is None
    assert len(make_room(tmp_path, 0)) == 0
    files.write(links[1], block_of(1), 1)
    assert files.read(links[1]) is not None


def test_files_of_others_are_neither_found_nor_deleted(tmp_path: Path) -> None:
    files, links = stored(tmp_path)
    shard = files.path(links[0].digest).parent
    foreign = [tmp_path / "notes.txt", shard / "x.kv", shard.parent / "README", shard / "k.kv.tmp"]
    for path in foreign:
        path.write_text("mine")
    assert files.names() == {link.digest for link in links}
    assert make_room(tmp_path, 0) == []
    assert all(path.exists() for path in foreign)
    assert files.names() == set()


def test_a_write_that_was_cut_short_is_never_found_and_goes_away(tmp_path: Path) -> None:
    files, links = stored(tmp_path)
    half = files.path(links[0].digest)
    temporary = half.with_name(f"{half.stem}.0123.tmp")
    half.rename(temporary)
    assert files.names() == {link.digest for link in links[1:]}
    assert files.read(links[0]) is None
    assert len(make_room(tmp_path, 10**9)) == 3, "it may be under way"
    before = time.time() - 61
    os.utime(temporary, (before, before))
    assert len(make_room(tmp_path, 10**9)) == 2
    assert not temporary.exists()


def test_the_longest_unused_go_first_the_end_of_a_prefix_before_its_beginning(
    tmp_path: Path,
) -> None:
    files, links = stored(tmp_path, 6)
    size = files.file_bytes
    for link in links:
        files.touch(link, 2 * 10**9 if link.at < 3 else 10**9)
    make_room(tmp_path, 4 * size)
    assert files.names() == {link.digest for link in links[:4]}
    make_room(tmp_path, 2 * size)
    assert files.names() == {link.digest for link in links[:2]}


def test_what_is_pinned_stays(tmp_path: Path) -> None:
    files, links = stored(tmp_path)
    path = files.path(links[0].digest)
    pin(path)
    assert [file.path for file in make_room(tmp_path, 0)] == [path]
    unpin(path)
    assert make_room(tmp_path, 0) == []
    assert not path.with_suffix(".pin").exists()


def test_nobody_else_may_read_prompts(tmp_path: Path) -> None:
    directory = tmp_path / "kv"
    files, links = stored(directory)
    path = files.path(links[0].digest)
    for folder in (directory, path.parent, path.parent.parent):
        assert folder.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600


def test_writers_readers_and_evictions_at_once_never_show_half_a_block(tmp_path: Path) -> None:
    stop = threading.Event()
    faults: list[object] = []
    files = opened(tmp_path)
    links = links_of(files, 8)

    def write(seed: int) -> None:
        own = opened(tmp_path)
        rng = np.random.default_rng(seed)
        while not stop.is_set():
            at = int(rng.integers(len(links)))
            own.write(links[at], block_of(at), time.time_ns())

    def read() -> None:
        own = opened(tmp_path)
        while not stop.is_set():
            for at, link in enumerate(links):
                block = own.read(link)
                if block is not None and not np.array_equal(block, block_of(at)):
                    faults.append(at)

    def evict() -> None:
        while not stop.is_set():
            make_room(tmp_path, 5 * files.file_bytes)

    def watched(work: object) -> None:
        try:
            work()  # type: ignore[operator]
        except Exception as error:
            faults.append(error)
            stop.set()

    work = [lambda: write(1), lambda: write(2), read, evict]
    threads = [threading.Thread(target=watched, args=(each,)) for each in work]
    for thread in threads:
        thread.start()
    stop.wait(1.0)
    stop.set()
    for thread in threads:
        thread.join()
    assert not faults
    assert all(file.num_bytes == files.file_bytes for file in scan(tmp_path) if file.is_block)
