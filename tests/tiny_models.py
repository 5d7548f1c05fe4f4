"""Tiny random checkpoints, in memory or as a GGUF file. Nothing is downloaded, every run makes the same bits.

    source = tiny_source("llama", seed=0, num_layers=2)        a WeightSource: .metadata, .tensors, .tensor(name)
    source = tiny_source("gemma3", formats=(QuantFormat.Q8_0, QuantFormat.Q5_0), hidden_size=64)
    loaded = load_model(source, backend.ops)                   octavo.models.table
    path = write_gguf(source, tmp_path / "tiny.gguf")          the same model as a file, tokenizer included
    tensor = random_tensor("w", (64, 256), QuantFormat.Q4_K, rng)   one random HostTensor of any format

Defaults: hidden 64, 4 heads of 16 over 2 kv heads, intermediate 96, 320 tokens, context 1024; gemma3 has 7 layers
when not told otherwise (6 local with a window of 24, then 1 global is layer 5) and head_dim 32. `formats` are dealt to
the matrices in turn, the embedding takes `embed_format`. K-quants need rows of 256: pass hidden_size=256,
intermediate_size=512 (and num_heads * head_dim = 256).

The vocabulary is byte-level BPE ("gpt2") without merges: id b is byte b, ids from 256 are the control tokens
<|end|> (256, end of text), <|start|> (257) and unused words. `generate` never needs it; LLM-level tests do.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from octavo.dtypes import HostTensor, QuantFormat
from octavo.errors import CorruptWeights
from octavo.weights.tensor_info import TensorInfo

EOS_ID = 256
ALIGNMENT = 32

# Where a block keeps its float16 scale ("d"), its float16 minimum, and the standard deviation of
# (element / d) for random codes. The minimum is set so that elements have zero mean.
_LAYOUT = {
    QuantFormat.Q4_0: (0, None, 4.6),
    QuantFormat.Q4_1: (0, (2, -7.5), 4.6),
    QuantFormat.Q5_0: (0, None, 9.2),
    QuantFormat.Q5_1: (0, (2, -15.5), 9.2),
    QuantFormat.Q8_0: (0, None, 74.0),
    QuantFormat.Q2_K: (80, (82, 1.5), 14.4),
    QuantFormat.Q3_K: (108, None, 43.0),
    QuantFormat.Q4_K: (0, (2, 7.5), 260.0),
    QuantFormat.Q5_K: (0, (2, 15.5), 530.0),
    QuantFormat.Q6_K: (208, None, 1365.0),
    QuantFormat.IQ4_NL: (0, None, 71.0),
    QuantFormat.IQ4_XS: (0, None, 1310.0),
}


@dataclass(frozen=True)
class TinySource:
    """A WeightSource whose tensors lie in memory."""

    metadata: Mapping[str, object]
    host_tensors: Mapping[str, HostTensor]
    path: Path = Path("tiny.gguf")

    @property
    def paths(self) -> tuple[Path, ...]:
        """No file, but a name for it."""
        return (self.path,)

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Name, shape and format by tensor name."""
        return {
            t.name: TensorInfo(t.name, t.shape, t.format, len(t.data), 0)
            for t in self.host_tensors.values()
        }

    @property
    def num_parameters(self) -> int:
        """Elements of all tensors."""
        return sum(t.num_elements for t in self.host_tensors.values())

    @property
    def file_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(len(t.data) for t in self.host_tensors.values())

    def tensor(self, name: str) -> HostTensor:
        """The tensor of this name."""
        if name not in self.host_tensors:
            raise CorruptWeights(f"no tensor {name}", path=str(self.path), field=name)
        return self.host_tensors[name]

    def close(self) -> None:
        """Nothing to close."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def without(self, *names: str) -> TinySource:
        """A copy that lacks these tensors."""
        kept = {k: v for k, v in self.host_tensors.items() if k not in names}
        return TinySource(self.metadata, kept)

    def with_tensor(self, tensor: HostTensor) -> TinySource:
        """A copy with one tensor added or replaced."""
        return TinySource(self.metadata, {**self.host_tensors, tensor.name: tensor})

    def with_metadata(self, **changes: object) -> TinySource:
        """A copy with other metadata; a double underscore stands for a dot, None removes the key."""
        merged = dict(self.metadata) | {k.replace("__", "."): v for k, v in changes.items()}
        return TinySource({k: v for k, v in merged.items() if v is not None}, self.host_tensors)


def random_tensor(
    name: str,
    shape: tuple[int, ...],
    format_: QuantFormat,
    rng: np.random.Generator,
    std: float | None = None,
) -> HostTensor:
    """Random elements with this standard deviation (default 1 / sqrt(row length)); quantised codes use all bits."""
    std = shape[-1] ** -0.5 if std is None else std
    count = int(np.prod(shape))
    if format_ in _LAYOUT:
        return HostTensor(
            name, shape, format_, memoryview(_random_blocks(count, format_, rng, std))
        )
    values = (rng.standard_normal(count) * std).astype(np.float32)
    return float_tensor(name, values.reshape(shape), format_)


def float_tensor(
    name: str, values: np.ndarray, format_: QuantFormat = QuantFormat.F32
) -> HostTensor:
    """These values as F32, F16 or BF16 (BF16 by cutting the low half)."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    match format_:
        case QuantFormat.F32:
            data = values.tobytes()
        case QuantFormat.F16:
            data = values.astype(np.float16).tobytes()
        case QuantFormat.BF16:
            data = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        case _:
            raise ValueError(f"{format_.name} is not a float format")
    return HostTensor(name, values.shape, format_, memoryview(data))


