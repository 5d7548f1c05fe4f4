"""Cases GGF-*, as far as the file reader answers them: each file is refused by name and number, or read right."""

from __future__ import annotations

import resource
import struct
import time
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from octavo.dtypes import HostTensor, QuantFormat
from octavo.errors import CorruptWeights, ModelError, ModelNotFound, UnsupportedArchitecture
from octavo.weights.facts import describe
from octavo.weights.quant import dequantize
from octavo.weights.source import WeightSource, open_weights
from octavo.weights.writer import write_gguf
from tests.gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    FLOAT32,
    INT32,
    Q4_0,
    STRING,
    UINT8,
    UINT64,
    array,
    entry,
    gguf,
    pair,
    string,
    text_pair,
)

HUGE = 1 << 62


def refuse(path: Path, content: bytes, error: type[ModelError] = CorruptWeights) -> str:
    """Open a file of this content and return the message of the refusal, which names the file."""
    path.write_bytes(content)
    with pytest.raises(error) as refusal:
        open_weights(path)
    message = str(refusal.value)
    assert str(path) in message
    return message


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"GGUX" + bytes(100), "b'GGUX'"),
        (b"", "empty"),
        (b"GGU", "3 bytes"),
        (b"<!DOCTYPE html>\n<html><head>", "web page"),
        (b"\n  <html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS pointer"),
        (b"PK\x03\x04" + bytes(60), "zip"),
        (struct.pack("<Q", 40) + b'{"a":{"dtype":"F32"', "safetensors"),
        (b'{"error":"unauthorized"}', "JSON"),
    ],
)
def test_ggf_01_a_file_without_the_magic_is_refused_with_a_hint(
    file: Path, content: bytes, expected: str
) -> None:
    message = refuse(file, content)
    assert expected in message
    if content:
        assert repr(content[:4]) in message


def test_ggf_01_a_directory_and_a_missing_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is a directory"):
        open_weights(tmp_path)
    with pytest.raises(ModelNotFound, match=r"nothing\.gguf: no such file"):
        open_weights(tmp_path / "nothing.gguf")


def cut_copy(model: Path, to: Path, size: int) -> None:
    """A copy of the first `size` bytes, sparse where tensors would be: the reader looks at the header only."""
    with model.open("rb") as source:
        to.write_bytes(source.read(min(size, 4 << 20)))
    with to.open("r+b") as target:
        target.truncate(size)


@pytest.mark.parametrize("missing", [None, 1, 1 << 20])
def test_ggf_02_a_truncated_model_is_refused_with_both_sizes(
    smollm2_path: Path, file: Path, missing: int | None
) -> None:
    full = smollm2_path.stat().st_size
    with open_weights(smollm2_path) as source:
        last = max(source.tensors.values(), key=lambda info: info.offset)
    assert last.offset + last.num_bytes == full
    cut_copy(smollm2_path, file, full - (missing or 0))
    if missing is None:
        open_weights(file).close()
        return
    with pytest.raises(CorruptWeights, match="truncated or incomplete") as refusal:
        open_weights(file)
    assert str(full - missing) in str(refusal.value)
    if missing == 1:
        assert str(full) in str(refusal.value)
        assert last.name in str(refusal.value)


@pytest.mark.parametrize("size", [24, 500, 100_000, 1_000_000, 1_770_000, 1_775_000])
def test_ggf_02_a_model_cut_within_its_header_is_refused(
    smollm2_path: Path, file: Path, size: int
) -> None:
    cut_copy(smollm2_path, file, size)
    with pytest.raises(CorruptWeights, match="truncated or incomplete"):
        open_weights(file)


@pytest.mark.parametrize(
    ("offset", "expected"),
    [((1 << 64) - 32, "end"), (64, "end"), (8, "alignment 32"), (1 << 63, "end")],
)
def test_ggf_03_an_offset_outside_the_file_or_off_the_alignment_is_refused(
    file: Path, offset: int, expected: str
) -> None:
    message = refuse(file, gguf([], [entry("stray", [16], F32, offset)], bytes(64)))
    assert "'stray'" in message
    assert expected in message


