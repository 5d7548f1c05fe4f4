"""The numpy operations against formulas written out, and the executor's contract."""

from __future__ import annotations

import math

import numpy as np
import pytest

from octavo.dtypes import HostTensor, KVDType, QuantFormat
from octavo.kv_layout import KVLayout
from octavo.models.table import load_model
from octavo.ops.protocol import Activation, AttentionSpec, Batch, RopeOrder, RopeSpec
from octavo.ops.reference import ReferenceKV, ReferenceOps
from octavo.ops.reference_backend import ReferenceBackend, ReferenceExecutor
from octavo.weights.quant import dequantize
from tests.ops.batches import Chunk, generate, make_batch, make_sample, prompt_logprobs
from tests.ops.conformance import SamplerCase, check_sampler, check_scoring, sampler_cases
from tests.tiny_models import random_tensor, tiny_source


@pytest.fixture
def ops() -> ReferenceOps:
    return ReferenceOps(dequantize)


def _batch(num_tokens: int, start: int = 0) -> Batch:
    blocks = range(-(-(start + num_tokens) // 16))
    return make_batch([Chunk(range(num_tokens), start, blocks)])


def test_rms_norm_of_whole_rows_and_of_heads(ops: ReferenceOps):
    x = np.float32([[3.0, 4.0, 0.0, 0.0]])
    row = ops.rms_norm(x, np.float32([1, 1, 1, 2]), 0.0)
    np.testing.assert_allclose(row, [[1.2, 1.6, 0, 0]], rtol=1e-6)
    heads = ops.rms_norm(np.float32([[3.0, 4.0, 1.0, 1.0]]), np.float32([1, 2]), 0.0)
    root = math.sqrt(12.5)
    np.testing.assert_allclose(heads, [[3 / root, 8 / root, 1, 2]], rtol=1e-6)


def test_rms_norm_adds_eps_to_the_mean_square(ops: ReferenceOps):
    y = ops.rms_norm(np.float32([[1e-3, 1e-3]]), np.float32([1, 1]), 3e-6)
    np.testing.assert_allclose(y, [[0.5, 0.5]], rtol=1e-6)


@pytest.mark.parametrize(
    ("order", "pairs"),
    [(RopeOrder.NEOX, [(0, 2), (1, 3)]), (RopeOrder.ADJACENT, [(0, 1), (2, 3)])],
)
def test_rope_turns_the_pairs_of_its_order(ops: ReferenceOps, order: RopeOrder, pairs: list):
    spec = RopeSpec(6, 4, 100.0, order, linear_factor=2.0, freq_factors=(1.0, 5.0))
    x = np.float32([[1, 2, 3, 4, 5, 6]])
    y = ops.rope(x, spec, _batch(1, start=7))
    expected = x[0].astype(np.float64)
    for i, (a, b) in enumerate(pairs):
        angle = 7 * 100.0 ** (-2 * i / 4) / (2.0 * (1.0, 5.0)[i])
        turned = complex(x[0, a], x[0, b]) * complex(math.cos(angle), math.sin(angle))
        expected[a], expected[b] = turned.real, turned.imag
    np.testing.assert_allclose(y[0], expected, rtol=1e-6)


def test_rope_leaves_position_zero_and_its_input_alone(ops: ReferenceOps):
    x = np.float32([[1, 2, 3, 4]])
    y = ops.rope(x, RopeSpec(4, 4, 10.0, RopeOrder.NEOX), _batch(1))
    np.testing.assert_array_equal(x, y)
    assert not np.shares_memory(x, y)


@pytest.mark.parametrize(
    ("activation", "expected"),
    [
        (Activation.SILU, [0.0, 1.46211716, -1000.0 * 0.0]),
        (Activation.GELU_TANH, [0.0, 1.68238, 0]),
    ],
)
def test_gated(ops: ReferenceOps, activation: Activation, expected: list[float]):
    y = ops.gated(np.float32([[0.0, 1.0, -1000.0]]), np.float32([[9.0, 2.0, 1.0]]), activation)
    np.testing.assert_allclose(y, [expected], rtol=1e-5)


def test_softcap_bounds_its_input(ops: ReferenceOps):
    y = ops.softcap(np.float32([[0.001, 1e6, -1e6]]), 30.0)
    np.testing.assert_allclose(y, [[0.001, 30.0, -30.0]], rtol=1e-6)


@pytest.mark.parametrize("format_", list(QuantFormat))
def test_linear_and_embed_use_the_dequantised_values(ops: ReferenceOps, format_: QuantFormat):
    tensor = random_tensor("w", (24, 256), format_, np.random.default_rng(1))
    values = dequantize(tensor).astype(np.float64)
    weight = ops.weight(tensor)
    x = np.random.default_rng(2).standard_normal((3, 256)).astype(np.float32)
    bias = np.arange(24, dtype=np.float32)
    y = ops.linear(x, weight, bias)
    np.testing.assert_allclose(y, x @ values.T + bias, atol=1e-5)
    batch = make_batch([Chunk([5, 23, 5], 0, [0])])
    np.testing.assert_array_equal(ops.embed(weight, batch, 2.0), dequantize(tensor)[[5, 23, 5]] * 2)


def test_loading_says_when_the_bytes_are_no_longer_needed(ops: ReferenceOps):
    released = []
    data = bytearray(np.ones(4, np.float32).tobytes())
    tensor = HostTensor("w", (4,), QuantFormat.F32, memoryview(data), lambda: released.append(1))
    vector = ops.vector(tensor)
    assert released == [1]
    data[:] = bytes(16)
    assert vector.tolist() == [1.0] * 4
    with pytest.raises(ValueError, match="w is not a matrix"):
        ops.weight(tensor)


def test_attention_by_hand():
    kv = ReferenceKV(KVLayout(1, 1, 2, KVDType.F32), 2)
    ops = ReferenceOps(dequantize).with_kv(kv)
    spec = AttentionSpec(0, 2, 1, 2, scale=0.5, window=2)
    q = np.float32([[1, 0, 0, 1]] * 3)
    k = np.float32([[1, 0], [0, 2], [4, 0]])
    v = np.float32([[1, 10], [2, 20], [3, 30]])
    out = ops.attention(q, k, v, spec, _batch(3))
    # the last token sees positions 1 and 2; head 0 scores (0, 2), head 1 scores (1, 0)
    w0, w1 = 1 / (1 + math.exp(2)), 1 / (1 + math.exp(-1))
    expected = [3 - w0, 30 - 10 * w0, 3 - w1, 30 - 10 * w1]
    np.testing.assert_allclose(out[2], expected, rtol=1e-6)
    np.testing.assert_allclose(out[0], [1, 10, 1, 10], rtol=1e-6)


def test_attention_reads_the_stored_form():
    kv = ReferenceKV(KVLayout(1, 1, 1, KVDType.F16), 1)
    ops = ReferenceOps(dequantize).with_kv(kv)
    one = np.float32([[1.0]])
    out = ops.attention(one, one, np.float32([[0.1]]), AttentionSpec(0, 1, 1, 1, 1.0), _batch(1))
    assert out[0, 0] == np.float32(np.float16(0.1))


def test_attention_without_an_executor_is_refused(ops: ReferenceOps):
    one = np.float32([[1.0]])
    with pytest.raises(RuntimeError, match="compile"):
        ops.attention(one, one, one, AttentionSpec(0, 1, 1, 1, 1.0), _batch(1))


@pytest.mark.parametrize("case", sampler_cases(), ids=str)
def test_executor_samples_what_the_model_says(case: SamplerCase):
    check_sampler(ReferenceBackend(dequantize), case)


def test_executor_scores_targets():
    check_scoring(ReferenceBackend(dequantize))


def _executor(kv_dtype: KVDType = KVDType.F16) -> ReferenceExecutor:
    backend = ReferenceBackend(dequantize)
    loaded = load_model(tiny_source("gemma3"), backend.ops)
    return backend.compile(loaded.model, loaded.config.kv_layout(kv_dtype), 12, 128)


PROMPT = np.random.default_rng(0).integers(0, 256, 45).tolist()


def test_chunks_and_whole_prompt_agree():
    # Not bit-equal: BLAS orders its sums by the shape of a product. float16 would magnify that.
    whole = prompt_logprobs(_executor(KVDType.F32), PROMPT, 128)
    chunked = prompt_logprobs(_executor(KVDType.F32), PROMPT, 7)
    np.testing.assert_allclose(chunked, whole, atol=1e-4)


def test_results_do_not_depend_on_what_free_blocks_hold():
    clean, dirty = _executor(), _executor()
    dirty.fill_kv(float("nan"))
    np.testing.assert_array_equal(prompt_logprobs(dirty, PROMPT), prompt_logprobs(clean, PROMPT))


def test_a_copied_block_continues_like_the_original():
    executor = _executor()
    executor.execute(make_batch([Chunk(PROMPT, 0, [4, 9, 2])]), make_sample(1))
    executor.copy_blocks([(9, 1), (2, 7)])
    sample = make_sample(2, num_logprobs=5)
    both = [Chunk([5], 45, [4, 9, 2]), Chunk([5], 45, [4, 1, 7])]
    result = executor.execute(make_batch(both), sample)
    np.testing.assert_array_equal(result.top_ids[0], result.top_ids[1])
    np.testing.assert_allclose(result.top_logprobs[0], result.top_logprobs[1], atol=1e-4)


@pytest.mark.parametrize("dtype", KVDType)
def test_blocks_that_were_read_continue_in_another_executor(dtype: KVDType):
    first, second = _executor(dtype), _executor(dtype)
    for executor in (first, second):
        executor.fill_kv(float("nan"))
    first.execute(make_batch([Chunk(PROMPT, 0, [4, 9, 2])]), make_sample(1))
    for source, destination in ((4, 3), (9, 0), (2, 7)):
        second.write_block(destination, first.read_block(source))
    sample = make_sample(1, num_logprobs=5)
    whole = first.execute(make_batch([Chunk([5], 45, [4, 9, 2])]), sample)
    moved = second.execute(make_batch([Chunk([5], 45, [3, 0, 7])]), sample)
    np.testing.assert_array_equal(whole.top_logprobs, moved.top_logprobs)


def test_a_step_without_output_rows_only_fills_the_cache():
    executor = _executor()
    result = executor.execute(make_batch([Chunk(PROMPT, 0, [0, 1, 2])], rows=[]), make_sample(0))
    assert result.token_ids.shape == (0,)
    assert result.top_ids.shape == (0, 0)


def test_more_tokens_than_compiled_for_are_refused():
    with pytest.raises(ValueError, match="200 tokens"):
        _executor().execute(make_batch([Chunk([1] * 200, 0, range(13))]), make_sample(1))


def test_a_closed_executor_says_so():
    executor = _executor()
    assert executor.kernel_table == "reference"
    executor.close()
    executor.close()
    with pytest.raises(RuntimeError, match="closed"):
        generate(executor, PROMPT, 1)
