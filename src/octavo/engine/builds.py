"""Builds: a model's packed weights in a file, written once, read by later starts instead of packing.

The recorded Program is not in it: recording again takes milliseconds and has one code path (docs/adr/0002).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import numpy.typing as npt

from octavo import __version__
from octavo.dtypes import FORMAT_BY_TYPE_ID, HostTensor, QuantFormat
from octavo.errors import CorruptWeights, InvalidRequest, ModelError, UnusableBuild
from octavo.models.table import load_model
from octavo.ops.native.backend import NativeBackend
from octavo.ops.native.packed import PACKED_LAYOUT, PackedPart, Sink, held_bytes
from octavo.ops.native.program import PackedTensor, Tensor, Weight
from octavo.ops.protocol import Ops
from octavo.weights.build_file import (
    ALIGNMENT,
    BLOCK_BYTES,
    DATA_OFFSET,
    MAGIC,
    BuildFile,
    BuildPart,
    BuildTensor,
    Directory,
)
from octavo.weights.build_writer import BuildWriter, open_new, replacing
from octavo.weights.identity import ModelIdentity, file_digest, identify, stamp
from octavo.weights.source import TensorInfo, WeightSource

_logger = logging.getLogger(__name__)

_VERIFY_BYTES: Final = 64 * BLOCK_BYTES
"""Read at a time by a full check."""


Progress = Callable[[str, int, int], None]
"""Told (what is done, bytes of the model packed, bytes in total)."""


@dataclass(frozen=True, slots=True)
class BuildPlace:
    """Where a model's build is. `digest` is the SHA-256 that the store vouches for, None for a file of the user's,
    whose time of last change counts instead."""

    path: Path
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What was written, or found sound."""

    path: Path
    file_bytes: int
    num_tensors: int


def write_build(
    weights: WeightSource,
    place: BuildPlace,
    *,
    num_threads: int,
    progress: Progress | None = None,
    open_file: Callable[[Path], BinaryIO] = open_new,
) -> BuildReport:
    """Pack a model's weights into a file. Holds one packed tensor at a time.

    Raises: InvalidRequest if the place holds something else, StoreError if it cannot be written, CorruptWeights if
    the store's file is not what it should be or changes meanwhile, and what loading a model raises.
    """
    _check_place(place.path, weights)
    before = identify(weights)
    parts = tuple(_part(path) for path in weights.paths)
    if place.digest is not None and parts[0].sha256 != place.digest:
        raise CorruptWeights(
            f"the stored file has SHA-256 {parts[0].sha256}: it is damaged, `octavo rm` and pull it again",
            path=str(weights.path),
        )
    backend = NativeBackend(num_threads)
    try:
        with replacing(place.path, open_file=open_file) as file:
            writer = BuildWriter(file, backend.checksums)
            sink = writer.add if progress is None else _told(writer.add, weights, progress)
            packing: Ops[Tensor, Weight] = backend.packing_ops(sink)
            load_model(weights, packing)
            directory = Directory(
                __version__,
                str(weights.path.resolve()),
                before.fingerprint,
                parts,
                tuple(writer.tensors),
            )
            writer.finish(PACKED_LAYOUT, directory)
            if identify(weights) != before:
                raise CorruptWeights("the model file changed meanwhile", path=str(weights.path))
    finally:
        backend.close()
    return BuildReport(place.path, place.path.stat().st_size, len(directory.tensors))


def verify_build(weights: WeightSource, place: BuildPlace, *, num_threads: int) -> BuildReport:
    """Check all of a build: its data, and the model's whole files against the digests in it.

    Raises: UnusableBuild that says what is wrong.
    """
    try:
        with _named(place.path), BuildFile(place.path) as build:
            check_build(build, weights, place.digest)
            for part, path in zip(build.directory.parts, weights.paths, strict=True):
                if file_digest(path) != part.sha256:
                    raise UnusableBuild(f"it is of another model: the SHA-256 of {path} differs")
            _check_data(build, num_threads)
            return BuildReport(place.path, build.prefix.file_bytes, len(build.directory.tensors))
    except FileNotFoundError:
        raise UnusableBuild(f"{place.path}: there is no build; `octavo build` makes it") from None


def find_build(weights: WeightSource, place: BuildPlace) -> BuildFile | None:
    """The open build, if there is one that may stand for the model's tensors. One that may not is worth a warning."""
    try:
        build = BuildFile(place.path)
    except FileNotFoundError:
        return None
    except UnusableBuild as error:
        warn_unusable(place.path, error)
        return None
    try:
        check_build(build, weights, place.digest)
    except ModelError as error:
        build.close()
        warn_unusable(place.path, error)
        return None
    return build


def warn_unusable(path: Path, error: Exception) -> None:
    """Say why a build is not used, and what to do."""
    _logger.warning(
        "packing the weights: the build %s is of no use, %s; `octavo build` makes it anew",
        path,
        error,
    )


def packed_part(build: BuildFile) -> PackedPart:
    """The build as the native backend reads it. Raises UnusableBuild for a format that does not exist."""
    tensors = {t.name: _packed_tensor(t) for t in build.directory.tensors}
    return PackedPart(build.fd, DATA_OFFSET, build.prefix.data_bytes, build.checksums, tensors)