def _random_blocks(count: int, format_: QuantFormat, rng: np.random.Generator, std: float) -> bytes:
    scale_at, minimum, unit_std = _LAYOUT[format_]
    num_blocks = format_.num_bytes(count) // format_.block_bytes
    blocks = rng.integers(0, 256, (num_blocks, format_.block_bytes), dtype=np.uint8)
    scales = rng.uniform(0.7, 1.3, num_blocks) * std / unit_std
    blocks[:, scale_at : scale_at + 2] = _halves(scales)
    if minimum is not None:
        at, factor = minimum
        blocks[:, at : at + 2] = _halves(scales * factor)
    return blocks.tobytes()


def _halves(values: np.ndarray) -> np.ndarray:
    return values.astype("<f2").view(np.uint8).reshape(-1, 2)


def tiny_source(
    architecture: str = "llama",
    *,
    seed: int = 0,
    num_layers: int | None = None,
    hidden_size: int = 64,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int | None = None,
    intermediate_size: int = 96,
    vocab_size: int = 320,
    context_length: int = 1024,
    formats: Sequence[QuantFormat] = (QuantFormat.F32,),
    embed_format: QuantFormat = QuantFormat.F32,
    is_tied: bool = True,
    has_bias: bool = False,
    window: int = 24,
) -> TinySource:
    """A random model of `architecture` ("llama" or "gemma3")."""
    is_gemma = architecture == "gemma3"
    num_layers = num_layers if num_layers is not None else (7 if is_gemma else 2)
    head_dim = head_dim or (32 if is_gemma else hidden_size // num_heads)
    rng = np.random.default_rng([seed, num_layers, hidden_size])
    tensors: dict[str, HostTensor] = {}

    def matrix(name: str, out: int, in_: int) -> None:
        format_ = formats[len(tensors) % len(formats)]
        # Blocks write about as much as they read, so that the answer depends on all layers.
        tensors[name] = random_tensor(name, (out, in_), format_, rng, 1.5 * in_**-0.5)

    def vector(name: str, size: int, mean: float, spread: float) -> None:
        tensors[name] = float_tensor(name, mean + spread * rng.standard_normal(size))

    # Small against what the layers add: else a tied model repeats its input. gemma3 scales by sqrt(hidden_size).
    embed_std = hidden_size**-0.5 if is_gemma else 0.5
    tensors["token_embd.weight"] = random_tensor(
        "token_embd.weight", (vocab_size, hidden_size), embed_format, rng, embed_std
    )
    q_size, kv_size = num_heads * head_dim, num_kv_heads * head_dim
    for i in range(num_layers):
        pre = f"blk.{i}."
        vector(pre + "attn_norm.weight", hidden_size, 1.0, 0.1)
        for which, size in (("q", q_size), ("k", kv_size), ("v", kv_size)):
            matrix(f"{pre}attn_{which}.weight", size, hidden_size)
            if has_bias:
                vector(f"{pre}attn_{which}.bias", size, 0.0, 0.3)
        matrix(pre + "attn_output.weight", hidden_size, q_size)
        vector(pre + "ffn_norm.weight", hidden_size, 1.0, 0.1)
        matrix(pre + "ffn_gate.weight", intermediate_size, hidden_size)
        matrix(pre + "ffn_up.weight", intermediate_size, hidden_size)
        matrix(pre + "ffn_down.weight", hidden_size, intermediate_size)
        if is_gemma:
            vector(pre + "attn_q_norm.weight", head_dim, 1.5, 0.1)
            vector(pre + "attn_k_norm.weight", head_dim, 1.5, 0.1)
            vector(pre + "post_attention_norm.weight", hidden_size, 2.0, 0.3)
            vector(pre + "post_ffw_norm.weight", hidden_size, 2.0, 0.3)
    vector("output_norm.weight", hidden_size, 4.0 if is_gemma else 1.0, 0.1)
    if not is_tied:
        matrix("output.weight", vocab_size, hidden_size)
    metadata: dict[str, object] = {
        "general.architecture": architecture,
        "general.name": f"tiny {architecture}",
        f"{architecture}.block_count": num_layers,
        f"{architecture}.context_length": context_length,
        f"{architecture}.embedding_length": hidden_size,
        f"{architecture}.feed_forward_length": intermediate_size,
        f"{architecture}.attention.head_count": num_heads,
        f"{architecture}.attention.head_count_kv": num_kv_heads,
        f"{architecture}.attention.layer_norm_rms_epsilon": float(np.float32(1e-6)),
        f"{architecture}.rope.freq_base": 1e6 if is_gemma else 1e4,
    }
    if is_gemma:
        metadata["gemma3.attention.sliding_window"] = window
    if is_gemma or head_dim * num_heads != hidden_size:
        metadata[f"{architecture}.attention.key_length"] = head_dim
        metadata[f"{architecture}.attention.value_length"] = head_dim
    if not is_gemma:
        metadata["llama.rope.dimension_count"] = head_dim
    return TinySource(metadata | tiny_vocabulary(vocab_size), tensors)


def tiny_vocabulary(vocab_size: int) -> dict[str, object]:
    """Tokenizer keys of a byte-level vocabulary without merges."""
    if vocab_size < 258:
        return {}
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    # GPT-2's table: bytes without a printable form are shown as the characters from 256 on, in order.
    rest = [b for b in range(256) if b not in printable]
    shown = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(rest)}
    tokens = [shown[b] for b in range(256)] + ["<|end|>", "<|start|>"]
    tokens += [f"<|unused{i}|>" for i in range(vocab_size - len(tokens))]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([1] * 256 + [3] * (vocab_size - 256), np.int32),
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.bos_token_id": EOS_ID,
        "tokenizer.ggml.eos_token_id": EOS_ID,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": (
            "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}"
            "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
        ),
    }


def write_gguf(source: TinySource, path: Path) -> Path:
    """Write a GGUF version 3 file of this model. Source: the GGUF specification."""
    out = bytearray(
        b"GGUF" + struct.pack("<IQQ", 3, len(source.host_tensors), len(source.metadata))
    )
    for key, value in source.metadata.items():
        out += _string(key) + _typed(value)
    offset = 0
    for tensor in source.host_tensors.values():
        dims = tensor.shape[::-1]
        out += _string(tensor.name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        out += struct.pack("<IQ", tensor.format.type_id, offset)
        offset += _padded(len(tensor.data))
    out += bytes(_padded(len(out)) - len(out))
    for tensor in source.host_tensors.values():
        out += bytes(tensor.data) + bytes(_padded(len(tensor.data)) - len(tensor.data))
    path.write_bytes(out)
    return path


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _typed(value: object) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _string(value)
        case np.ndarray():
            items = value.astype("<i4").tobytes()
            return struct.pack("<IIQ", 9, 5, len(value)) + items
        case list():
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_string, value))
    raise TypeError(f"no GGUF type for {value!r}")
