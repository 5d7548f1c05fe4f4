"""Builds: the same bits as from packing, and never an answer from a file that is stale or damaged."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from octavo.config import BackendName
from octavo.dtypes import QuantFormat
from octavo.engine.builds import BuildPlace, verify_build, write_build
from octavo.engine.loader import load_engine
from octavo.engine.machine import MachineLimits
from octavo.errors import CorruptWeights, InvalidRequest, ModelError, UnusableBuild
from octavo.ops.native import supported_isas
from octavo.weights.build_file import (
    DATA_OFFSET,
    BuildFile,
    Directory,
    Prefix,
    encode_tail,
)
from octavo.weights.identity import file_digest
from octavo.weights.source import open_weights
from tests.engine.test_loader import LIMITS, Answers, answers, engine_config
from tests.tiny_models import random_tensor, tiny_source, write_gguf

K_QUANTS = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    source = tiny_source(formats=(QuantFormat.Q8_0, QuantFormat.Q4_1))
    return write_gguf(source, tmp_path / "tiny.gguf")


@pytest.fixture
def place(tmp_path: Path, model: Path) -> BuildPlace:
    """Of a build that was made."""
    place = BuildPlace(tmp_path / "tiny.octavo")
    make(model, place)
    return place


def make(model: Path, place: BuildPlace, num_threads: int = 2) -> None:
    with open_weights(model) as weights:
        write_build(weights, place, num_threads=num_threads)


def answers_of(
    model: Path,
    place: BuildPlace | None,
    backend: BackendName = BackendName.NATIVE,
    limits: MachineLimits = LIMITS,
) -> Answers:
    with open_weights(model) as weights:
        engine = load_engine(engine_config(backend), weights, limits=limits, build=place)
    got = answers(engine)
    engine.close()
    return got


def origin(caplog: pytest.LogCaptureFixture) -> str:
    """Where the log says the weights came from."""
    [text] = [r.getMessage() for r in caplog.records if " ready in " in r.getMessage()]
    return text.partition("\n")[0].partition(", weights ")[2]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def start(
    model: Path, place: BuildPlace, caplog: pytest.LogCaptureFixture
) -> tuple[Answers, str, list[str]]:
    """Answers, where the weights came from, warnings."""
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="octavo.engine"):
        got = answers_of(model, place)
    return got, origin(caplog), warnings(caplog)


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
@pytest.mark.parametrize("format_", list(QuantFormat), ids=lambda f: f.name)
def test_a_build_gives_the_same_bits_as_packing(
    architecture: str, format_: QuantFormat, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = tiny_source(
        architecture, num_layers=2, formats=(format_,), embed_format=format_, is_tied=False,
        has_bias=architecture == "llama", **K_QUANTS,
    )  # fmt: skip
    model = write_gguf(source, tmp_path / "tiny.gguf")
    place = BuildPlace(tmp_path / "tiny.octavo")
    make(model, place)
    got, where, warned = start(model, place, caplog)
    assert where == f"read from the build {place.path}"
    assert not warned
    assert got == answers_of(model, None)


@pytest.mark.parametrize("isa", supported_isas())
def test_a_build_serves_every_kernel_table(isa: str, model: Path, place: BuildPlace) -> None:
    config = engine_config(BackendName.NATIVE)
    config = replace(config, compute=replace(config.compute, isa=isa))
    got = []
    for build in (place, None):
        with open_weights(model) as weights:
            engine = load_engine(config, weights, limits=LIMITS, build=build)
        assert engine.info.kernel_table == isa
        got.append(answers(engine))
        engine.close()
    assert got[0] == got[1]


def test_a_build_does_not_depend_on_threads(model: Path, tmp_path: Path) -> None:
    one, three = tmp_path / "1", tmp_path / "3"
    make(model, BuildPlace(one), num_threads=1)
    make(model, BuildPlace(three), num_threads=3)
    assert one.read_bytes() == three.read_bytes()


def test_the_tensors_of_the_model_are_not_read_again(
    model: Path, place: BuildPlace, caplog: pytest.LogCaptureFixture
) -> None:
    """Bytes that no sample sees and no time tells of stay unseen; what is loaded is the build."""
    expected = answers_of(model, None)
    times = model.stat()
    with open_weights(model) as weights:
        info = weights.tensors["token_embd.weight"]
    with model.open("r+b") as file:
        file.seek(info.offset)
        file.write(bytes(info.num_bytes // 4))
    os.utime(model, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert answers_of(model, None) != expected
    got, where, _ = start(model, place, caplog)
    assert where.startswith("read")
    assert got == expected
    with open_weights(model) as weights, pytest.raises(UnusableBuild, match="SHA-256"):
        verify_build(weights, place, num_threads=1)


def touched(model: Path, tmp_path: Path) -> None:
    os.utime(model, ns=(1, 1))


def grown(model: Path, tmp_path: Path) -> None:
    times = model.stat()
    with model.open("ab") as file:
        file.write(bytes(8))
    os.utime(model, ns=(times.st_atime_ns, times.st_mtime_ns))


def other_weights(model: Path, tmp_path: Path) -> None:
    """Another training run: equal names, shapes, size and time."""
    times = model.stat()
    source = tiny_source(seed=1, formats=(QuantFormat.Q8_0, QuantFormat.Q4_1))
    write_gguf(source, model)
    assert model.stat().st_size == times.st_size
    os.utime(model, ns=(times.st_atime_ns, times.st_mtime_ns))


def other_shape(model: Path, tmp_path: Path) -> None:
    write_gguf(tiny_source(num_layers=3), model)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (touched, "changed or replaced"),
        (grown, "bytes then"),
        (other_weights, "tensors differ"),
        (other_shape, "bytes then"),
    ],
)
def test_a_changed_model_is_packed_with_a_warning(
    change, reason: str, model: Path, place: BuildPlace, tmp_path, caplog
) -> None:
    change(model, tmp_path)
    got, where, warned = start(model, place, caplog)
    assert where == "packed"
    [warning] = warned
    assert reason in warning
    assert str(place.path) in warning
    assert "octavo build" in warning
    assert got == answers_of(model, None)
    make(model, place)
    again, where, warned = start(model, place, caplog)
    assert (again, where[:4], warned) == (got, "read", [])


def test_what_the_store_holds_may_have_new_times_but_no_other_digest(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    digest = file_digest(model)
    place = BuildPlace(tmp_path / "b.octavo", digest)
    make(model, place)
    os.utime(model, ns=(1, 1))
    assert start(model, place, caplog)[1].startswith("read")
    _, where, [warning] = start(model, replace(place, digest="0" * 64), caplog)
    assert where == "packed"
    assert "SHA-256" in warning
    with pytest.raises(CorruptWeights, match="damaged"):
        make(model, replace(place, digest="0" * 64))


def test_a_file_cut_or_changed_anywhere_never_changes_an_answer(
    model: Path, place: BuildPlace, caplog: pytest.LogCaptureFixture
) -> None:
    expected = answers_of(model, None)
    whole = place.path.read_bytes()
    rng = np.random.default_rng(0)
    places = [0, 8, 12, 16, 24, 40, 100, 4095, DATA_OFFSET, len(whole) - 1]
    places += rng.integers(0, len(whole), 20).tolist()
    for at in places:
        place.path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :])
        got, where, warned = start(model, place, caplog)
        assert (got, where, len(warned)) == (expected, "packed", 1), at
        with open_weights(model) as weights, pytest.raises(UnusableBuild):
            verify_build(weights, place, num_threads=1)
        place.path.write_bytes(whole[:at])
        got, where, warned = start(model, place, caplog)
        assert (got, where, len(warned)) == (expected, "packed", 1), at


def rewrite(place: BuildPlace, change: Callable[[int, Directory], tuple[int, Directory]]) -> None:
    """Change a build's packed layout and directory, its digests being right."""
    with BuildFile(place.path) as build:
        data = build.read_data(0, build.prefix.data_bytes)
        layout, directory = change(build.prefix.packed_layout, build.directory)
        tail = encode_tail(build.checksums, directory)
    size = DATA_OFFSET + len(data) + len(tail)
    page = Prefix(layout, size, len(data), hashlib.sha256(tail).digest()).encode()
    place.path.write_bytes(page + data + tail)