@pytest.mark.parametrize(("first", "second"), [(0, 0), (0, 32), (32, 0)])
def test_ggf_03_overlapping_tensors_are_refused(file: Path, first: int, second: int) -> None:
    entries = [entry("one", [16], F32, first), entry("two", [16], F32, second)]
    message = refuse(file, gguf([], entries, bytes(128)))
    assert "overlaps" in message
    assert "'one'" in message
    assert "'two'" in message


@pytest.mark.parametrize("num_dims", [0, 5, 1_000_000, 0xFFFFFFFF])
def test_ggf_04_more_than_four_dimensions_are_refused(file: Path, num_dims: int) -> None:
    content = gguf([], [entry("deep", [16] * 5, num_dims=num_dims)], bytes(64))
    message = refuse(file, content)
    assert f"{num_dims} dimensions, 1 to 4 allowed" in message


def nested(depth: int) -> bytes:
    """Pair whose array lies within `depth` - 1 others."""
    return pair("nested", ARRAY, array(ARRAY, 1) * (depth - 1) + array(UINT8, 1, b"\x07"))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (gguf(num_pairs=1 << 63), "key/value count"),
        (gguf(num_entries=1 << 60), "tensor count"),
        (gguf([struct.pack("<Q", HUGE) + b"key"]), "key 0"),
        (gguf([pair("word", STRING, struct.pack("<Q", 1 << 40))]), "'word'"),
        (gguf([pair("many", ARRAY, array(UINT64, 1 << 61))]), "'many'"),
        (gguf([pair("texts", ARRAY, array(STRING, 1 << 61))]), "'texts'"),
        (gguf([pair("arrays", ARRAY, array(ARRAY, 1 << 61))]), "'arrays'"),
        (gguf([nested(100_000)]), "nested deeper than 4"),
        (gguf([pair("odd", 99, b"")]), "value type 99"),
        (gguf([pair("odd", ARRAY, array(99, 1))]), "value type 99"),
        (gguf([pair("flag", BOOL, b"\x07")]), "bool of value 7"),
        (gguf([pair("flags", ARRAY, array(BOOL, 3, b"\x00\x01\x07"))]), "bool of value 7"),
        (gguf([text_pair("same", "a"), text_pair("same", "b")]), "'same'"),
        (gguf([], [entry("same", [8]), entry("same", [8], F32, 32)], bytes(64)), "'same'"),
        (gguf([pair("", UINT8, b"\x00")]), "length 0"),
        (gguf([string(b"\xff\xfe") + struct.pack("<IB", UINT8, 0)]), "not UTF-8"),
        (gguf([], [entry("t", [1 << 40, 1 << 40])], bytes(64)), "'t'"),
        (gguf([], [entry("t", [0])], bytes(64)), "is 0"),
        (gguf([], [entry("t", [33], Q4_0)], bytes(64)), "whole blocks of 32"),
        (gguf([pair("general.alignment", INT32, struct.pack("<i", 0))]), "alignment 0"),
        (gguf([pair("general.alignment", INT32, struct.pack("<i", -32))]), "alignment -32"),
        (gguf([text_pair("general.alignment", "x")]), "alignment 'x'"),
    ],
)
def test_ggf_06_counts_and_lengths_of_the_header_are_not_believed(
    file: Path, content: bytes, expected: str
) -> None:
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    start = time.perf_counter()
    try:
        message = refuse(file, content)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert expected in message
    assert " at byte " in message
    assert time.perf_counter() - start < 1
    assert peak < 2_000_000 + 20 * len(content)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 100_000


@pytest.mark.parametrize(
    ("number", "error"), [(250, CorruptWeights), (4, CorruptWeights), (39, UnsupportedArchitecture)]
)
def test_ggf_08_an_unknown_tensor_type_is_refused_by_tensor_and_number(
    file: Path, number: int, error: type[ModelError]
) -> None:
    message = refuse(file, gguf([], [entry("blk.0.odd", [32], number)], bytes(64)), error)
    assert "'blk.0.odd'" in message
    assert f"type {number}" in message


