"""What a model file says about its model, for people and for scripts."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np

from octavo.weights.source import Metadata, WeightSource

PerLayer = int | tuple[int, ...]
"""One number for all layers, or one per layer where they differ."""

# Value of general.file_type -> name of the mixture. Source: llama.cpp's list of file types.
_FILE_TYPES: Final = (
    *("F32", "F16", "Q4_0", "Q4_1", None, None, None, "Q8_0", "Q5_0", "Q5_1", "Q2_K"),
    *("Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K"),
    *("IQ2_XXS", "IQ2_XS", "Q2_K_S", "IQ3_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ3_M"),
    *("IQ2_S", "IQ2_M", "IQ4_XS", "IQ1_M", "BF16"),
)


@dataclass(frozen=True, slots=True)
class TypeShare:
    """How much of a file one tensor type takes."""

    num_tensors: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The header of a model file in a few lines. None: the file does not say, and nothing is guessed.

    `quantization` is the mixture that general.file_type names, else the tensor type with the most bytes.
    """

    path: str
    architecture: str | None
    name: str | None
    num_parameters: int
    num_layers: int | None
    hidden_size: int | None
    num_heads: PerLayer | None
    num_kv_heads: PerLayer | None
    head_dim: int | None
    sliding_window: int | None
    context_length: int | None
    vocab_size: int | None
    quantization: str | None
    tokenizer_model: str | None
    tokenizer_pre: str | None
    has_chat_template: bool
    num_tensors: int
    tensor_types: dict[str, TypeShare]
    file_bytes: int

    def to_dict(self) -> dict[str, object]:
        """The facts as JSON types."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
        }


def describe(source: WeightSource) -> ModelFacts:
    """Gather the facts of an open file; reads no tensor data."""
    metadata = source.metadata
    architecture = _text(metadata, "general.architecture")
    shares = _shares(source)

    def dimension(key: str) -> PerLayer | None:
        return _dimension(metadata, f"{architecture}.{key}")

    num_heads = dimension("attention.head_count")
    hidden_size = _single(dimension("embedding_length"))
    return ModelFacts(
        path=str(source.path),
        architecture=architecture,
        name=_text(metadata, "general.name"),
        num_parameters=source.num_parameters,
        num_layers=_single(dimension("block_count")),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=dimension("attention.head_count_kv") or num_heads,
        head_dim=_single(dimension("attention.key_length")) or _ratio(hidden_size, num_heads),
        sliding_window=_single(dimension("attention.sliding_window")),
        context_length=_single(dimension("context_length")),
        vocab_size=_vocab_size(source, architecture),
        quantization=_quantization(metadata, shares),
        tokenizer_model=_text(metadata, "tokenizer.ggml.model"),
        tokenizer_pre=_text(metadata, "tokenizer.ggml.pre"),
        has_chat_template="tokenizer.chat_template" in metadata,
        num_tensors=len(source.tensors),
        tensor_types=shares,
        file_bytes=source.file_bytes,
    )


def _text(metadata: Metadata, key: str) -> str | None:
    """A text fit for any output: bytes that were no UTF-8 become U+FFFD."""
    value = metadata.get(key)
    if not isinstance(value, str):
        return None
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _dimension(metadata: Metadata, key: str) -> PerLayer | None:
    value = metadata.get(key)
    if isinstance(value, np.ndarray) and np.issubdtype(value.dtype, np.integer) and value.size:
        numbers = tuple(int(item) for item in value)
        return numbers[0] if len(set(numbers)) == 1 else numbers
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _single(value: PerLayer | None) -> int | None:
    return value if isinstance(value, int) else None


def _ratio(hidden_size: int | None, num_heads: PerLayer | None) -> int | None:
    heads = _single(num_heads)
    return hidden_size // heads if hidden_size and heads else None


def _vocab_size(source: WeightSource, architecture: str | None) -> int | None:
    tokens = source.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list):
        return len(tokens)
    return _single(_dimension(source.metadata, f"{architecture}.vocab_size"))


def _shares(source: WeightSource) -> dict[str, TypeShare]:
    """Share of each tensor type, the greatest first."""
    num_tensors: Counter[str] = Counter()
    num_bytes: Counter[str] = Counter()
    for info in source.tensors.values():
        num_tensors[info.format.name] += 1
        num_bytes[info.format.name] += info.num_bytes
    return {name: TypeShare(num_tensors[name], size) for name, size in num_bytes.most_common()}


def _quantization(metadata: Metadata, shares: dict[str, TypeShare]) -> str | None:
    if not shares:
        return None  # a vocabulary-only file; its file_type means nothing
    number = _single(_dimension(metadata, "general.file_type"))
    if number is not None and 0 <= number < len(_FILE_TYPES) and _FILE_TYPES[number]:
        return _FILE_TYPES[number]
    return next(iter(shares))
