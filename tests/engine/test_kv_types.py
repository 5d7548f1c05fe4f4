"""Every KV type through a whole engine: what is kept, shared, dropped or preempted shows in no answer."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

import pytest

from octavo.config import (
    BackendName,
    CacheConfig,
    ComputeConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
)
from octavo.dtypes import KVDType, QuantFormat
from octavo.engine.engine import Engine
from octavo.engine.kv_costs import QUALITY_COST_BY_KV_DTYPE, describe_kv_type, quality_warning
from octavo.engine.loader import load_engine
from octavo.engine.machine import MachineLimits
from octavo.kv_layout import KVLayout
from octavo.messages import AddRequest
from octavo.models.table import read_config
from tests.engine.fakes import Collected, request, run_all
from tests.tiny_models import TinySource, tiny_source

LIMITS = MachineLimits(2, 4 * 2**30, "the test")
SHARED = [(5 * i + i * i) % 251 for i in range(75)]

Answers = dict[tuple[str, int], tuple[list[int], list[float]]]


@pytest.fixture(params=list(KVDType), ids=lambda dtype: dtype.name)
def dtype(request: pytest.FixtureRequest) -> KVDType:
    chosen: KVDType = request.param
    return chosen


def source() -> TinySource:
    return tiny_source("gemma3", formats=(QuantFormat.Q8_0, QuantFormat.Q4_1))


def loaded(dtype: KVDType, *, is_caching: bool, num_blocks: int = 60, **scheduler: int) -> Engine:
    weights = source()
    layout = read_config(weights).kv_layout(dtype)  # type: ignore[arg-type]
    config = EngineConfig(
        model=ModelConfig(model="tiny", max_model_len=128),
        scheduler=SchedulerConfig(**scheduler),
        cache=CacheConfig(
            kv_cache_dtype=dtype,
            kv_cache_memory_bytes=num_blocks * layout.block_bytes,
            enable_prefix_caching=is_caching,
        ),
        compute=ComputeConfig(backend=BackendName.NATIVE, num_threads=2),
    )
    engine = load_engine(config, weights, limits=LIMITS)  # type: ignore[arg-type]
    assert engine.info.num_blocks == num_blocks
    engine.fill_kv(math.nan)
    return engine


def requests() -> list[AddRequest]:
    return [
        request(f"r{i}", [*SHARED[:shared], i, *range(i, 2 * i)], max_tokens=14, logprobs=1, eos=[])
        for i, shared in enumerate((75, 75, 40, 13, 75, 64))
    ]


def everything(got: Collected) -> Answers:
    return {key: (ids, [s.logprob for s in got.scores[key]]) for key, ids in got.token_ids.items()}


def one_by_one(engine: Engine) -> Answers:
    found: Answers = {}
    for message in requests():
        found |= everything(run_all(engine, [message]))
    return found


def test_cache_on_or_off_evicted_or_preempted_gives_the_same_bits(dtype: KVDType) -> None:
    plain = loaded(dtype, is_caching=False)
    expected = one_by_one(plain)
    assert plain.stats().num_cached_tokens == 0
    assert all(math.isfinite(x) for _, scores in expected.values() for x in scores)
    plain.close()

    caching = loaded(dtype, is_caching=True)
    assert one_by_one(caching) == expected  # a prefix ends inside a block: that one is copied
    assert caching.stats().num_cached_tokens > 150
    assert everything(run_all(caching, requests())) == expected
    caching.close()

    for num_blocks, settings in ((8, {}), (14, {"max_num_batched_tokens": 16})):
        narrow = loaded(dtype, is_caching=True, num_blocks=num_blocks, **settings)
        assert everything(run_all(narrow, requests())) == expected
        assert narrow.stats().num_preemptions > 0 or num_blocks > 8
        narrow.close()


def test_the_start_says_what_the_type_gains_and_costs(
    dtype: KVDType, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="octavo.engine"):
        loaded(dtype, is_caching=True).close()
    start = next(r.getMessage() for r in caplog.records if "bytes a token" in r.getMessage())
    assert f"KV cache of {dtype.value}: " in start
    assert ("perplexity" in start) == (dtype is not KVDType.F16)
    warned = [r for r in caplog.records if r.levelno == logging.WARNING and "perplex" in r.message]
    assert len(warned) == (dtype is KVDType.INT4)


def test_costs_are_within_what_is_promised() -> None:
    most = {
        KVDType.INT8: (0.5, 1.0),
        KVDType.FP8_E4M3: (1.0, 1.0),
        KVDType.INT8_INT4: (2.5, 3.0),
    }
    assert set(QUALITY_COST_BY_KV_DTYPE) == set(KVDType)
    for dtype, (smollm2, gemma3) in most.items():
        assert QUALITY_COST_BY_KV_DTYPE[dtype].smollm2 <= smollm2
        assert QUALITY_COST_BY_KV_DTYPE[dtype].gemma3 <= gemma3


def test_gain_is_that_of_the_layout() -> None:
    layout = KVLayout(30, 3, 64, KVDType.INT8)
    assert "11880 bytes a token, 1.94 times the tokens of f16" in describe_kv_type(layout)
    assert describe_kv_type(replace(layout, dtype=KVDType.F16)).endswith("23040 bytes a token")
    assert quality_warning(KVDType.INT8_INT4) is None