def test_ggf_08_a_region_smaller_than_the_type_needs_is_refused(file: Path) -> None:
    entries = [entry("wide", [32, 4], F32, 0), entry("next", [8], F32, 96)]
    assert "'wide'" in refuse(file, gguf([], entries, bytes(1024)))


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (1, "version 1"),
        (4, "version 4"),
        (0x03000000, "big-endian file (GGUF version 3"),
        (0x02000000, "big-endian file (GGUF version 2"),
    ],
)
def test_ggf_10_another_version_or_byte_order_is_refused_with_what_is_supported(
    file: Path, version: int, expected: str
) -> None:
    message = refuse(file, gguf(version=version), UnsupportedArchitecture)
    assert expected in message
    assert "versions 2 and 3" in message


@pytest.mark.parametrize("version", [2, 3])
def test_ggf_10_both_supported_versions_open(file: Path, version: int) -> None:
    file.write_bytes(gguf([text_pair("general.architecture", "llama")], version=version))
    with open_weights(file) as source:
        assert source.metadata == {"general.architecture": "llama"}


def test_ggf_11_q4_1_takes_a_four_byte_header_and_low_nibbles_first() -> None:
    block = struct.pack("<ee", 0.5, -1.0) + bytes.fromhex("1032547698badcfe") + bytes(8)
    tensor = HostTensor("w", (1, 32), QuantFormat.Q4_1, memoryview(block))
    low = [-1, 0, 1, 2, 3, 4, 5, 6] + [-1] * 8
    high = [-0.5, 0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5] + [-1] * 8
    assert dequantize(tensor).tolist() == [low + high]


def types_of(source: WeightSource) -> set[str]:
    return {info.format.name for info in source.tensors.values()}


def test_ggf_13_smollm2_has_a_tied_head_and_the_expected_tensors(smollm2_path: Path) -> None:
    with open_weights(smollm2_path) as source:
        assert len(source.tensors) == 272
        assert "output.weight" not in source.tensors
        embedding = source.tensors["token_embd.weight"]
        assert (embedding.shape, embedding.format) == ((49152, 576), QuantFormat.Q8_0)
        assert source.tensor("token_embd.weight").data.nbytes == 49152 * 18 * 34


def test_ggf_13_gemma3_has_a_tied_head_and_mixed_types(gemma3_path: Path) -> None:
    with open_weights(gemma3_path) as source:
        assert len(source.tensors) == 236
        assert "output.weight" not in source.tensors
        embedding = source.tensors["token_embd.weight"]
        assert (embedding.shape, embedding.format) == ((262144, 640), QuantFormat.Q8_0)
        assert types_of(source) == {"F32", "Q5_0", "Q4_K", "Q6_K", "Q8_0"}
        norms = Counter(i.format for n, i in source.tensors.items() if n.endswith("norm.weight"))
        assert norms == {QuantFormat.F32: 109}


def small_model() -> tuple[dict[str, object], list[HostTensor]]:
    """A few keys and two tensors, the last one not a multiple of the alignment."""
    metadata: dict[str, object] = {
        "general.architecture": "llama",
        "general.name": "small",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": ["a", "b", "é"],
    }
    numbers = np.arange(45, dtype="<f4")
    return metadata, [
        HostTensor("one", (2, 5), QuantFormat.F32, memoryview(numbers[:10].tobytes())),
        HostTensor("two", (5, 7), QuantFormat.F32, memoryview(numbers[10:].tobytes())),
    ]


def assert_small_tensors(source: WeightSource) -> None:
    assert list(source.tensors) == ["one", "two"]
    assert dequantize(source.tensor("one")).ravel().tolist() == list(range(10))
    assert dequantize(source.tensor("two")).ravel().tolist() == list(range(10, 45))