def check_build(build: BuildFile, weights: WeightSource, digest: str | None) -> None:
    """Check that a build stands for this model and this version of the packing; reads none of its data.

    Raises: UnusableBuild with the reason, ModelError if the model's files are gone.
    """
    layout = build.prefix.packed_layout
    if layout != PACKED_LAYOUT:
        raise UnusableBuild(f"it has packed layout {layout}, this Octavo uses {PACKED_LAYOUT}")
    identity = identify(weights)
    _check_stamps(build.directory, identity, digest)
    if build.directory.fingerprint != identity.fingerprint:
        raise UnusableBuild("it is of another model: the tensors differ")
    if digest is not None and build.directory.parts[0].sha256 != digest:
        raise UnusableBuild("it is of another model: the SHA-256 differs")
    for tensor in build.directory.tensors:
        _check_tensor(tensor, weights.tensors.get(tensor.name), build.prefix.data_bytes)


def _check_stamps(directory: Directory, identity: ModelIdentity, digest: str | None) -> None:
    if len(directory.parts) != len(identity.stamps):
        raise UnusableBuild("it is of another model: the number of files differs")
    for part, now in zip(directory.parts, identity.stamps, strict=True):
        if part.num_bytes != now.num_bytes:
            raise UnusableBuild(
                f"the model file had {part.num_bytes} bytes then, {now.num_bytes} now"
            )
        # What the store holds under a digest never changes, and a copied store has new times.
        if digest is None and part.mtime_ns != now.mtime_ns:
            raise UnusableBuild("the model file was changed or replaced since then")


def _check_tensor(tensor: BuildTensor, info: TensorInfo | None, data_bytes: int) -> None:
    if info is None or (info.shape, info.format.type_id) != (tensor.shape, tensor.source_format):
        raise UnusableBuild(f"tensor {tensor.name} is another one in the model file")
    held = held_format(info)
    if (tensor.format, tensor.num_bytes) != (held.type_id, held_bytes(info.shape, held)):
        raise UnusableBuild(f"this Octavo holds {info.format.name} in another way")
    is_inside = 0 <= tensor.offset <= data_bytes - tensor.num_bytes
    if not is_inside or tensor.offset % ALIGNMENT:
        raise UnusableBuild(f"tensor {tensor.name} does not lie in the data")


def held_format(info: TensorInfo) -> QuantFormat:
    """What the native backend makes of a tensor."""
    return info.format if len(info.shape) == 2 else QuantFormat.F32


def _check_data(build: BuildFile, num_threads: int) -> None:
    backend = NativeBackend(num_threads)
    try:
        for start in range(0, build.prefix.data_bytes, _VERIFY_BYTES):
            num_bytes = min(_VERIFY_BYTES, build.prefix.data_bytes - start)
            sums = backend.checksums(np.frombuffer(build.read_data(start, num_bytes), np.uint8))
            first = start // BLOCK_BYTES
            wrong = np.flatnonzero(sums != build.checksums[first : first + len(sums)])
            if wrong.size:
                at = DATA_OFFSET + start + int(wrong[0]) * BLOCK_BYTES
                raise UnusableBuild(f"the checksum of the MiB at byte {at} is wrong")
    finally:
        backend.close()


def _told(sink: Sink, weights: WeightSource, progress: Progress) -> Sink:
    """The sink, with word of how far it is."""
    total = sum(info.num_bytes for info in weights.tensors.values())
    done = 0

    def told(source: HostTensor, held: QuantFormat, data: npt.NDArray[np.uint8]) -> None:
        nonlocal done
        sink(source, held, data)
        done += weights.tensors[source.name].num_bytes
        progress("packing", done, total)

    return told


def _check_place(path: Path, weights: WeightSource) -> None:
    """A slip of the hand must not cost a model."""
    if any(path.resolve() == own.resolve() for own in weights.paths):
        raise InvalidRequest(f"output {path} is the model file itself", param="output")
    if path.is_dir():
        raise InvalidRequest(f"output {path} is a folder: name a file", param="output")
    if path.is_file():
        with path.open("rb") as file:
            head = file.read(len(MAGIC))
        if head not in (b"", MAGIC):
            raise InvalidRequest(f"output {path} exists and is not a build", param="output")


def _part(path: Path) -> BuildPart:
    facts = stamp(path)
    return BuildPart(str(path.resolve()), facts.num_bytes, facts.mtime_ns, file_digest(path))


def _packed_tensor(tensor: BuildTensor) -> PackedTensor:
    try:
        source, held = FORMAT_BY_TYPE_ID[tensor.source_format], FORMAT_BY_TYPE_ID[tensor.format]
    except KeyError as error:
        raise UnusableBuild(f"tensor {tensor.name} has an unknown format {error}") from None
    return PackedTensor(tensor.shape, source, held, tensor.offset, tensor.num_bytes)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors about a build name it."""
    try:
        yield
    except UnusableBuild as error:
        raise UnusableBuild(f"{path}: {error}") from error
