"""Facts of files that say little, or odd things."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from octavo.dtypes import HostTensor, QuantFormat
from octavo.weights.facts import ModelFacts, describe
from octavo.weights.source import open_weights
from octavo.weights.writer import write_gguf


def facts_of(tmp_path: Path, metadata: dict[str, object], *tensors: HostTensor) -> ModelFacts:
    path = tmp_path / "model.gguf"
    write_gguf(path, metadata, tensors)
    with open_weights(path) as source:
        return describe(source)


def test_a_bare_file_has_no_facts_and_none_is_guessed(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, {})
    assert facts.architecture is None
    assert facts.head_dim is None
    assert facts.quantization is None
    assert facts.num_tensors == facts.num_parameters == 0


def test_without_file_type_the_quantization_is_the_type_with_most_bytes(tmp_path: Path) -> None:
    small = HostTensor("n", (8,), QuantFormat.F32, memoryview(bytes(32)))
    large = HostTensor("w", (8, 256), QuantFormat.Q6_K, memoryview(bytes(8 * 210)))
    facts = facts_of(tmp_path, {"general.file_type": 9999}, small, large)
    assert facts.quantization == "Q6_K"
    assert list(facts.to_dict()["tensor_types"]) == ["Q6_K", "F32"]  # type: ignore[call-overload]


def test_heads_that_differ_by_layer_are_listed(tmp_path: Path) -> None:
    metadata: dict[str, object] = {
        "general.architecture": "odd",
        "odd.embedding_length": 64,
        "odd.attention.head_count": np.array([4, 4], np.int32),
        "odd.attention.head_count_kv": np.array([4, 2], np.int32),
    }
    facts = facts_of(tmp_path, metadata)
    assert (facts.num_heads, facts.head_dim, facts.num_kv_heads) == (4, 16, (4, 2))
    assert facts.to_dict()["num_kv_heads"] == [4, 2]


def test_facts_are_json_whatever_the_file_says(tmp_path: Path) -> None:
    metadata: dict[str, object] = {
        "general.architecture": "llama",
        "general.name": "bad \udcff bytes",
        "llama.block_count": "thirty",
        "llama.context_length": True,
        "llama.attention.head_count": 0,
        "llama.embedding_length": np.float32(1.5),
        "tokenizer.chat_template": "{{ messages }}",
    }
    facts = facts_of(tmp_path, metadata)
    assert facts.name == "bad � bytes"
    assert (facts.num_layers, facts.context_length, facts.hidden_size) == (None, None, None)
    assert facts.has_chat_template
    assert json.loads(json.dumps(facts.to_dict(), ensure_ascii=False))["name"] == facts.name
