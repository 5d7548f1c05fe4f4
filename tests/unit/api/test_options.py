from __future__ import annotations

from pathlib import Path

import pytest

from octavo.api.options import engine_config
from octavo.config import ActivationPrecision, BackendName, EngineConfig, ModelConfig
from octavo.dtypes import KVDType
from octavo.errors import InvalidRequest


def test_no_keywords_give_the_defaults() -> None:
    assert engine_config("smollm2", {}) == EngineConfig(model=ModelConfig(model="smollm2"))


def test_keywords_land_in_their_part_of_the_configuration() -> None:
    config = engine_config(
        Path("m.gguf"),
        {
            "max_model_len": 256,
            "max_num_seqs": 3,
            "kv_cache_dtype": "float32",
            "kv_cache_memory_bytes": "1MiB",
            "enable_prefix_caching": False,
            "num_threads": 1,
            "backend": "reference",
            "activation_precision": "int8x2",
        },
    )
    assert (config.model.model, config.model.max_model_len) == ("m.gguf", 256)
    assert config.scheduler.max_num_seqs == 3
    assert config.cache.kv_cache_dtype is KVDType.F32
    assert config.cache.kv_cache_memory_bytes == 2**20
    assert not config.cache.enable_prefix_caching
    assert (config.compute.num_threads, config.compute.backend) == (1, BackendName.REFERENCE)
    assert config.compute.activation_precision is ActivationPrecision.INT8X2


def test_vllms_keywords_are_accepted() -> None:
    options = {
        "tensor_parallel_size": 1,
        "dtype": "half",
        "gpu_memory_utilization": 0.9,
        "trust_remote_code": True,
        "enforce_eager": True,
    }
    assert engine_config("m", options) == engine_config("m", {})


@pytest.mark.parametrize(
    ("name", "near"), [("max_model_length", "max_model_len"), ("num_thread", "num_threads")]
)
def test_an_unknown_keyword_is_refused_with_the_near_one(name: str, near: str) -> None:
    with pytest.raises(TypeError, match=f"{name}.*{near}"):
        engine_config("m", {name: 1})


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"tensor_parallel_size": 2}, "tensor_parallel_size"),
        ({"dtype": "int3"}, "dtype"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization"),
        ({"kv_cache_dtype": "int1"}, "kv_cache_dtype"),
        ({"backend": "abacus"}, "backend"),
    ],
)
def test_an_impossible_value_names_its_keyword(options: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        engine_config("m", options)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("auto", None),
        ("f16", KVDType.F16),
        ("float16", KVDType.F16),
        ("bfloat16", KVDType.BF16),
        ("bf16", KVDType.BF16),
        ("fp8", KVDType.FP8_E4M3),
        ("fp8_e4m3", KVDType.FP8_E4M3),
        ("fp8_e5m2", KVDType.FP8_E5M2),
        ("INT8", KVDType.INT8),
        ("int8/int4", KVDType.INT8_INT4),
        ("int8-int4", KVDType.INT8_INT4),
        ("int4", KVDType.INT4),
        (KVDType.INT4, KVDType.INT4),
    ],
)
def test_kv_types_have_vllm_spellings(name: str | KVDType, dtype: KVDType | None) -> None:
    assert engine_config("m", {"kv_cache_dtype": name}).cache.kv_cache_dtype is dtype


def test_a_build_can_be_left_aside_or_named() -> None:
    assert engine_config("m", {}).model.build
    config = engine_config("m", {"build": False, "build_file": "x.octavo"})
    assert (config.model.build, config.model.build_file) == (False, "x.octavo")
