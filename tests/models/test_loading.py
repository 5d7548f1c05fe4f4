"""Reading a model's numbers and tensors: what is accepted, what is refused and what the message says."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.dtypes import KVDType, QuantFormat
from octavo.errors import CorruptWeights, ModelError, UnsupportedArchitecture
from octavo.kv_layout import KVLayout
from octavo.models.base import LoadedModel
from octavo.models.table import load_model, read_config
from octavo.ops.protocol import AttentionSpec, Ops, RopeOrder, RopeSpec
from octavo.ops.reference import ReferenceOps
from octavo.weights.quant import dequantize
from octavo.weights.source import open_weights
from tests.ops.batches import Chunk, make_batch
from tests.tiny_models import TinySource, float_tensor, tiny_source, write_gguf


def _load(source: TinySource) -> LoadedModel:
    return load_model(source, ReferenceOps(dequantize))


class RecordingOps(ReferenceOps):
    """Notes how attention and rope are called; attention itself passes q on."""

    def __init__(self) -> None:
        super().__init__(dequantize)
        self.ropes: list[RopeSpec] = []
        self.attentions: list[AttentionSpec] = []

    def rope(self, x: Any, spec: RopeSpec, batch: Any) -> Any:
        self.ropes.append(spec)
        return x

    def attention(self, q: Any, k: Any, v: Any, spec: AttentionSpec, batch: Any) -> Any:
        self.attentions.append(spec)
        return q


def _record(source: TinySource) -> RecordingOps:
    ops = RecordingOps()
    load_model(source, ops).model.forward(ops, make_batch([Chunk([1, 2], 0, [0])]))
    return ops


def test_config_holds_the_numbers_of_the_model():
    source = tiny_source("gemma3", num_layers=7, hidden_size=64, num_heads=4, head_dim=32)
    config = read_config(source)
    assert (config.name, config.architecture) == ("tiny gemma3", "gemma3")
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (7, 4, 2)
    assert (config.hidden_size, config.head_dim, config.intermediate_size) == (64, 32, 96)
    assert (config.vocab_size, config.context_length) == (320, 1024)
    assert config.num_parameters == source.num_parameters
    assert config.kv_layout(KVDType.F16) == KVLayout(7, 2, 32, KVDType.F16)


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_a_file_loads_like_the_same_model_in_memory(architecture: str, tmp_path: Path):
    source = tiny_source(architecture, formats=(QuantFormat.Q8_0, QuantFormat.Q4_1))
    with open_weights(write_gguf(source, tmp_path / "tiny.gguf")) as opened:
        assert read_config(opened) == read_config(source)
        from_file = load_model(opened, ReferenceOps(dequantize)).model
    ops = ReferenceOps(dequantize)
    rows = np.random.default_rng(1).standard_normal((2, 64)).astype(np.float32)
    in_memory = _load(source).model
    np.testing.assert_array_equal(from_file.logits(ops, rows), in_memory.logits(ops, rows))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"llama__attention__head_count": 0}, "llama.attention.head_count"),
        ({"llama__block_count": 3}, "llama.block_count is 3, .* 2 layers"),
        ({"llama__block_count": 1}, "llama.block_count is 1, .* 2 layers"),
        ({"llama__block_count": None}, "llama.block_count is missing"),
        ({"llama__context_length": None}, "llama.context_length is missing"),
        ({"llama__embedding_length": "64"}, "llama.embedding_length must be a whole number"),
        ({"llama__embedding_length": True}, "llama.embedding_length"),
        ({"llama__embedding_length": 128}, "token_embd.weight has shape .* implies"),
        ({"llama__feed_forward_length": 97}, "blk.0.ffn_gate.weight has shape"),
        ({"llama__attention__head_count_kv": 3}, "llama.attention.head_count_kv"),
        ({"llama__attention__layer_norm_rms_epsilon": None}, "layer_norm_rms_epsilon is missing"),
        ({"llama__attention__layer_norm_rms_epsilon": float("nan")}, "layer_norm_rms_epsilon"),
        ({"llama__rope__freq_base": -1.0}, "llama.rope.freq_base"),
        ({"llama__rope__dimension_count": 15}, "llama.rope.dimension_count"),
        ({"llama__rope__dimension_count": 18}, "llama.rope.dimension_count"),
        ({"llama__rope__scaling__type": 3}, "llama.rope.scaling.type"),
        ({"general__architecture": None}, "general.architecture"),
    ],
)
def test_ggf_10_a_wrong_number_is_refused_by_name(changes: dict[str, object], named: str):
    with pytest.raises(CorruptWeights, match=named):
        _load(tiny_source("llama").with_metadata(**changes))


def test_ggf_10_an_unknown_architecture_lists_the_supported_ones():
    source = tiny_source("llama").with_metadata(general__architecture="warpdrive")
    with pytest.raises(UnsupportedArchitecture, match=r"'warpdrive'.*supported: gemma3, llama"):
        read_config(source)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"llama__expert_count": 8}, "mixture-of-experts"),
        ({"llama__rope__scaling__type": "yarn"}, "yarn.*supported: none, linear"),
        ({"llama__attention__value_length": 32}, "value_length"),
        ({"llama__attention__head_count_kv": np.array([2, 1])}, "differs between layers"),
    ],
)
def test_a_variant_octavo_lacks_is_refused_by_name(changes: dict[str, object], named: str):
    with pytest.raises(UnsupportedArchitecture, match=named):
        _load(tiny_source("llama").with_metadata(**changes))


@pytest.mark.parametrize(
    "name",
    ["token_embd.weight", "output_norm.weight", "blk.1.attn_k.weight", "blk.0.ffn_up.weight"],
)
def test_a_missing_tensor_is_named(name: str):
    with pytest.raises(CorruptWeights, match=rf"{name} is missing"):
        _load(tiny_source("llama").without(name))


def test_tensors_nothing_reads_are_refused():
    extra = float_tensor("blk.0.ffn_sub_norm.weight", np.ones(96))
    with pytest.raises(
        UnsupportedArchitecture, match=r"not supported: blk\.0\.ffn_sub_norm\.weight"
    ):
        _load(tiny_source("llama").with_tensor(extra))


def test_every_fault_is_a_model_error():
    assert issubclass(CorruptWeights, ModelError)
    assert issubclass(UnsupportedArchitecture, ModelError)


def test_a_count_given_per_layer_is_taken_if_equal():
    source = tiny_source("llama").with_metadata(llama__attention__head_count_kv=np.array([2, 2]))
    assert read_config(source).num_kv_heads == 2


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_ggf_13_a_tied_head_is_held_once(architecture: str):
    names = []

    class CountingOps(ReferenceOps):
        def weight(self, tensor: Any) -> Any:
            names.append(tensor.name)
            return super().weight(tensor)

    load_model(tiny_source(architecture), CountingOps(dequantize))
    assert names.count("token_embd.weight") == 1
    assert "output.weight" not in names


def test_an_untied_head_is_used():
    tied, untied = tiny_source("llama"), tiny_source("llama", is_tied=False)
    ops: Ops[Any, Any] = ReferenceOps(dequantize)
    rows = np.ones((1, 64), np.float32)
    assert not np.allclose(
        _load(tied).model.logits(ops, rows), _load(untied).model.logits(ops, rows)
    )


def test_llama_rotates_adjacent_pairs_with_factors_and_linear_scaling():
    factors = np.arange(1.0, 9.0)
    source = (
        tiny_source("llama")
        .with_tensor(float_tensor("rope_freqs.weight", factors))
        .with_metadata(llama__rope__scaling__type="linear", llama__rope__scaling__factor=4.0)
    )
    spec = _record(source).ropes[0]
    assert spec == RopeSpec(16, 16, 10000.0, RopeOrder.ADJACENT, 4.0, tuple(factors))


def test_rope_scaling_type_none_wins_over_a_factor():
    source = tiny_source("llama").with_metadata(
        llama__rope__scaling__type="none", llama__rope__scaling__factor=4.0
    )
    assert _record(source).ropes[0].linear_factor == 1.0


def test_gemma_alternates_five_local_layers_with_one_global():
    ops = _record(tiny_source("gemma3", num_layers=12, window=24))
    windows = [spec.window for spec in ops.attentions]
    assert windows == [24, 24, 24, 24, 24, None] * 2
    assert [rope.base for rope in ops.ropes[::2]] == [1e4, 1e4, 1e4, 1e4, 1e4, 1e6] * 2
    assert {rope.order for rope in ops.ropes} == {RopeOrder.NEOX}
    assert {spec.scale for spec in ops.attentions} == {32**-0.5}
    assert [spec.layer for spec in ops.attentions] == list(range(12))


def test_gemma_squeezes_positions_in_global_layers_only():
    source = tiny_source("gemma3").with_metadata(gemma3__rope__scaling__factor=8.0)
    assert [rope.linear_factor for rope in _record(source).ropes[::2]] == [1, 1, 1, 1, 1, 8, 1]


def test_gemma_takes_what_a_file_says_over_the_defaults():
    source = tiny_source("gemma3", num_layers=4).with_metadata(
        gemma3__rope__freq_base_swa=5000.0,
        gemma3__attention__sliding_window_pattern=2,
        gemma3__attention__scale=0.25,
    )
    ops = _record(source)
    assert [rope.base for rope in ops.ropes[::2]] == [5000.0, 1e6, 5000.0, 1e6]
    assert {spec.scale for spec in ops.attentions} == {0.25}


def test_gemma_final_softcap_bounds_the_logits():
    source = tiny_source("gemma3").with_metadata(gemma3__final_logit_softcapping=0.5)
    logits = _load(source).model.logits(ReferenceOps(dequantize), np.ones((1, 64), np.float32))
    assert np.abs(logits).max() <= 0.5


def test_defaults_taken_are_logged_once(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, logger="octavo.models"):
        _load(tiny_source("gemma3"))
    lines = [r.getMessage() for r in caplog.records]
    assert len(lines) == 1
    assert "gemma3.rope.freq_base_swa = 10000.0" in lines[0]
    assert "gemma3.attention.sliding_window_pattern = 6" in lines[0]