@pytest.mark.parametrize("extra", [bytes(17), b""], ids=["17 bytes more", "no padding"])
def test_ggf_15_padding_after_the_last_tensor_may_be_odd_or_missing(
    file: Path, extra: bytes
) -> None:
    metadata, tensors = small_model()
    write_gguf(file, metadata, tensors)
    with open_weights(file) as source:
        last = source.tensors["two"]
    end = last.offset + last.num_bytes
    file.write_bytes(file.read_bytes()[:end] + extra)
    with open_weights(file) as source:
        assert_small_tensors(source)


def test_ggf_15_keys_may_stand_in_any_order(file: Path) -> None:
    metadata, tensors = small_model()
    write_gguf(file, dict(reversed(metadata.items())), tensors)
    with open_weights(file) as source:
        assert_small_tensors(source)
        assert source.metadata == metadata


def test_ggf_15_custom_keys_of_every_type_are_read(file: Path) -> None:
    kinds = [
        (0, "<B"),
        (1, "<b"),
        (2, "<H"),
        (3, "<h"),
        (4, "<I"),
        (5, "<i"),
        (10, "<Q"),
        (11, "<q"),
    ]
    pairs = [pair(f"my.int.{kind}", kind, struct.pack(code, 7)) for kind, code in kinds]
    pairs += [pair(f"my.list.{k}", ARRAY, array(k, 1, struct.pack(c, 7))) for k, c in kinds]
    pairs += [
        pair("my.f32", FLOAT32, struct.pack("<f", 0.25)),
        pair("my.f64", 12, struct.pack("<d", 0.1)),
        pair("my.yes", BOOL, b"\x01"),
        pair("my.flags", ARRAY, array(BOOL, 2, b"\x01\x00")),
        pair("my.empty", ARRAY, array(INT32, 0)),
        nested(4),
        pair("my.rows", ARRAY, array(ARRAY, 2, array(STRING, 1, string("x")) + array(STRING, 0))),
    ]
    file.write_bytes(gguf(pairs))
    with open_weights(file) as source:
        found = dict(source.metadata)
    for kind, code in kinds:
        assert found[f"my.int.{kind}"] == 7
        assert type(found[f"my.int.{kind}"]) is int
        numbers = found[f"my.list.{kind}"]
        assert isinstance(numbers, np.ndarray)
        assert (numbers.dtype, numbers.tolist()) == (np.dtype(code), [7])
    assert (found["my.f32"], found["my.f64"], found["my.yes"]) == (0.25, 0.1, True)
    flags, empty = found["my.flags"], found["my.empty"]
    assert isinstance(flags, np.ndarray)
    assert (flags.dtype, flags.tolist()) == (np.dtype(bool), [True, False])
    assert isinstance(empty, np.ndarray)
    assert (empty.dtype, len(empty)) == (np.dtype("<i4"), 0)
    assert found["nested"] == [[[[7]]]]
    assert found["my.rows"] == [["x"], []]


def test_ggf_15_alignment_64_is_respected(file: Path) -> None:
    metadata, tensors = small_model()
    write_gguf(file, metadata, tensors, alignment=64)
    with open_weights(file) as source:
        assert {info.offset % 64 for info in source.tensors.values()} == {0}
        assert source.metadata["general.alignment"] == 64
        assert_small_tensors(source)


def test_ggf_15_a_missing_pre_tokenizer_and_a_name_with_emoji_are_read(file: Path) -> None:
    metadata, tensors = small_model()
    del metadata["tokenizer.ggml.pre"]
    metadata["general.name"] = "small 🦙"
    write_gguf(file, metadata, tensors)
    with open_weights(file) as source:
        assert source.metadata["general.name"] == "small 🦙"
        assert describe(source).tokenizer_pre is None


def write_part(
    folder: Path, number: int, model: str = "model", count: int = 2, total: int = 2
) -> Path:
    """Part `number`, from 1, of a split model with one tensor a part."""
    _, tensors = small_model()
    metadata: dict[str, object] = {
        "split.no": np.uint16(number - 1),
        "split.count": np.uint16(count),
        "split.tensors.count": np.int32(total),
    }
    if number == 1:
        metadata |= {"general.architecture": "llama"}
    path = folder / f"{model}-{number:05}-of-{count:05}.gguf"
    write_gguf(path, metadata, tensors[number - 1 : number])
    return path


