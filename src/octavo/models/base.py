"""What every architecture shares: reading its numbers from metadata, and its tensors with their shapes checked."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Generic

import numpy as np

from octavo.dtypes import HostTensor, KVDType
from octavo.errors import CorruptWeights, UnsupportedArchitecture
from octavo.kv_layout import KVLayout
from octavo.ops.protocol import AnyModel, Ops, T, W
from octavo.weights.quant import dequantize
from octavo.weights.source import WeightSource

_logger = logging.getLogger(__name__)

_LAYER_TENSOR: Final = re.compile(r"blk\.([0-9]{1,9})\..+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchConfig:
    """Numbers of a decoder that others need: memory plan, scheduler, `octavo show`."""

    name: str
    architecture: str
    vocab_size: int
    context_length: int
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    num_parameters: int

    def kv_layout(self, dtype: KVDType) -> KVLayout:
        """Layout of this model's KV blocks."""
        return KVLayout(self.num_layers, self.num_kv_heads, self.head_dim, dtype)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model whose weights a backend holds, and its numbers."""

    model: AnyModel
    config: ArchConfig


class MetadataFields:
    """Typed look-up of one architecture's keys, `<architecture>.<key>`. Errors name the full key.

    Remembers which keys were absent and what was taken instead: `log_defaults` says so, once.
    """

    def __init__(self, metadata: Mapping[str, object], path: str = "") -> None:
        self._metadata = metadata
        self._path = path
        self._defaults: dict[str, object] = {}
        architecture = metadata.get("general.architecture")
        if not isinstance(architecture, str) or not architecture:
            raise CorruptWeights(
                "the file does not name its architecture", path=path, field="general.architecture"
            )
        self.architecture = architecture

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number above zero. An array of equal numbers (one per layer) counts as that number."""
        value = self._value(key, default)
        if isinstance(value, np.ndarray) and value.size:
            if (value != value.flat[0]).any():
                raise UnsupportedArchitecture(f"{self._full(key)} differs between layers")
            value = value.flat[0].item()
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
            raise self.corrupt(key, f"must be a whole number above zero, not {value!r}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above zero."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.corrupt(key, f"must be a number, not {value!r}")
        if not 0.0 < value < float("inf"):
            raise self.corrupt(key, f"must be above zero and finite, not {value!r}")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """A finite number above zero; None where the key is absent or 0, which GGUF writers use for "off"."""
        if self._metadata.get(self._full(key), 0) == 0:
            return None
        return self.number(key)

    def text(self, key: str, default: str) -> str:
        """A string. An absent one is not worth a log line."""
        value = self._metadata.get(self._full(key), default)
        if not isinstance(value, str):
            raise self.corrupt(key, f"must be a string, not {value!r}")
        return value

    def general_name(self) -> str:
        """The model's own name, or its architecture if it has none."""
        value = self._metadata.get("general.name")
        return value if isinstance(value, str) and value else self.architecture

    def log_defaults(self) -> None:
        """Say which keys the file leaves out and what is used for them."""
        if self._defaults:
            listed = ", ".join(f"{key} = {value}" for key, value in self._defaults.items())
            _logger.info(
                "the file leaves out some keys, using the architecture's defaults: %s", listed
            )

    def _value(self, key: str, default: object) -> object:
        full = self._full(key)
        if full in self._metadata:
            return self._metadata[full]
        if default is None:
            raise self.corrupt(key, "is missing")
        self._defaults[full] = default
        return default

    def _full(self, key: str) -> str:
        return f"{self.architecture}.{key}"

    def corrupt(self, key: str, problem: str) -> CorruptWeights:
        """An error about this key, to raise."""
        full = self._full(key)
        return CorruptWeights(f"{full} {problem}", path=self._path, field=full)


def read_arch_config(source: WeightSource, fields: MetadataFields) -> ArchConfig:
    """Read and check the numbers that all decoders declare under the same keys.

    Raises: CorruptWeights naming the key or tensor, UnsupportedArchitecture for a variant Octavo does not have.
    """
    hidden_size = fields.count("embedding_length")
    num_heads = fields.count("attention.head_count")
    num_kv_heads = fields.count("attention.head_count_kv", num_heads)
    if num_heads % num_kv_heads:
        raise fields.corrupt(
            "attention.head_count_kv", f"{num_kv_heads} does not divide head_count {num_heads}"
        )
    head_dim = fields.count("attention.key_length", max(1, hidden_size // num_heads))
    if fields.optional_number("attention.value_length") not in (None, head_dim):
        raise UnsupportedArchitecture(
            f"{fields.architecture}.attention.value_length differs from the key length {head_dim}"
        )
    if fields.optional_number("expert_count"):
        raise UnsupportedArchitecture("mixture-of-experts layers are not supported")
    config = ArchConfig(
        name=fields.general_name(),
        architecture=fields.architecture,
        vocab_size=_vocab_size(source),
        context_length=fields.count("context_length"),
        num_layers=fields.count("block_count"),
        hidden_size=hidden_size,
        intermediate_size=fields.count("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        num_parameters=source.num_parameters,
    )
    _check_num_layers(source, config)
    return config


def _vocab_size(source: WeightSource) -> int:
    info = source.tensors.get("token_embd.weight")
    if info is None or len(info.shape) != 2:
        problem = "is missing" if info is None else f"has shape {info.shape}, not [vocab, hidden]"
        raise CorruptWeights(
            f"tensor token_embd.weight {problem}", path=str(source.path), field="token_embd.weight"
        )
    return info.shape[0]


def _check_num_layers(source: WeightSource, config: ArchConfig) -> None:
    matches = map(_LAYER_TENSOR.fullmatch, source.tensors)
    found = 1 + max((int(match[1]) for match in matches if match), default=-1)
    if found != config.num_layers:
        key = f"{config.architecture}.block_count"
        raise CorruptWeights(
            f"{key} is {config.num_layers}, but the file has the tensors of {found} layers",
            path=str(source.path),
            field=key,
        )


class WeightLoader(Generic[T, W]):
    """Hands a file's tensors to a backend: by name, with the shape the config implies, each at most once."""

    def __init__(self, source: WeightSource, ops: Ops[T, W]) -> None:
        self._source = source
        self._ops = ops
        self._unread = set(source.tensors)

    def matrix(self, name: str, num_out: int, num_in: int) -> W:
        """The matrix of this name, [num_out, num_in]."""
        return self._ops.weight(self._take(name, (num_out, num_in)))

    def vector(self, name: str, size: int) -> T:
        """The vector of this name, [size]."""
        return self._ops.vector(self._take(name, (size,)))

    def optional_vector(self, name: str, size: int) -> T | None:
        """The vector, or None if the file has none."""
        return self.vector(name, size) if self.has(name) else None

    def numbers(self, name: str, size: int) -> tuple[float, ...]:
        """The elements of a small vector, for a config; () if the file has none."""
        if not self.has(name):
            return ()
        return tuple(float(v) for v in dequantize(self._take(name, (size,))))

    def has(self, name: str) -> bool:
        """Whether the file has this tensor."""
        return name in self._source.tensors

    def check_all_read(self) -> None:
        """Refuse a file with tensors nothing reads: the model would run, and answer nonsense.

        Raises: UnsupportedArchitecture naming the first of them.
        """
        if self._unread:
            names = sorted(self._unread)
            raise UnsupportedArchitecture(
                f"{self._source.path}: this variant has {len(names)} tensors that are not supported: "
                + ", ".join(names[:4])
                + (", ..." if len(names) > 4 else "")
            )

    def _take(self, name: str, shape: tuple[int, ...]) -> HostTensor:
        path = str(self._source.path)
        info = self._source.tensors.get(name)
        if info is None:
            raise CorruptWeights(f"tensor {name} is missing", path=path, field=name)
        if info.shape != shape:
            raise CorruptWeights(
                f"tensor {name} has shape {list(info.shape)}, the metadata implies {list(shape)}",
                path=path,
                field=name,
            )
        self._unread.discard(name)
        return self._source.tensor(name)
