"""The container of a build: what was written is read back, and nothing from a file that is not whole."""

from __future__ import annotations

import errno
import io
import os
import time
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

from octavo.dtypes import HostTensor, QuantFormat
from octavo.errors import StoreError, UnusableBuild
from octavo.weights.build_file import (
    BLOCK_BYTES,
    DATA_OFFSET,
    PREFIX,
    BuildFile,
    BuildPart,
    Directory,
    Prefix,
)
from octavo.weights.build_writer import BuildWriter, replacing

SIZES = (100, 64, 17 * BLOCK_BYTES + 4, 0, 8)
PART = BuildPart("model.gguf", 1000, 5, "ab" * 32)


def sums_of(data: np.ndarray) -> np.ndarray:
    """Stands for the native checksum: the sum of each block's bytes."""
    return np.array([data[i : i + BLOCK_BYTES].sum() for i in range(0, len(data), BLOCK_BYTES)], np.uint64)  # fmt: skip


def held(index: int) -> np.ndarray:
    return np.random.default_rng(index).integers(0, 256, SIZES[index], dtype=np.uint8)


def write(path: Path, layout: int = 7, sizes: tuple[int, ...] = SIZES) -> Path:
    with replacing(path) as file:
        writer = BuildWriter(file, sums_of)
        for i in range(len(sizes)):
            tensor = HostTensor(f"t{i}", (2, 3), QuantFormat.Q4_K, memoryview(b""))
            writer.add(tensor, QuantFormat.Q8_0, held(i))
        writer.finish(layout, Directory("1.0", "m", "fp", (PART,), tuple(writer.tensors)))
    return path


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A build of two tensors in 192 bytes of data."""
    return write(tmp_path / "small.octavo", sizes=SIZES[:2])


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    path = write(tmp_path / "a.octavo")
    with BuildFile(path) as build:
        assert build.prefix.packed_layout == 7
        assert build.prefix.file_bytes == path.stat().st_size
        directory = build.directory
        assert (directory.octavo, directory.model, directory.fingerprint) == ("1.0", "m", "fp")
        assert directory.parts == (PART,)
        assert [t.name for t in directory.tensors] == [f"t{i}" for i in range(len(SIZES))]
        for i, tensor in enumerate(directory.tensors):
            assert (tensor.source_format, tensor.format, tensor.shape) == (12, 8, (2, 3))
            assert tensor.offset % 64 == 0
            assert build.read_data(tensor.offset, tensor.num_bytes) == held(i).tobytes()
        data = np.frombuffer(build.read_data(0, build.prefix.data_bytes), np.uint8)
        assert (sums_of(data) == build.checksums).all()
    assert os.listdir(tmp_path) == ["a.octavo"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_file_cut_anywhere_is_refused(small: Path) -> None:
    whole = small.read_bytes()
    cuts = {*range(0, 200, 7), *range(4000, len(whole), 11), len(whole) - 1}
    for cut in sorted(cuts):
        small.write_bytes(whole[:cut])
        with pytest.raises(UnusableBuild):
            BuildFile(small)
    small.write_bytes(whole + b"\0")
    with pytest.raises(UnusableBuild, match="bytes"):
        BuildFile(small)


def test_a_byte_changed_anywhere_but_in_the_data_is_refused(small: Path) -> None:
    whole = small.read_bytes()
    data = range(DATA_OFFSET, DATA_OFFSET + 192)
    for at in [*range(80), *range(80, DATA_OFFSET, 61), *range(data.stop, len(whole))]:
        small.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(UnusableBuild):
            BuildFile(small)
    at = data.start
    small.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with BuildFile(small) as build:  # its checksum tells, when the data is read
        changed = np.frombuffer(build.read_data(0, 192), np.uint8)
        assert (sums_of(changed) != build.checksums).all()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a build"),
        (b"GGUF" + bytes(5000), "not a build"),
        (b"OCTBUILD", "truncated"),
        (PREFIX.pack(b"OCTBUILD", 2, 1, 0, 0, bytes(32)).ljust(4096, b"\0"), "format version 2"),
        (bytes(5000), "not a build"),
    ],
)
def test_what_is_no_build_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(UnusableBuild, match=message):
        BuildFile(path)


@pytest.mark.parametrize("data_bytes", [64, 2**40, 2**63, 33])
def test_sizes_that_contradict_each_other_are_refused(small: Path, data_bytes: int) -> None:
    whole = small.read_bytes()
    page = Prefix(7, len(whole), data_bytes, bytes(32)).encode()
    small.write_bytes(page + whole[DATA_OFFSET:])
    with pytest.raises(UnusableBuild):
        BuildFile(small)


def test_a_missing_file_and_a_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        BuildFile(tmp_path / "none")
    with pytest.raises(UnusableBuild, match="cannot be read"):
        BuildFile(tmp_path)


class FullDisk(io.FileIO):
    """Takes so many bytes and no more."""

    def __init__(self, path: Path, room: int) -> None:
        super().__init__(path, "wb")
        self.room = room

    def write(self, data: object) -> int:
        self.room -= memoryview(data).nbytes  # type: ignore[arg-type]
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)  # type: ignore[arg-type]


@pytest.mark.parametrize("room", [0, DATA_OFFSET, 5000])
def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path, room: int) -> None:
    path = tmp_path / "sub" / "a.octavo"

    def open_file(partial: Path) -> BinaryIO:
        return FullDisk(partial, room)  # type: ignore[return-value]

    def fill() -> None:
        with replacing(path, open_file=open_file) as file:
            writer = BuildWriter(file, sums_of)
            tensor = HostTensor("t", (1,), QuantFormat.F32, memoryview(b""))
            writer.add(tensor, QuantFormat.F32, held(2))
            writer.finish(1, Directory("1.0", "m", "fp", (PART,), tuple(writer.tensors)))

    with pytest.raises(StoreError, match=r"a\.octavo: No space left.*--output"):
        fill()
    assert os.listdir(path.parent) == []


def test_an_error_keeps_the_old_file_and_the_last_writer_wins(small: Path) -> None:
    old = small.read_bytes()

    def fail() -> None:
        with replacing(small) as file:
            file.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert small.read_bytes() == old
    with BuildFile(small) as build, replacing(small) as one, replacing(small) as two:
        one.write(b"one")
        two.write(b"two")
        assert build.read_data(0, 100) == held(0).tobytes()
    assert small.read_bytes() == b"one"
    assert os.listdir(small.parent) == [small.name]


def test_leavings_of_a_dead_writer_go_after_a_day(small: Path) -> None:
    old, new, other = (small.parent / name for name in ("small.octavo.partial-old", "small.octavo.partial-new", "x.partial-y"))  # fmt: skip
    for path in (old, new, other):
        path.write_bytes(b"half")
    for path in (old, other):
        os.utime(path, (0, time.time() - 2 * 24 * 3600))
    write(small)
    assert sorted(os.listdir(small.parent)) == ["small.octavo", new.name, other.name]
