"""Model files with random weights."""

from __future__ import annotations

from collections import Counter
from math import prod
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from octavo import LLM, SamplingParams
from octavo.bench.make_model import (
    RandomModelConfig,
    borrow_tokenizer,
    llama_metadata,
    llama_tensors,
    make_model,
)
from octavo.bench.model_shapes import MIXES, SHAPES, SizeName, TypeName
from octavo.bench.random_weights import RandomTensor
from octavo.dtypes import HostTensor, QuantFormat
from octavo.errors import InvalidRequest
from octavo.weights.quant import dequantize
from octavo.weights.source import open_weights

WRITTEN = sorted({f for m in MIXES.values() for f in (m.base, m.head)}, key=lambda f: f.name)


@pytest.mark.parametrize("format_", WRITTEN, ids=lambda f: f.name)
def test_random_weights_have_the_deviation_asked_for(format_: QuantFormat) -> None:
    tensor = RandomTensor("w", (64, 2048), format_, (0, 1), std=0.02)
    values = dequantize(HostTensor("w", tensor.shape, format_, tensor.data))
    assert np.isfinite(values).all()
    assert values.std() == pytest.approx(0.02, rel=0.06)
    assert abs(values.mean()) < 0.0006
    assert bytes(tensor.data) == bytes(tensor.data)
    assert tensor.data.nbytes == tensor.num_bytes


def test_tensors_differ_by_their_seed() -> None:
    one, other = (RandomTensor("w", (8, 256), QuantFormat.Q4_K, (0, i), 1.0).data for i in (1, 2))
    assert bytes(one) != bytes(other)


@pytest.mark.parametrize(
    ("size", "num_parameters"),
    [("1b", 1_235_814_400), ("3b", 3_212_749_824), ("8b", 8_030_261_248)],
)
def test_shapes_have_the_parameters_of_the_real_models(size: SizeName, num_parameters: int) -> None:
    """The published counts, which leave the 32 or 64 divisors of the rotation out."""
    tensors = llama_tensors(SHAPES[size], MIXES["q4_k_m"], 128256, seed=0)
    assert sum(prod(tensor.shape) for tensor in tensors) == num_parameters


def test_q4_k_m_gives_the_sensitive_tensors_six_bits() -> None:
    tensors = {t.name: t.format for t in llama_tensors(SHAPES["8b"], MIXES["q4_k_m"], 128256, 0)}
    heavy = {int(n.split(".")[1]) for n, f in tensors.items() if "attn_v" in n and f.name == "Q6_K"}
    assert heavy == {*range(4), 6, 9, 12, 15, 18, 21, 24, 27, *range(28, 32)}
    assert heavy == {
        int(n.split(".")[1]) for n, f in tensors.items() if "ffn_down" in n and f.name == "Q6_K"
    }
    assert (tensors["token_embd.weight"].name, tensors["output.weight"].name) == ("Q4_K", "Q6_K")
    rest = {n: f.name for n, f in tensors.items() if "attn_v" not in n and "ffn_down" not in n}
    assert Counter(rest.values()) == {"Q4_K": 32 * 5 + 1, "Q6_K": 1, "F32": 65}
    tied = {t.name: t.format for t in llama_tensors(SHAPES["1b"], MIXES["q4_k_m"], 128256, 0)}
    assert tied["token_embd.weight"] is QuantFormat.Q6_K
    assert "output.weight" not in tied


@pytest.mark.parametrize("size", get_args(SizeName))
@pytest.mark.parametrize("type_", get_args(TypeName))
def test_every_row_is_whole_blocks(size: SizeName, type_: TypeName) -> None:
    for tensor in llama_tensors(SHAPES[size], MIXES[type_], 49152, 0):
        assert tensor.shape[-1] % tensor.format.block_len == 0


def test_the_metadata_has_the_keys_that_readers_need() -> None:
    metadata = llama_metadata(SHAPES["3b"], MIXES["q4_k_m"], 128256)
    assert {
        "general.architecture": "llama",
        "general.file_type": 15,
        "llama.block_count": 28,
        "llama.embedding_length": 3072,
        "llama.feed_forward_length": 8192,
        "llama.attention.head_count": 24,
        "llama.attention.head_count_kv": 8,
        "llama.rope.dimension_count": 128,
        "llama.context_length": 131072,
        "llama.vocab_size": 128256,
    }.items() <= metadata.items()
    assert metadata["llama.attention.layer_norm_rms_epsilon"] == pytest.approx(1e-5)


def test_a_borrowed_vocabulary_is_filled_up() -> None:
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["a", "b"],
        "tokenizer.ggml.token_type": np.array([1, 3], np.int32),
        "tokenizer.ggml.scores": np.array([0.0, -1.0], np.float32),
        "llama.block_count": 3,
    }
    keys = borrow_tokenizer(metadata, 4)
    assert keys["tokenizer.ggml.tokens"] == ["a", "b", "<|unused_0|>", "<|unused_1|>"]
    assert list(keys["tokenizer.ggml.token_type"]) == [1, 3, 5, 5]  # type: ignore[call-overload]
    assert len(keys["tokenizer.ggml.scores"]) == 4  # type: ignore[arg-type]
    assert "llama.block_count" not in keys
    assert borrow_tokenizer(metadata, 1)["tokenizer.ggml.tokens"] == ["a", "b"]
    with pytest.raises(InvalidRequest, match="no vocabulary"):
        borrow_tokenizer({}, 4)


def test_a_file_is_written_once_and_answers(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "random.gguf"
    config = RandomModelConfig(size="tiny", type="q4_k_m")
    seen: list[tuple[int, int]] = []
    facts = make_model(
        out, tiny, config, on_progress=lambda _, done, all_: seen.append((done, all_))
    )
    assert facts["file_bytes"] == out.stat().st_size
    assert seen[-1][0] == seen[-1][1]
    with open_weights(out) as source:
        assert source.num_parameters == facts["num_parameters"]
    with pytest.raises(InvalidRequest, match="exists"):
        make_model(out, tiny, config)
    with LLM(out, backend="reference", max_model_len=64) as llm:
        params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=0)
        [output] = llm.generate("hello", params, use_tqdm=False)
        assert len(output.outputs[0].token_ids) == 4
        assert output.outputs[0].cumulative_logprob is not None
        assert np.isfinite(output.outputs[0].cumulative_logprob)
