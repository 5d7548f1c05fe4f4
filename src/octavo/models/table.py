"""Which class runs which architecture, and the door through which models are loaded."""

from __future__ import annotations

from typing import Any, Final

from octavo.errors import UnsupportedArchitecture
from octavo.models.base import (
    ArchConfig,
    LoadedModel,
    MetadataFields,
    WeightLoader,
    read_arch_config,
)
from octavo.models.gemma import GemmaModel
from octavo.models.llama import LlamaModel
from octavo.ops.protocol import Ops, T, W
from octavo.weights.source import WeightSource

MODEL_BY_ARCHITECTURE: Final[dict[str, type[LlamaModel[Any, Any]] | type[GemmaModel[Any, Any]]]] = {
    "llama": LlamaModel,
    "gemma3": GemmaModel,
}
"""GGUF's `general.architecture` -> model class."""


def read_config(source: WeightSource) -> ArchConfig:
    """The numbers of a model, from the header alone.

    Raises: UnsupportedArchitecture listing the supported ones; CorruptWeights naming the key or tensor that is wrong.
    """
    return read_arch_config(source, _fields(source))


def load_model(source: WeightSource, ops: Ops[T, W]) -> LoadedModel:
    """Give a file's weights to a backend and build the model over them.

    Raises: as `read_config`, and CorruptWeights for a missing or misshapen tensor.
    """
    fields = _fields(source)
    config = read_arch_config(source, fields)
    weights = WeightLoader(source, ops)
    model = MODEL_BY_ARCHITECTURE[fields.architecture](config, fields, weights)
    weights.check_all_read()
    fields.log_defaults()
    return LoadedModel(model, config)


def _fields(source: WeightSource) -> MetadataFields:
    fields = MetadataFields(source.metadata, str(source.path))
    if fields.architecture not in MODEL_BY_ARCHITECTURE:
        supported = ", ".join(sorted(MODEL_BY_ARCHITECTURE))
        raise UnsupportedArchitecture(
            f"{source.path}: architecture {fields.architecture!r} is not supported; supported: {supported}"
        )
    return fields