def first_tensor(directory: Directory, **changes: object) -> Directory:
    first, *rest = directory.tensors
    return structs.replace(directory, tensors=(structs.replace(first, **changes), *rest))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda layout, d: (layout + 1, d), "packed layout"),
        (lambda layout, d: (layout, first_tensor(d, name="none")), "another one"),
        (lambda layout, d: (layout, first_tensor(d, shape=(1, 1))), "another one"),
        (lambda layout, d: (layout, first_tensor(d, format=8)), "another way"),
        (lambda layout, d: (layout, first_tensor(d, offset=2**50)), "does not lie"),
        (lambda layout, d: (layout, first_tensor(d, offset=-64)), "does not lie"),
        (lambda layout, d: (layout, first_tensor(d, offset=4)), "does not lie"),
        (lambda layout, d: (layout, first_tensor(d, num_bytes=64)), "another way"),
        (lambda layout, d: (layout, structs.replace(d, parts=())), "number of files"),
    ],
)
def test_a_build_of_another_version_is_packed_with_a_warning(
    change, reason: str, model: Path, place: BuildPlace, caplog
) -> None:
    rewrite(place, change)
    got, where, [warning] = start(model, place, caplog)
    assert (got, where) == (answers_of(model, None), "packed")
    assert reason in warning


