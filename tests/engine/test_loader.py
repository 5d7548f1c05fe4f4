"""Real models, tiny and of random weights, through plan, load, steps and close."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import pytest

from octavo.config import (
    BackendName,
    CacheConfig,
    ComputeConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
)
from octavo.dtypes import HostTensor, KVDType, QuantFormat
from octavo.engine.engine import Engine
from octavo.engine.loader import load_engine
from octavo.engine.machine import MachineLimits
from octavo.errors import CapacityError, EngineDead
from octavo.messages import AddRequest
from octavo.models.table import read_config
from octavo.params import SamplingParams
from octavo.weights.source import open_weights
from tests.engine.fakes import Collected, run_all
from tests.tiny_models import TinySource, tiny_source, write_gguf

LIMITS = MachineLimits(2, 4 * 2**30, "the test")


def engine_config(
    backend: BackendName, *, num_threads: int = 1, kv: int | None = None, **scheduler: int
) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(model="tiny", max_model_len=96),
        scheduler=SchedulerConfig(**scheduler),
        cache=CacheConfig(kv_cache_memory_bytes=kv),
        compute=ComputeConfig(backend=backend, num_threads=num_threads),
    )


def block_bytes(source: TinySource) -> int:
    return read_config(source).kv_layout(KVDType.F16).block_bytes  # type: ignore[arg-type]


def loaded(source: TinySource, backend: BackendName, **settings: int) -> Engine:
    return load_engine(engine_config(backend, **settings), source, limits=LIMITS)  # type: ignore[arg-type]


def requests() -> list[AddRequest]:
    made = []
    for i, length in enumerate((1, 15, 40, 70)):
        params = SamplingParams(
            temperature=0.0 if i % 2 else 0.9, top_p=0.9, seed=i, n=1 + i % 3, max_tokens=12, logprobs=1,
            prompt_logprobs=2 if i == 2 else None,
        )  # fmt: skip
        made.append(
            AddRequest(f"r{i}", [(7 * i + j * j) % 256 for j in range(length)], params, [256])
        )
    return made


Answers = dict[tuple[str, int], tuple[list[int], list[float]]]


def answers(engine: Engine, is_poisoned: bool = False) -> Answers:
    if is_poisoned:
        engine.fill_kv(math.nan)
    got = run_all(engine, requests())
    return everything(got)


def alone(engine: Engine) -> Answers:
    found: Answers = {}
    for message in requests():
        found |= everything(run_all(engine, [message]))
    return found


def everything(got: Collected) -> Answers:
    """Ids and all logprobs of each choice."""
    return {
        key: (ids, [s.logprob for s in got.scores[key] + got.prompt_scores[key[0]]])
        for key, ids in got.token_ids.items()
    }


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_alone_together_chunked_preempted_and_poisoned_give_the_same_bits(architecture) -> None:
    backend = BackendName.NATIVE
    source = tiny_source(architecture, formats=(QuantFormat.Q8_0, QuantFormat.Q4_1))
    expected = alone(loaded(source, backend))
    assert answers(loaded(source, backend), is_poisoned=True) == expected
    for settings in (
        {"max_num_batched_tokens": 16},
        {"max_num_batched_tokens": 1},
        {"num_threads": 2},
        {"kv": 7 * block_bytes(source)},
    ):
        engine = loaded(source, backend, **settings)
        assert answers(engine) == expected, settings
        assert (engine.stats().num_preemptions > 0) == ("kv" in settings)
        engine.close()


def test_reference_backend_answers_too() -> None:
    """Its sums are numpy's, whose order depends on the batch: no bits are compared."""
    engine = loaded(tiny_source(), BackendName.REFERENCE)
    assert engine.info.kernel_table == "reference"
    assert set(answers(engine)) == {
        (r.request_id, i) for r in requests() for i in range(r.params.n)
    }
    engine.close()


def test_engine_of_a_file_answers_logs_its_plan_and_closes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_gguf(tiny_source(), tmp_path / "tiny.gguf")
    with caplog.at_level(logging.INFO, logger="octavo.engine"), open_weights(path) as weights:
        engine = load_engine(engine_config(BackendName.NATIVE), weights, limits=LIMITS)
    blocks = [r.getMessage() for r in caplog.records if r.name == "octavo.engine.loader"]
    assert len(blocks) == 2
    assert "context" in blocks[0]
    assert engine.info.kernel_table in blocks[1]
    assert engine.info.max_model_len == 96
    run_all(engine, requests()[:1])
    engine.close()
    with pytest.raises(EngineDead):
        engine.add(requests()[0])


def test_plan_refuses_before_a_weight_is_read() -> None:
    class Unread(TinySource):
        def tensor(self, name: str) -> HostTensor:
            raise AssertionError("a weight was read")

    source = tiny_source()
    unread = Unread(source.metadata, source.host_tensors)
    with pytest.raises(CapacityError, match="does not fit"):
        load_engine(
            engine_config(BackendName.REFERENCE),
            unread,
            limits=MachineLimits(1, 2**20, "the test"),  # type: ignore[arg-type]
        )
