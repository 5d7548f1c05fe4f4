"""`octavo build` as functions: make a model's build, check it, find it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from octavo.config import ModelConfig
from octavo.engine.builds import BuildPlace, BuildReport, Progress, verify_build, write_build
from octavo.engine.machine import read_machine_limits
from octavo.errors import InvalidRequest
from octavo.store.builds import build_path, stored_digest
from octavo.weights.source import open_weights


def place_of_build(home: Path, model: Path, output: Path | None = None) -> BuildPlace:
    """Where the build of a model file is, or will be: in the store unless `output` names a file."""
    place = BuildPlace(build_path(home, model), stored_digest(home, model))
    return place if output is None else replace(place, path=output)


def build_to_start_from(home: Path, model: Path, config: ModelConfig) -> BuildPlace | None:
    """The build that this configuration asks for. Raises InvalidRequest if the file it names is not there."""
    if not config.build:
        return None
    if config.build_file is None:
        return place_of_build(home, model)
    named = Path(config.build_file).expanduser()
    if not named.is_file():
        raise InvalidRequest(f"build_file {named}: there is no such file", param="build_file")
    return place_of_build(home, model, named)


def make_build(
    home: Path,
    model: Path,
    *,
    output: Path | None = None,
    num_threads: int | None = None,
    progress: Progress | None = None,
) -> BuildReport:
    """Pack a model's weights into a file. Raises: InvalidRequest, ModelError, StoreError, CapacityError."""
    with open_weights(model) as weights:
        place = place_of_build(home, weights.path, output)
        return write_build(weights, place, num_threads=_threads(num_threads), progress=progress)


def check_build(
    home: Path, model: Path, *, output: Path | None = None, num_threads: int | None = None
) -> BuildReport:
    """Read all of a model's build and of the model, and compare the checksums. Raises: UnusableBuild, ModelError."""
    with open_weights(model) as weights:
        place = place_of_build(home, weights.path, output)
        return verify_build(weights, place, num_threads=_threads(num_threads))


def _threads(asked: int | None) -> int:
    return read_machine_limits().num_cores if asked is None else asked
