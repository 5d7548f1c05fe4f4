"""`bench make-model`: model files of real size with random weights. They answer nonsense, at the speed of the real ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from math import prod
from pathlib import Path
from typing import Final

import numpy as np

from octavo.bench.model_shapes import (
    MIXES,
    SHAPES,
    ArchName,
    ModelShape,
    SizeName,
    TypeName,
    WeightMix,
)
from octavo.bench.random_weights import RandomTensor
from octavo.dtypes import QuantFormat
from octavo.errors import CapacityError, InvalidRequest
from octavo.weights.source import open_weights
from octavo.weights.writer import write_gguf

_UNUSED_TYPE: Final = 5
"""tokenizer.ggml.token_type of a token that no text makes."""
_RMS_EPS: Final = 1e-5
_SPARE_BYTES: Final = 1 << 20

OnProgress = Callable[[str, int, int], None]
"""Told (what, bytes made, bytes in total)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomModelConfig:
    """Which model is made up."""

    arch: ArchName = field(default="llama", metadata={"help": "architecture"})
    size: SizeName = field(default="1b", metadata={"help": "shape of the model"})
    type: TypeName = field(default="q4_k_m", metadata={"help": "type of the weights"})
    seed: int = field(default=0, metadata={"help": "of the weights"})

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise InvalidRequest(f"seed must be at least 0, got {self.seed}", param="seed")


def make_model(
    out: Path,
    tokenizer_from: Path,
    config: RandomModelConfig,
    *,
    on_progress: OnProgress = lambda *_: None,
) -> dict[str, object]:
    """Write a GGUF file with random weights and the tokenizer of another; returns facts about it.

    One tensor at a time is in memory. Raises: InvalidRequest if `out` exists, CapacityError if the disk has no room,
    OSError, and what opening `tokenizer_from` raises.
    """
    if out.exists():
        raise InvalidRequest(f"{out} exists: remove it, or name another file")
    shape, mix = SHAPES[config.size], MIXES[config.type]
    with open_weights(tokenizer_from) as source:
        tokenizer = borrow_tokenizer(source.metadata, shape.vocab_size)
    tokens = tokenizer["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    tensors = list(llama_tensors(shape, mix, len(tokens), config.seed))
    total = sum(tensor.num_bytes for tensor in tensors)
    free = shutil.disk_usage(out.absolute().parent).free
    if total + _SPARE_BYTES > free:
        raise CapacityError(f"{out}: the model has {total:,} bytes, the disk {free:,} free")
    metadata = llama_metadata(shape, mix, len(tokens)) | tokenizer
    write_gguf(out, metadata, _reported(tensors, total, on_progress))
    return {
        "path": str(out),
        "name": metadata["general.name"],
        "type": config.type,
        "num_parameters": sum(prod(tensor.shape) for tensor in tensors),
        "file_bytes": out.stat().st_size,
    }


def borrow_tokenizer(metadata: Mapping[str, object], vocab_size: int | None) -> dict[str, object]:
    """The tokenizer keys of a file, filled up to `vocab_size` with tokens that no text makes.

    A vocabulary that is larger stays as it is. Raises: InvalidRequest if the file has none.
    """
    keys = {key: value for key, value in metadata.items() if key.startswith("tokenizer.")}
    tokens = keys.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise InvalidRequest("the file to borrow a tokenizer from has no vocabulary")
    num_missing = max(0, (vocab_size or 0) - len(tokens))
    keys["tokenizer.ggml.tokens"] = tokens + [f"<|unused_{i}|>" for i in range(num_missing)]
    types = keys.get("tokenizer.ggml.token_type", np.ones(len(tokens), np.int32))
    filler = np.full(num_missing, _UNUSED_TYPE, np.int32)
    keys["tokenizer.ggml.token_type"] = np.concatenate([np.asarray(types, np.int32), filler])
    if (scores := keys.get("tokenizer.ggml.scores")) is not None:
        worst = np.full(num_missing, -1e6, np.float32)
        keys["tokenizer.ggml.scores"] = np.concatenate([np.asarray(scores, np.float32), worst])
    return keys


def llama_metadata(shape: ModelShape, mix: WeightMix, vocab_size: int) -> dict[str, object]:
    """Every key that a reader of the architecture needs, but for the tokenizer's."""
    return {
        "general.architecture": "llama",
        "general.type": "model",
        "general.name": shape.name,
        "general.file_type": mix.file_type,
        "general.quantization_version": 2,
        "llama.block_count": shape.num_layers,
        "llama.context_length": shape.context_length,
        "llama.embedding_length": shape.hidden_size,
        "llama.feed_forward_length": shape.intermediate_size,
        "llama.attention.head_count": shape.num_heads,
        "llama.attention.head_count_kv": shape.num_kv_heads,
        "llama.attention.key_length": shape.head_dim,
        "llama.attention.value_length": shape.head_dim,
        "llama.attention.layer_norm_rms_epsilon": _RMS_EPS,
        "llama.rope.dimension_count": shape.head_dim,
        "llama.rope.freq_base": shape.rope_base,
        "llama.vocab_size": vocab_size,
    }


def llama_tensors(
    shape: ModelShape, mix: WeightMix, vocab_size: int, seed: int
) -> Iterator[RandomTensor]:
    """The tensors in the order of the file. Matrices keep the size of what goes through them: activations stay finite."""
    numbers = count()

    def matrix(name: str, num_out: int, num_in: int, format_: QuantFormat) -> RandomTensor:
        return RandomTensor(
            f"{name}.weight", (num_out, num_in), format_, (seed, next(numbers)), num_in**-0.5
        )

    def norm(name: str) -> RandomTensor:
        return RandomTensor(
            f"{name}.weight", (shape.hidden_size,), QuantFormat.F32, (seed, next(numbers)), 0.1, 1.0
        )

    hidden, inner = shape.hidden_size, shape.intermediate_size
    q_size, kv_size = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    yield matrix("token_embd", vocab_size, hidden, mix.head if shape.is_tied else mix.base)
    for layer in range(shape.num_layers):
        yield norm(f"blk.{layer}.attn_norm")
        yield norm(f"blk.{layer}.ffn_norm")
        for name, num_out, num_in in (
            ("attn_q", q_size, hidden), ("attn_k", kv_size, hidden), ("attn_v", kv_size, hidden),
            ("attn_output", hidden, q_size), ("ffn_gate", inner, hidden), ("ffn_up", inner, hidden),
            ("ffn_down", hidden, inner),
        ):  # fmt: skip
            format_ = mix.of(name, layer, shape.num_layers)
            yield matrix(f"blk.{layer}.{name}", num_out, num_in, format_)
    yield norm("output_norm")
    if not shape.is_tied:
        yield matrix("output", vocab_size, hidden, mix.head)


def _reported(
    tensors: list[RandomTensor], total: int, on_progress: OnProgress
) -> Iterator[RandomTensor]:
    """The tensors, each of which tells how far the file is when it was written."""
    done = 0
    for tensor in tensors:
        done += tensor.num_bytes
        yield replace(tensor, release=partial(on_progress, "weights", done, total))
