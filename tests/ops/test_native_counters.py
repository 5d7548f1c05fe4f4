"""The executor counts what its operations take."""

from __future__ import annotations

import pytest

from octavo.dtypes import KVDType, QuantFormat
from octavo.models.table import load_model
from octavo.observability.op_costs import OpCost
from octavo.ops.native import NativeExecutor
from tests.ops.batches import generate
from tests.ops.native_backends import ISAS, native
from tests.tiny_models import tiny_source

NUM_LAYERS = 2
PROMPT = [1, 2, 3, 4, 5]


@pytest.fixture(scope="module")
def executor() -> NativeExecutor:
    backend = native(ISAS[0], num_threads=1)
    formats = {"formats": (QuantFormat.Q8_0,), "embed_format": QuantFormat.F16}
    source = tiny_source("llama", num_layers=NUM_LAYERS, **formats)
    loaded = load_model(source, backend.ops)
    return backend.compile(loaded.model, loaded.config.kv_layout(KVDType.F16), 8, 64)


def test_macs_and_bytes_are_those_of_the_model(executor: NativeExecutor) -> None:
    executor.set_counting(True)
    generate(executor, PROMPT, 3)  # the prompt in one step, then two steps of one token
    executor.set_counting(False)
    costs = executor.op_costs()
    num_tokens, num_steps = len(PROMPT) + 2, 3
    work = executor.work
    assert work is not None
    products = [cost for cost in costs if cost.name.startswith("multiply")]
    assert sum(cost.macs for cost in products) == (
        num_tokens * work.body.int8_macs + num_steps * work.head.float_macs
    )
    assert sum(cost.weight_bytes for cost in products) == num_steps * work.weight_bytes
    [attend] = [cost for cost in costs if cost.name == "attend"]
    assert (attend.calls, attend.rows) == (NUM_LAYERS * num_steps, NUM_LAYERS * num_tokens)
    assert (attend.macs_per_s, attend.bytes_per_s) == (None, None)
    [embed] = [cost for cost in costs if cost.name.startswith("embed")]
    assert 0 < embed.weight_bytes < work.head.num_bytes
    assert costs[-1].name == "sample"
    assert all(cost.seconds > 0 for cost in products)
    assert [cost.macs for cost in products if cost.is_float] == [num_steps * work.head.float_macs]
    assert any(cost.name.count("Q8_0") > 1 for cost in products)  # those of one input are one


def test_counting_starts_from_zero_and_stops(executor: NativeExecutor) -> None:
    executor.set_counting(True)
    assert sum(cost.calls for cost in executor.op_costs()) == 0
    generate(executor, PROMPT, 1)
    executor.set_counting(False)
    once = executor.op_costs()
    generate(executor, PROMPT, 1)
    assert executor.op_costs() == once


def test_rates_are_sums_over_time() -> None:
    cost = OpCost(
        name="multiply", calls=2, rows=4, seconds=0.5, wait_seconds=0.1, macs=100, weight_bytes=50
    )
    assert (cost.macs_per_s, cost.bytes_per_s) == (200.0, 100.0)