def test_a_tensor_that_the_build_lacks_is_packed(model: Path, place: BuildPlace, caplog) -> None:
    """As after an update that loads more of a file."""
    rewrite(place, lambda layout, d: (layout, structs.replace(d, tensors=d.tensors[3:])))
    got, where, _ = start(model, place, caplog)
    assert where.startswith("read")
    assert got == answers_of(model, None)


def test_the_reference_backend_looks_at_no_build(model: Path, place: BuildPlace, caplog) -> None:
    place.path.write_bytes(b"rubbish")
    answers_of(model, place, BackendName.REFERENCE)
    assert not warnings(caplog)


def test_weights_larger_than_the_memory_are_mapped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = tiny_source(vocab_size=16384, hidden_size=256, head_dim=64)
    model = write_gguf(source, tmp_path / "tiny.gguf")
    place = BuildPlace(tmp_path / "tiny.octavo")
    make(model, place)
    limits = MachineLimits(1, 110 * 2**20, "the test")
    with caplog.at_level(logging.INFO, logger="octavo.engine"):
        got = answers_of(model, place, limits=limits)
    assert origin(caplog) == f"mapped from the build {place.path}"
    assert any("larger than the memory" in text for text in warnings(caplog))
    assert got == answers_of(model, None)


def test_outputs_that_would_cost_something_are_refused(model: Path, tmp_path: Path) -> None:
    own = model.read_bytes()
    with pytest.raises(InvalidRequest, match="model file itself"):
        make(model, BuildPlace(model))
    (tmp_path / "notes.txt").write_text("precious")
    with pytest.raises(InvalidRequest, match="not a build"):
        make(model, BuildPlace(tmp_path / "notes.txt"))
    with pytest.raises(InvalidRequest, match="folder"):
        make(model, BuildPlace(tmp_path))
    assert model.read_bytes() == own
    assert (tmp_path / "notes.txt").read_text() == "precious"


def test_a_model_that_cannot_be_loaded_leaves_no_build(tmp_path: Path) -> None:
    source = tiny_source().with_tensor(
        random_tensor("blk.0.odd.weight", (4, 64), QuantFormat.F32, np.random.default_rng(0))
    )
    model = write_gguf(source, tmp_path / "odd.gguf")
    with pytest.raises(ModelError, match="odd"):
        make(model, BuildPlace(tmp_path / "odd.octavo"))
    assert os.listdir(tmp_path) == ["odd.gguf"]


def test_verify_finds_a_build_sound_or_missing(model: Path, place: BuildPlace) -> None:
    with open_weights(model) as weights:
        assert verify_build(weights, place, num_threads=2).num_tensors == len(weights.tensors)
        place.path.unlink()
        with pytest.raises(UnusableBuild, match="no build"):
            verify_build(weights, place, num_threads=2)


def test_a_start_from_a_build_holds_the_weights_once(tmp_path: Path) -> None:
    source = tiny_source(
        vocab_size=32768, hidden_size=512, head_dim=128, embed_format=QuantFormat.F32
    )
    model = write_gguf(source, tmp_path / "tiny.gguf")
    build = tmp_path / "tiny.octavo"
    make(model, BuildPlace(build))
    code = (
        "import sys\nfrom pathlib import Path\nfrom octavo.weights.source import open_weights\n"
        "from octavo.weights.build_file import BuildFile\nfrom octavo.engine.builds import packed_part\n"
        "from octavo.ops.native import NativeBackend\n"
        "def peak():\n"
        "    [line] = [l for l in open('/proc/self/status') if l.startswith('VmHWM')]\n"
        "    return int(line.split()[1]) * 1024\n"
        "backend = NativeBackend(2)\nbuild = BuildFile(Path(sys.argv[1]))\nbefore = peak()\n"
        "backend.load_packed(packed_part(build))\nprint(peak() - before)"
    )
    grown = int(subprocess.check_output([sys.executable, "-c", code, str(build)]))
    size = build.stat().st_size
    assert size > 64 * 2**20
    assert grown <= size + 8 * 2**20


@pytest.mark.slow
def test_smollm2_from_a_build_gives_the_same_bits(
    smollm2_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = tmp_path / "smollm2.gguf"
    shutil.copy(smollm2_path, model)
    place = BuildPlace(tmp_path / "smollm2.octavo")
    make(model, place)
    got, where, warned = start(model, place, caplog)
    assert (where[:4], warned) == ("read", [])
    assert got == answers_of(model, None)
