"""What is written is read back, and a file appears whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.dtypes import HostTensor, QuantFormat
from octavo.weights.source import open_weights
from octavo.weights.writer import write_gguf

SCALARS = (
    st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, width=32)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
)
ARRAYS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), max_size=5)
KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
    lambda key: key != "general.alignment"
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def tensor(name: str, kind: QuantFormat, shape: tuple[int, ...]) -> HostTensor:
    size = kind.num_bytes(int(np.prod(shape)))
    content = np.random.default_rng(len(name)).integers(0, 256, size, dtype=np.uint8)
    return HostTensor(name, shape, kind, memoryview(content.tobytes()))


@given(metadata=st.dictionaries(KEYS, SCALARS | ARRAYS | st.lists(ARRAYS, min_size=1, max_size=3)))
def test_any_metadata_comes_back(
    tmp_path_factory: pytest.TempPathFactory, metadata: dict[str, object]
) -> None:
    path = tmp_path_factory.getbasetemp() / "metadata.gguf"
    write_gguf(path, metadata, [])
    with open_weights(path) as source:
        assert dict(source.metadata) == metadata
        assert [type(value) for value in source.metadata.values()] == [
            type(value) for value in metadata.values()
        ]


@pytest.mark.parametrize("alignment", [None, 8, 64, 4096])
def test_tensors_of_all_formats_come_back(file: Path, alignment: int | None) -> None:
    tensors = [tensor(kind.name, kind, (3, 256)) for kind in QuantFormat]
    tensors.append(tensor("four", QuantFormat.F16, (2, 3, 5, 7)))
    write_gguf(file, {"general.architecture": "llama"}, tensors, alignment)
    with open_weights(file) as source:
        assert [source.tensor(name) for name in source.tensors] == tensors


@pytest.mark.parametrize(
    "dtype", ["u1", "i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f4", "<f8", ">f4", "?"]
)
def test_numpy_values_keep_their_type(file: Path, dtype: str) -> None:
    numbers = np.array([1, 0, 1], dtype)
    write_gguf(file, {"array": numbers, "scalar": numbers[0], "rows": numbers[None]}, [])
    with open_weights(file) as source:
        found = source.metadata["array"]
        assert isinstance(found, np.ndarray)
        assert found.dtype == numbers.dtype.newbyteorder("<")
        assert found.tolist() == numbers.tolist()
        assert source.metadata["scalar"] == numbers[0].item()
        rows = source.metadata["rows"]
        assert isinstance(rows, list)
        assert rows[0].tolist() == numbers.tolist()


@pytest.mark.parametrize(
    ("value", "dtype"),
    [([1, -2], "<i4"), ([1 << 40], "<i8"), ([0.5], "<f4"), ([True, False], "?"), ((7,), "<i4")],
)
def test_lists_of_numbers_become_arrays(file: Path, value: list[object], dtype: str) -> None:
    write_gguf(file, {"key": value}, [])
    with open_weights(file) as source:
        found = source.metadata["key"]
        assert isinstance(found, np.ndarray)
        assert (found.dtype, found.tolist()) == (np.dtype(dtype), list(value))


def test_metadata_of_one_file_can_be_written_to_another(file: Path, smollm2_path: Path) -> None:
    with open_weights(smollm2_path) as source:
        names = ["output_norm.weight", "blk.0.attn_q.weight"]
        write_gguf(file, source.metadata, [source.tensor(name) for name in names])
        with open_weights(file) as copy:
            assert repr(copy.metadata) == repr(source.metadata)
            assert [copy.tensor(n).data for n in names] == [source.tensor(n).data for n in names]


def test_the_alignment_of_the_metadata_is_kept(file: Path) -> None:
    write_gguf(file, {"general.alignment": 128}, [tensor("w", QuantFormat.F32, (4,))] * 1)
    with open_weights(file) as source:
        assert source.tensors["w"].offset == 128


def test_gguf_py_reads_what_is_written(file: Path) -> None:
    gguf = pytest.importorskip("gguf")
    written = [tensor("a", QuantFormat.Q4_K, (4, 512)), tensor("b", QuantFormat.F32, (7,))]
    metadata = {"general.architecture": "llama", "llama.block_count": 3, "x.list": ["a", "é"]}
    write_gguf(file, metadata, written, alignment=64)
    reader = gguf.GGUFReader(file)
    found = {key: reader.fields[key].contents() for key in metadata}
    assert found == metadata
    assert [t.name for t in reader.tensors] == ["a", "b"]
    assert [t.data.tobytes() for t in reader.tensors] == [t.data.tobytes() for t in written]


@dataclass
class Made:
    """A tensor whose bytes exist only when they are asked for."""

    name: str
    events: list[str]
    shape: tuple[int, ...] = (4,)
    format: QuantFormat = QuantFormat.F32
    size: int = 16
    release: Callable[[], None] = field(init=False)

    def __post_init__(self) -> None:
        self.release = lambda: self.events.append(f"free {self.name}")

    @property
    def data(self) -> memoryview:
        self.events.append(f"make {self.name}")
        return memoryview(bytes(self.size))


def test_tensors_are_made_and_freed_one_after_the_other(file: Path) -> None:
    events: list[str] = []
    write_gguf(file, {}, (Made(name, events) for name in "ab"))
    assert events == ["make a", "free a", "make b", "free b"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(file: Path) -> None:
    write_gguf(file, {"old": True}, [])
    with pytest.raises(ValueError, match="15 bytes, 16 expected"):
        write_gguf(file, {}, [Made("w", [], size=15)])
    assert list(file.parent.iterdir()) == [file]
    with open_weights(file) as source:
        assert source.metadata == {"old": True}


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        ({"k": None}, TypeError),
        ({"k": object()}, TypeError),
        ({"k": [1, "a"]}, TypeError),
        ({"k": 1 << 64}, ValueError),
        ({"k": np.array(["a"])}, TypeError),
        ({"k": [[[[["deep"]]]]]}, ValueError),
        ({"": 1}, ValueError),
        ({"general.alignment": 12}, ValueError),
    ],
)
def test_values_the_format_cannot_hold_are_refused(
    file: Path, metadata: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        write_gguf(file, metadata, [])
    assert not file.exists()


@pytest.mark.parametrize("shape", [(), (1, 1, 1, 1, 32), (0, 32), (2, 33)])
def test_shapes_the_format_cannot_hold_are_refused(file: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="w: shape"):
        write_gguf(file, {}, [HostTensor("w", shape, QuantFormat.Q4_0, memoryview(b""))])
    one = tensor("w", QuantFormat.F32, (4,))
    with pytest.raises(ValueError, match="two tensors"):
        write_gguf(file, {}, [one, one])
