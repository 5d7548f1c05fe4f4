"""Tiny models on real backends: what one engine stored, the next one answers from with the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.config import (
    ActivationPrecision,
    BackendName,
    CacheConfig,
    ComputeConfig,
    EngineConfig,
    ModelConfig,
)
from octavo.dtypes import KVDType, QuantFormat
from octavo.engine.engine import Engine
from octavo.engine.loader import load_engine
from octavo.engine.machine import MachineLimits
from octavo.errors import InvalidRequest
from octavo.messages import AddRequest
from octavo.ops.native.backend import supported_isas
from octavo.params import SamplingParams
from octavo.weights.source import open_weights
from tests.engine.fakes import Collected, run_all
from tests.tiny_models import TinySource, tiny_source, write_gguf

LIMITS = MachineLimits(2, 4 * 2**30, "the test")
PROMPT = [(7 * i + i * i) % 256 for i in range(70)]
FORMATS = (QuantFormat.Q8_0, QuantFormat.Q4_1)


def loaded(
    directory: Path | None,
    source: TinySource | None = None,
    *,
    digest: str | None = "d",
    kv_cache_dtype: KVDType = KVDType.F16,
    **compute: object,
) -> Engine:
    compute = {"backend": BackendName.NATIVE, "num_threads": 1, **compute}
    config = EngineConfig(
        model=ModelConfig(model="tiny", max_model_len=128),
        cache=CacheConfig(
            kv_disk=None if directory is None else str(directory), kv_cache_dtype=kv_cache_dtype
        ),
        compute=ComputeConfig(**compute),  # type: ignore[arg-type]
    )
    model = source or tiny_source(formats=FORMATS)
    return load_engine(config, model, limits=LIMITS, digest=digest)  # type: ignore[arg-type]


def answer(engine: Engine) -> tuple[list[int], list[float], int]:
    """Ids, log-probabilities, cached tokens; the engine ends afterwards."""
    params = SamplingParams(temperature=0.0, max_tokens=12, logprobs=1, seed=1)
    got: Collected = run_all(engine, [AddRequest("a", PROMPT, params)])
    assert engine._disk is None or engine._disk.drain(10)
    engine.close()
    scores = [score.logprob for score in got.scores["a", 0]]
    return got.token_ids["a", 0], scores, got.ends["a", 0].num_cached_tokens


@pytest.mark.parametrize("backend", BackendName)
@pytest.mark.parametrize("kv_cache_dtype", KVDType)
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_the_bits_are_the_same_after_a_restart(
    tmp_path: Path, architecture: str, kv_cache_dtype: KVDType, backend: BackendName
) -> None:
    source = tiny_source(architecture, formats=FORMATS)
    cold, first, second = (
        answer(loaded(directory, source, kv_cache_dtype=kv_cache_dtype, backend=backend))
        for directory in (None, tmp_path, tmp_path)
    )
    assert (cold[2], first[2], second[2]) == (0, 0, 64)
    assert cold == first
    assert second[0] == cold[0]
    if backend is BackendName.NATIVE:  # sums of the other depend on the batch
        assert second[1] == cold[1]


def test_what_could_have_other_bits_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tiny_source(formats=FORMATS)
    rope = source.with_metadata(llama__rope__freq_base=500_000.0)
    _, _, num_cached = answer(loaded(tmp_path, source))
    others = {
        "model": loaded(tmp_path, source, digest="e"),
        "rope": loaded(tmp_path, rope),
        "kv type": loaded(tmp_path, source, kv_cache_dtype=KVDType.F32),
        "backend": loaded(tmp_path, source, backend=BackendName.REFERENCE),
        "activations": loaded(tmp_path, source, activation_precision=ActivationPrecision.INT8X2),
    }
    for isa in supported_isas()[1:]:
        others[isa] = loaded(tmp_path, source, isa=isa)
    monkeypatch.setattr("octavo.engine.disk.NUMERICS", 1000)
    others["numerics"] = loaded(tmp_path, source)
    monkeypatch.undo()
    for name, engine in others.items():
        assert answer(engine)[2] == 0, name
    assert num_cached == 0
    assert answer(loaded(tmp_path, source, num_threads=2))[2] == 64


def test_a_file_outside_the_store_is_known_by_its_tensors_size_and_time(tmp_path: Path) -> None:
    path = write_gguf(tiny_source(formats=FORMATS), tmp_path / "tiny.gguf")

    def num_cached() -> int:
        with open_weights(path) as weights:
            engine = loaded(tmp_path / "kv", weights, digest=None)  # type: ignore[arg-type]
        return answer(engine)[2]

    assert [num_cached(), num_cached()] == [0, 64]
    path.touch()
    assert num_cached() == 0


def test_two_engines_share_a_directory(tmp_path: Path) -> None:
    first, second = loaded(tmp_path), loaded(tmp_path)
    cold = answer(first)
    assert answer(second)[:2] == cold[:2], "which did not know of the other's blocks"
    assert len(list(tmp_path.glob("*/*/*.kv"))) == 5
    assert answer(loaded(tmp_path)) == (*cold[:2], 64)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"kv_disk_size": 100}, "kv_disk_size"),
        ({"enable_prefix_caching": False}, "kv_disk"),
        ({"kv_disk": "/proc/nowhere"}, "kv_disk"),
    ],
)
def test_a_tier_that_cannot_be_is_refused(
    tmp_path: Path, change: dict[str, object], param: str
) -> None:
    cache = CacheConfig(**{"kv_disk": str(tmp_path), **change})  # type: ignore[arg-type]
    config = EngineConfig(model=ModelConfig(model="tiny", max_model_len=96), cache=cache)
    with pytest.raises(InvalidRequest) as raised:
        load_engine(config, tiny_source(), limits=LIMITS, digest="d")  # type: ignore[arg-type]
    assert raised.value.param == param
