"""Dequantisation of every format, against stored values and against gguf-py where it is installed."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from octavo.dtypes import HostTensor, QuantFormat
from octavo.weights.quant import dequantize, dequantize_rows
from octavo.weights.source import open_weights

ALL = list(QuantFormat)
# Byte offsets of the float16 scales in a block (the minimum's last).
SCALES: dict[QuantFormat, tuple[int, ...]] = {
    QuantFormat.Q4_0: (0,),
    QuantFormat.Q4_1: (0, 2),
    QuantFormat.Q5_0: (0,),
    QuantFormat.Q5_1: (0, 2),
    QuantFormat.Q8_0: (0,),
    QuantFormat.Q2_K: (80, 82),
    QuantFormat.Q3_K: (108,),
    QuantFormat.Q4_K: (0, 2),
    QuantFormat.Q5_K: (0, 2),
    QuantFormat.Q6_K: (208,),
    QuantFormat.IQ4_NL: (0,),
    QuantFormat.IQ4_XS: (0,),
}
# Of `pattern`: first two and last number, and the start of the SHA-256 of all. Source: gguf-py 0.19.
GOLDEN: dict[QuantFormat, tuple[list[float], str]] = {
    QuantFormat.F32: (
        [-5.392823132091129e-19, -0.022769033908843994, -5.696403508194761e-16],
        "5eb8c09fd4a0b384",
    ),
    QuantFormat.F16: (
        [0.054840087890625, -9.34600830078125e-05, 0.126220703125],
        "02bba4a7d7971d92",
    ),
    QuantFormat.Q4_0: (
        [0.086090087890625, -0.086090087890625, -0.07379150390625],
        "e4d5ebf4c98caa3b",
    ),
    QuantFormat.Q4_1: (
        [-0.737701416015625, -0.565521240234375, -1.30322265625],
        "c36c242b2e70d40a",
    ),
    QuantFormat.Q5_0: (
        [0.135284423828125, 0.061492919921875, 0.36895751953125],
        "7a534e32c90e93e2",
    ),
    QuantFormat.Q5_1: (
        [-0.393341064453125, -0.713104248046875, -0.8604736328125],
        "2447d03ac74c41d4",
    ),
    QuantFormat.Q8_0: (
        [1.168365478515625, -1.168365478515625, 0.9346923828125],
        "a9756b82fdae73e0",
    ),
    QuantFormat.Q2_K: ([0.061492919921875, 0.184478759765625, 7.8935546875], "84288813ee8bd480"),
    QuantFormat.Q3_K: (
        [-0.135284423828125, -0.405853271484375, 0.0491943359375],
        "8dc5279d2a02b98c",
    ),
    QuantFormat.Q4_K: (
        [48.763153076171875, 52.378936767578125, 20.29052734375],
        "7f0971f674bf4d58",
    ),
    QuantFormat.Q5_K: (
        [58.405242919921875, 62.021026611328125, 22.25830078125],
        "8953fdc18aea3fc5",
    ),
    QuantFormat.Q6_K: ([-9.334625244140625, 22.912261962890625, -11.806640625], "8a591f8fa8858ef1"),
    QuantFormat.IQ4_NL: (
        [1.389739990234375, -1.279052734375, -0.86090087890625],
        "27333ff931958040",
    ),
    QuantFormat.IQ4_XS: (
        [14.426239013671875, -13.589935302734375, -63.95263671875],
        "3b24dc36fb48def2",
    ),
    QuantFormat.BF16: (
        [4.725109192804666e-13, -3.009265538105056e-35, 5.020410753786564e-10],
        "c9c52e24adc01b54",
    ),
}


def pattern(kind: QuantFormat) -> bytes:
    """Two blocks (32 numbers of a format without blocks) of fixed codes with scales 0.0123 and minimums -0.75."""
    content = bytearray()
    for number in range(2 if kind.block_len > 1 else 32):
        block = bytearray(
            (i * i * 7 + i * 31 + 5 + number * 91) % 256 for i in range(kind.block_bytes)
        )
        for value, offset in zip((0.0123, -0.75), SCALES.get(kind, ()), strict=False):
            struct.pack_into("<e", block, offset, value * (number + 1))
        content += block
    return bytes(content) if kind.block_len > 1 else bytes(byte & 0xBF for byte in content)


def host(kind: QuantFormat, shape: tuple[int, ...], content: bytes) -> HostTensor:
    return HostTensor("w", shape, kind, memoryview(content))


def random_tensor(kind: QuantFormat, shape: tuple[int, ...], seed: int) -> HostTensor:
    """Random bytes with finite scales of either sign, zeros among them."""
    rng = np.random.default_rng(seed)
    num_blocks = int(np.prod(shape)) // kind.block_len
    if kind.block_len == 1:
        numbers = rng.standard_normal(shape, dtype=np.float32)
        content = {
            QuantFormat.F32: numbers.tobytes(),
            QuantFormat.F16: numbers.astype(np.float16).tobytes(),
            QuantFormat.BF16: (numbers.view(np.uint32) >> 16).astype(np.uint16).tobytes(),
        }[kind]
        return host(kind, shape, content)
    blocks = rng.integers(0, 256, (num_blocks, kind.block_bytes), dtype=np.uint8)
    for offset in SCALES[kind]:
        scales = rng.standard_normal(num_blocks).astype("<f2")
        scales[rng.random(num_blocks) < 0.05] = 0
        blocks[:, offset : offset + 2] = scales.view(np.uint8).reshape(-1, 2)
    return host(kind, shape, blocks.tobytes())


def bits(numbers: np.ndarray) -> np.ndarray:
    return numbers.view(np.uint32)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_numbers_equal_the_stored_ones_bit_for_bit(kind: QuantFormat) -> None:
    numbers = dequantize(host(kind, (2, max(kind.block_len, 16)), pattern(kind)))
    few, digest = GOLDEN[kind]
    assert numbers.dtype == np.float32
    assert numbers.ravel()[[0, 1, -1]].tolist() == few
    assert hashlib.sha256(numbers.astype("<f4").tobytes()).hexdigest().startswith(digest)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_random_blocks_equal_gguf_py_bit_for_bit(kind: QuantFormat) -> None:
    gguf = pytest.importorskip("gguf")
    tensor = random_tensor(kind, (300, 1024), seed=kind.type_id)  # more than one slab
    raw = np.frombuffer(tensor.data, np.uint8).reshape(300, -1)
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(kind.type_id))
    assert np.isfinite(expected).all()
    assert (bits(dequantize(tensor)) == bits(expected)).all()


def real_tensors(path: Path) -> Iterator[HostTensor]:
    """The first two tensors of each format, cut to 64 rows."""
    num_seen: dict[QuantFormat, int] = {}
    with open_weights(path) as source:
        for name, info in source.tensors.items():
            num_seen[info.format] = num_seen.get(info.format, 0) + 1
            if num_seen[info.format] <= 2:
                full = source.tensor(name)
                rows = min(64, info.shape[0]) if len(info.shape) > 1 else 1
                shape = (rows, info.shape[-1])
                size = info.format.num_bytes(rows * info.shape[-1])
                yield HostTensor(name, shape, info.format, full.data[:size])


@pytest.mark.parametrize("model", ["smollm2_path", "gemma3_path"])
def test_real_weights_equal_gguf_py_bit_for_bit(model: str, request: pytest.FixtureRequest) -> None:
    gguf = pytest.importorskip("gguf")
    for tensor in real_tensors(request.getfixturevalue(model)):
        raw = np.frombuffer(tensor.data, np.uint8).reshape(tensor.shape[0], -1)
        expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(tensor.format.type_id))
        assert (bits(dequantize(tensor)) == bits(expected)).all(), tensor.name


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_rows_are_the_same_as_in_the_whole(kind: QuantFormat) -> None:
    tensor = random_tensor(kind, (3, 5, 512), seed=1)
    whole = dequantize(tensor)
    assert whole.shape == (3, 5, 512)
    assert (bits(dequantize_rows(tensor, 4, 11)) == bits(whole.reshape(15, 512)[4:11])).all()
    assert dequantize_rows(tensor, 7, 7).shape == (0, 512)


def test_a_result_owns_its_memory() -> None:
    content = bytearray(np.ones(8, "<f4").tobytes())
    numbers = dequantize(HostTensor("w", (8,), QuantFormat.F32, memoryview(content)))
    content[:] = bytes(32)
    assert numbers.tolist() == [1.0] * 8


def test_a_scale_that_is_not_finite_gives_such_weights_without_warning() -> None:
    block = struct.pack("<e", float("inf")) + bytes([0x88] * 16)
    assert np.isnan(dequantize(host(QuantFormat.Q4_0, (32,), block))).all()


@pytest.mark.parametrize(
    ("start", "stop", "num_bytes", "message"),
    [
        (0, 2, 33, "33 bytes, 36 expected"),
        (1, 3, 36, "rows 1 to 3 of 2"),
        (2, 1, 36, "rows 2 to 1"),
    ],
)
def test_wrong_sizes_and_rows_are_refused(
    start: int, stop: int, num_bytes: int, message: str
) -> None:
    tensor = host(QuantFormat.Q4_0, (2, 32), bytes(num_bytes))
    with pytest.raises(ValueError, match=message):
        dequantize_rows(tensor, start, stop)
