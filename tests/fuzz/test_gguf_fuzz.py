"""Mutated GGUF files: each is read or refused, never anything else, and memory stays bounded."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.dtypes import HostTensor, QuantFormat
from octavo.errors import CorruptWeights, ModelError
from octavo.weights.facts import describe
from octavo.weights.quant import dequantize
from octavo.weights.source import open_weights
from octavo.weights.writer import write_gguf

EXTREMES = (
    0,
    1,
    5,
    0x7FFFFFFF,
    0xFFFFFFFF,
    1 << 32,
    1 << 60,
    1 << 63,
    (1 << 64) - 32,
    (1 << 64) - 1,
)
NUM_FLIPS = 2000
MAX_BYTES = 8 << 20


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small file with every kind of value and tensors of several formats."""
    path = tmp_path_factory.mktemp("fuzz") / "valid.gguf"
    metadata: dict[str, object] = {
        "general.architecture": "llama",
        "general.alignment": 32,
        "llama.block_count": 2,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.tokens": [f"token {n}" for n in range(20)],
        "tokenizer.ggml.scores": np.arange(20, dtype=np.float32),
        "tokenizer.ggml.token_type": np.ones(20, np.int32),
        "my.flags": np.array([True, False, True]),
        "my.rows": [["a", "b"], ["c"]],
        "my.double": np.float64(0.5),
        "split.count": np.uint16(1),
    }
    kinds = (QuantFormat.F32, QuantFormat.Q4_0, QuantFormat.Q6_K, QuantFormat.Q4_K)
    tensors = [
        HostTensor(f"blk.{i}", (2, 256), kind, memoryview(bytes(kind.num_bytes(512))))
        for i, kind in enumerate(kinds)
    ]
    write_gguf(path, metadata, tensors)
    return path.read_bytes()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "mutant.gguf"


@pytest.fixture
def bounded() -> Iterator[None]:
    """Fails if Python or numpy ever held much more than the files under test."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MAX_BYTES


def header_size(content: bytes) -> int:
    """Where the tensor data begins: mutations behind it change weights only."""
    return content.index(b"blk.3") + 100


def is_read(file: Path, content: bytes) -> bool:
    """Read everything in the file; False if it is refused. Any other error fails the test."""
    file.write_bytes(content)
    refusal: ModelError | None = None
    try:
        with open_weights(file) as source:
            describe(source).to_dict()
            for name, info in source.tensors.items():
                assert info.offset + info.num_bytes <= len(content)
                assert dequantize(source.tensor(name)).size == info.num_elements
    except ModelError as error:
        refusal = error
    if isinstance(refusal, CorruptWeights):
        assert refusal.field
    return refusal is None


def test_the_untouched_file_is_read(file: Path, valid: bytes) -> None:
    assert is_read(file, valid)


@pytest.mark.usefixtures("bounded")
def test_a_file_cut_anywhere_is_refused(file: Path, valid: bytes) -> None:
    sizes = [*range(header_size(valid)), *range(header_size(valid), len(valid) - 32, 41)]
    assert not any(is_read(file, valid[:size]) for size in sizes)


@pytest.mark.usefixtures("bounded")
def test_flipped_bytes_are_read_or_refused(file: Path, valid: bytes) -> None:
    rng = random.Random(20240)
    num_read = 0
    for _ in range(NUM_FLIPS):
        content = bytearray(valid)
        for _ in range(rng.choice((1, 1, 2, 4))):
            content[rng.randrange(header_size(valid))] = rng.randrange(256)
        num_read += is_read(file, bytes(content))
    assert 0 < num_read < NUM_FLIPS


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("code", ["<I", "<Q"])
def test_extreme_numbers_anywhere_are_read_or_refused(file: Path, valid: bytes, code: str) -> None:
    rng = random.Random(code)
    size = struct.calcsize(code)
    for offset in range(header_size(valid) - size):
        content = bytearray(valid)
        number = rng.choice(EXTREMES) % (1 << (8 * size))
        struct.pack_into(code, content, offset, number)
        is_read(file, bytes(content))


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_cut_copied_and_inserted_pieces_are_read_or_refused(
    file: Path, valid: bytes, data: st.DataObject
) -> None:
    end = header_size(valid)
    place = data.draw(st.integers(4, end))
    removed = data.draw(st.integers(0, 64))
    start = data.draw(st.integers(0, end))
    piece = valid[start : start + data.draw(st.integers(0, 64))]
    inserted = data.draw(st.binary(max_size=24) | st.just(piece))
    is_read(file, valid[:place] + inserted + valid[place + removed :])


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(tail=st.binary(max_size=200), version=st.sampled_from([2, 3]))
def test_random_bytes_after_the_version_are_read_or_refused(
    file: Path, tail: bytes, version: int
) -> None:
    is_read(file, b"GGUF" + struct.pack("<I", version) + tail)
