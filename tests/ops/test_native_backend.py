"""The native backend's edges: what it refuses, what it frees, what it says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from octavo.config import BackendName
from octavo.dtypes import HostTensor, KVDType, QuantFormat
from octavo.engine.memory_costs import weights_bytes
from octavo.errors import InvalidRequest, UnsupportedArchitecture
from octavo.kv_layout import KVLayout
from octavo.models.table import load_model
from octavo.ops.native import NativeBackend, NativeExecutor, _native, supported_isas
from octavo.ops.protocol import AttentionSpec, Batch, SampleBatch
from octavo.weights.source import TensorInfo
from tests.ops.batches import Chunk, generate, make_batch, make_sample
from tests.ops.native_backends import ISAS, native
from tests.tiny_models import float_tensor, random_tensor, tiny_source


def _executor(backend: NativeBackend, num_blocks: int = 8) -> NativeExecutor:
    loaded = load_model(tiny_source(), backend.ops)
    return backend.compile(loaded.model, loaded.config.kv_layout(KVDType.F16), num_blocks, 64)


@pytest.fixture(scope="module")
def executor() -> NativeExecutor:
    return _executor(native(ISAS[0]))


def test_scalar_is_always_there_and_the_best_table_is_the_default():
    assert supported_isas()[-1] == "scalar"
    assert NativeBackend(1).kernel_table == supported_isas()[0]
    assert _executor(NativeBackend(1, "scalar")).kernel_table == "scalar"


def test_an_unknown_isa_lists_the_valid_ones():
    with pytest.raises(InvalidRequest, match=r"sse9.*scalar"):
        NativeBackend(1, "sse9")


def test_a_thread_count_below_one_is_refused():
    with pytest.raises(ValueError, match="num_threads"):
        NativeBackend(0)


def _with(name: str, index: int, value: int) -> Callable[[Batch], Batch]:
    def change(batch: Batch) -> Batch:
        array = getattr(batch, name).copy()
        array.flat[index] = value
        return replace(batch, **{name: array})

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_with("token_ids", 0, 320), r"token_ids\[0\] is 320"),
        (_with("token_ids", 1, -1), r"token_ids\[1\] is -1"),
        (_with("positions", 2, 9), "positions"),
        (_with("slots", 2, 100), "slots"),
        (_with("slots", 2, -5), "slots"),
        (_with("block_tables", 0, 8), "block_tables"),
        (_with("block_tables", 0, -1), "block_tables"),
        (_with("seq_lens", 0, 1), "seq_lens"),
        (_with("seq_lens", 0, 10_000), "seq_lens"),
        (_with("query_start", 0, 1), "query_start"),
        (_with("query_start", 1, 2), "query_start"),
        (_with("output_rows", 0, 20), "output_rows"),
        (lambda b: replace(b, output_rows=np.int32([3, 3])), "output_rows"),
        (lambda b: replace(b, token_ids=b.token_ids.astype(np.int64)), "token_ids must be"),
        (lambda b: replace(b, token_ids=b.token_ids[::2]), "token_ids must be"),
        (lambda b: replace(b, block_tables=b.block_tables[0]), "block_tables must be"),
        (lambda b: replace(b, positions=b.positions[:-1].copy()), "positions has 19"),
    ],
)
def test_a_wrong_batch_is_refused_before_it_runs(
    executor: NativeExecutor, change: Callable[[Batch], Batch], message: str
):
    batch = make_batch([Chunk(range(20), 0, [2, 5])])
    with pytest.raises(ValueError, match=message):
        executor.execute(change(batch), make_sample(1))
    assert executor.execute(batch, make_sample(1)).token_ids.shape == (1,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: replace(s, bias_ids=np.int32([320])), "bias_ids"),
        (lambda s: replace(s, bias_values=np.float32([])), "bias_values"),
        (lambda s: replace(s, bias_start=np.int32([0, 2])), "bias_ids"),
        (lambda s: replace(s, is_scored=np.array([True]), targets=np.int32([400])), "targets"),
        (lambda s: replace(s, temperature=np.float32([1, 1])), "temperature"),
        (lambda s: replace(s, seeds=np.int64([1])), "seeds must be"),
        (lambda s: replace(s, num_logprobs=np.int32([-2])), "num_logprobs"),
    ],
)
def test_a_wrong_sample_batch_is_refused(
    executor: NativeExecutor, change: Callable[[SampleBatch], SampleBatch], message: str
):
    batch = make_batch([Chunk(range(20), 0, [2, 5])])
    with pytest.raises(ValueError, match=message):
        executor.execute(batch, change(make_sample(1, bias=[{3: 1.0}])))


def test_a_step_larger_than_compiled_is_refused(executor: NativeExecutor):
    with pytest.raises(ValueError, match="65 tokens in a step compiled for 64"):
        executor.execute(make_batch([Chunk(range(65), 0, range(5))]), make_sample(1))


def test_copies_between_blocks_that_do_not_exist_are_refused(executor: NativeExecutor):
    with pytest.raises(ValueError, match="8 blocks"):
        executor.copy_blocks([(0, 8)])


def test_blocks_that_were_read_continue_in_another_executor():
    first, second = _executor(native(ISAS[0])), _executor(native(ISAS[0]))
    for executor in (first, second):
        executor.fill_kv(float("nan"))
    first.execute(make_batch([Chunk(range(40), 0, [4, 6, 2])]), make_sample(1))
    for source, destination in ((4, 3), (6, 0), (2, 7)):
        second.write_block(destination, first.read_block(source))
    sample = make_sample(1, num_logprobs=5)
    whole = first.execute(make_batch([Chunk([5], 40, [4, 6, 2])]), sample)
    moved = second.execute(make_batch([Chunk([5], 40, [3, 0, 7])]), sample)
    np.testing.assert_array_equal(whole.top_logprobs, moved.top_logprobs)


def test_blocks_that_do_not_exist_or_have_another_size_are_refused(executor: NativeExecutor):
    block = executor.read_block(0)
    with pytest.raises(ValueError, match="8 blocks"):
        executor.read_block(8)
    with pytest.raises(ValueError, match="8 blocks"):
        executor.write_block(-1, block)
    with pytest.raises(ValueError, match="bytes, not"):
        executor.write_block(0, block[1:])


def test_operations_outside_of_compile_are_refused():
    ops = native(ISAS[0]).ops
    weight = ops.weight(float_tensor("w", np.eye(4)))
    with pytest.raises(RuntimeError, match="compile"):
        ops.embed(weight, make_batch([Chunk([0], 0, [0])]))


class _Misshapen:
    """A model whose residual does not fit."""

    def __init__(self, ops):
        self._table = ops.weight(float_tensor("t", np.eye(16)))
        self._narrow = ops.weight(float_tensor("n", np.ones((8, 16))))

    def forward(self, ops, batch):
        x = ops.embed(self._table, batch)
        return ops.add(x, ops.linear(x, self._narrow))

    def logits(self, ops, rows):
        return rows


def test_a_model_whose_widths_do_not_fit_is_refused():
    backend = native(ISAS[0])
    with pytest.raises(ValueError, match="add: widths differ"):
        backend.compile(_Misshapen(backend.ops), KVLayout(1, 1, 16), 1, 1)


class _OneAttention:
    def __init__(self, ops, layer: int):
        self._table = ops.weight(float_tensor("t", np.eye(16)))
        self._spec = AttentionSpec(layer, 1, 1, 16, 1.0)

    def forward(self, ops, batch):
        x = ops.embed(self._table, batch)
        return ops.attention(x, x, x, self._spec, batch)

    def logits(self, ops, rows):
        return ops.linear(rows, self._table)


def test_attention_outside_of_the_kv_layout_is_refused():
    backend = native(ISAS[0])
    with pytest.raises(ValueError, match="KV layout"):
        backend.compile(_OneAttention(backend.ops, 1), KVLayout(1, 1, 16), 1, 1)
    backend.compile(_OneAttention(backend.ops, 0), KVLayout(1, 1, 16), 1, 1).close()


@pytest.mark.parametrize("dtype", list(KVDType))
@pytest.mark.parametrize(("kv_heads", "head_dim"), [(1, 16), (3, 64), (1, 80), (2, 40), (3, 7)])
def test_both_languages_count_the_same_bytes(dtype: KVDType, kv_heads: int, head_dim: int):
    backend = native(ISAS[0])
    width = kv_heads * head_dim
    table = float_tensor("t", np.eye(width, dtype=np.float32))

    class Model:
        def forward(self, ops, batch):
            x = ops.embed(weight, batch)
            return ops.attention(
                x, x, x, AttentionSpec(1, kv_heads, kv_heads, head_dim, 1.0), batch
            )

        def logits(self, ops, rows):
            return ops.linear(rows, weight)

    weight = backend.ops.weight(table)
    backend.compile(Model(), KVLayout(2, kv_heads, head_dim, dtype), 2, 1).close()  # compares


def test_loading_releases_the_source():
    released: list[str] = []
    backend = native(ISAS[0])
    for format_ in (QuantFormat.Q4_K, QuantFormat.Q3_K, QuantFormat.BF16):
        made = random_tensor(format_.name, (32, 256), format_, np.random.default_rng(0))
        name = made.name
        backend.ops.weight(replace(made, release=lambda name=name: released.append(name)))
    assert released == ["Q4_K", "Q3_K", "BF16"]


@pytest.mark.parametrize("format_", list(QuantFormat), ids=lambda f: f.name)
def test_packed_weights_take_the_memory_that_is_planned_for(format_: QuantFormat):
    tensor = random_tensor("w", (32, 512), format_, np.random.default_rng(0))
    runtime = _native.Runtime(1, "scalar")
    runtime.add_matrix(format_.type_id, 32, 512, np.frombuffer(tensor.data, np.uint8))
    info = TensorInfo("w", tensor.shape, format_, 0, 0)
    assert runtime.weight_bytes == weights_bytes([info], BackendName.NATIVE)


def test_rows_that_are_not_whole_blocks_are_refused():
    tensor = HostTensor("w", (32, 48), QuantFormat.Q8_0, memoryview(bytes(32 * 51)))
    with pytest.raises(UnsupportedArchitecture, match="w: rows of 48 elements in Q8_0"):
        NativeBackend(1).ops.weight(tensor)


def test_a_tensor_shorter_than_its_shape_is_refused():
    tensor = random_tensor("w", (32, 256), QuantFormat.Q8_0, np.random.default_rng(0))
    with pytest.raises(ValueError, match="bytes"):
        native(ISAS[0]).ops.weight(replace(tensor, shape=(33, 256)))


def test_two_executors_live_side_by_side_and_close_is_idempotent():
    backend = native(ISAS[0])
    first, second = _executor(backend), _executor(backend)
    expected = generate(first, [1, 2, 3], 5)
    second.fill_kv(float("nan"))
    backend.close()
    assert generate(second, [1, 2, 3], 5) == expected
    second.close()
    second.close()
    assert generate(first, [1, 2, 3], 5) == expected
    first.close()
    with pytest.raises(RuntimeError, match="closed"):
        first.fill_kv(0.0)
    with pytest.raises(RuntimeError, match="closed"):
        _ = backend.ops


def test_closing_ends_the_threads():
    before = _status("Threads")
    backend = native(ISAS[0], num_threads=3)
    executor = _executor(backend)
    generate(executor, [1], 1)
    assert _status("Threads") == before + 2
    executor.close()
    backend.close()
    assert _status("Threads") == before


def test_closing_gives_the_kv_memory_back():
    executor = _executor(native(ISAS[0]), num_blocks=4000)
    before = _status("VmRSS")
    executor.fill_kv(1.0)  # 4000 blocks of 4 KiB
    assert _status("VmRSS") - before > 14_000
    executor.close()
    assert _status("VmRSS") - before < 4_000


def _status(field: str) -> int:
    """A number of this process: threads, or kilobytes of memory."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(f"{field}:"))


def test_an_idle_backend_uses_no_processor_time():
    executor = _executor(native(ISAS[0]))
    generate(executor, [1], 2)
    time.sleep(0.05)  # the workers may still spin for some microseconds
    before = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - before < 0.02
    executor.close()


def test_other_python_threads_run_during_a_step(executor: NativeExecutor):
    """Two threads step two executors of one backend: they take turns, and none holds the interpreter."""
    backend = native(ISAS[0])
    executors = [_executor(backend), _executor(backend)]
    expected = generate(executor, [9, 8], 6)
    results: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda e=e: results.append(generate(e, [9, 8], 6)))
        for e in executors
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected, expected]