@pytest.mark.parametrize("opened", [0, 1])
def test_ggf_18_any_part_opens_the_whole_model(tmp_path: Path, opened: int) -> None:
    parts = [write_part(tmp_path, 1), write_part(tmp_path, 2)]
    with open_weights(parts[opened]) as source:
        assert source.path == parts[0]
        assert source.metadata["general.architecture"] == "llama"
        assert source.num_parameters == 45
        assert source.file_bytes == sum(part.stat().st_size for part in parts)
        assert_small_tensors(source)
        with pytest.raises(CorruptWeights, match="'three'"):
            source.tensor("three")


@pytest.mark.parametrize("number", [1, 2])
def test_ggf_18_a_missing_part_is_named(tmp_path: Path, number: int) -> None:
    path = write_part(tmp_path, number)
    with pytest.raises(ModelNotFound, match=f"model-0000{3 - number}-of-00002.gguf"):
        open_weights(path)


def test_ggf_18_a_part_of_another_model_is_named(tmp_path: Path) -> None:
    first, second = write_part(tmp_path, 1), write_part(tmp_path, 2)
    other = write_part(tmp_path, 2, model="other", total=9)
    other.replace(second)
    with pytest.raises(CorruptWeights, match=r"model-00002-of-00002\.gguf.*does not belong"):
        open_weights(first)


def test_ggf_18_a_part_that_repeats_a_tensor_is_named(tmp_path: Path) -> None:
    first = write_part(tmp_path, 1)
    _, tensors = small_model()
    keys: dict[str, object] = {"split.no": 1, "split.count": 2, "split.tensors.count": 2}
    write_gguf(tmp_path / "model-00002-of-00002.gguf", keys, tensors[:1])
    with pytest.raises(
        CorruptWeights, match=r"model-00002-of-00002\.gguf.*'one' is in model-00001"
    ):
        open_weights(first)


def test_ggf_18_a_renamed_part_is_refused(tmp_path: Path) -> None:
    first = write_part(tmp_path, 1)
    write_part(tmp_path, 2)
    with pytest.raises(CorruptWeights, match="must be named NAME-00001-of-00002"):
        open_weights(first.rename(tmp_path / "model.gguf"))
    with pytest.raises(CorruptWeights, match="its name says part 2 of 2"):
        open_weights((tmp_path / "model.gguf").rename(tmp_path / "model-00002-of-00002.gguf"))


def test_cli_06_facts_of_smollm2(smollm2_path: Path) -> None:
    with open_weights(smollm2_path) as source:
        facts = describe(source).to_dict()
    expected = {
        "architecture": "llama",
        "num_parameters": 134515008,
        "num_layers": 30,
        "hidden_size": 576,
        "num_heads": 9,
        "num_kv_heads": 3,
        "head_dim": 64,
        "context_length": 8192,
        "vocab_size": 49152,
        "quantization": "Q4_1",
        "tokenizer_model": "gpt2",
        "tokenizer_pre": "smollm",
        "has_chat_template": True,
        "num_tensors": 272,
        "file_bytes": 98362432,
    }
    assert {key: facts[key] for key in expected} == expected


def test_cli_06_facts_of_gemma3(gemma3_path: Path) -> None:
    with open_weights(gemma3_path) as source:
        facts = describe(source).to_dict()
    expected = {
        "architecture": "gemma3",
        "num_parameters": 268098176,
        "num_layers": 18,
        "hidden_size": 640,
        "num_heads": 4,
        "num_kv_heads": 1,
        "head_dim": 256,
        "sliding_window": 512,
        "context_length": 32768,
        "vocab_size": 262144,
        "quantization": "Q4_K_M",
        "has_chat_template": False,
        "num_tensors": 236,
    }
    assert {key: facts[key] for key in expected} == expected
