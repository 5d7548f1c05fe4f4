"""The native backend against `reference`: every operation, every sampler, both architectures, every kernel table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from octavo.config import ActivationPrecision
from octavo.dtypes import KVDType, QuantFormat
from octavo.models.table import load_model
from octavo.ops.reference_backend import ReferenceBackend
from octavo.weights.quant import dequantize
from tests.ops.batches import generate, prompt_logprobs
from tests.ops.conformance import (
    Arithmetic,
    OpCase,
    SamplerCase,
    check_op,
    check_sampler,
    check_scoring,
    op_cases,
    sampler_cases,
)
from tests.ops.native_backends import ISAS, native
from tests.tiny_models import tiny_source

# Of an embedding row's root mean square, for formats of 256-blocks: packing rounds their scales and minima to float16
# (2^-11 of the greatest element, which is about four times the mean).
_EMBED_ROUNDED = 3e-3


def _native_case(case: OpCase) -> OpCase:
    """The case with the tolerance that packed embedding tables need."""
    format_ = case.weights[0].format if case.weights else QuantFormat.F32
    if not case.name.startswith("embed") or format_.block_len < 256:
        return case
    return replace(case, tolerance=_EMBED_ROUNDED)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", op_cases(), ids=str)
def test_op_agrees_with_reference(isa: str, case: OpCase):
    check_op(native(isa), _native_case(case), Arithmetic.INT8)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", sampler_cases(), ids=str)
def test_sampler_agrees_with_reference(isa: str, case: SamplerCase):
    check_sampler(native(isa), case)


@pytest.mark.parametrize("isa", ISAS)
def test_scored_rows_agree_with_reference(isa: str):
    check_scoring(native(isa))


KV_ATOL = {
    KVDType.F16: 0.02,
    KVDType.BF16: 0.1,
    KVDType.F32: 2e-4,
    KVDType.INT8: 0.1,
    KVDType.FP8_E4M3: 0.3,
    KVDType.FP8_E5M2: 0.5,
    KVDType.INT8_INT4: 0.5,
    KVDType.INT4: 1.0,
}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
@pytest.mark.parametrize("kv_dtype", list(KVDType))
def test_float_model_agrees_with_reference(isa: str, architecture: str, kv_dtype: KVDType):
    source = tiny_source(architecture, is_tied=False, has_bias=architecture == "llama")
    prompt = np.random.default_rng(3).integers(0, 256, 150).tolist()
    logprobs, generated = [], []
    for backend in (ReferenceBackend(dequantize), native(isa)):
        loaded = load_model(source, backend.ops)
        executor = backend.compile(loaded.model, loaded.config.kv_layout(kv_dtype), 12, 256)
        executor.fill_kv(float("nan"))
        logprobs.append(prompt_logprobs(executor, prompt, 64))
        generated.append(generate(executor, prompt, 12))
        executor.close()
    # Sums in another order may round a key or value to the other neighbour.
    np.testing.assert_allclose(logprobs[0], logprobs[1], atol=KV_ATOL[kv_dtype])
    if kv_dtype in (KVDType.F16, KVDType.F32):
        assert generated[0] == generated[1]
    assert len(set(generated[0])) > 1


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "formats",
    [
        (QuantFormat.Q4_K, QuantFormat.Q6_K),
        (QuantFormat.Q4_1,),
        (QuantFormat.Q5_0, QuantFormat.Q8_0, QuantFormat.F16),
        (QuantFormat.IQ4_XS, QuantFormat.BF16, QuantFormat.Q4_0),
        (QuantFormat.Q2_K, QuantFormat.Q3_K),
        (QuantFormat.Q5_K, QuantFormat.Q5_1, QuantFormat.IQ4_NL),
    ],
)
def test_quantised_model_is_close_to_reference(isa: str, formats: tuple[QuantFormat, ...]):
    source = tiny_source(
        "gemma3",
        formats=formats,
        embed_format=QuantFormat.Q8_0,
        hidden_size=256,
        num_heads=4,
        num_kv_heads=1,
        head_dim=64,
        intermediate_size=512,
        num_layers=2,
    )
    prompt = np.random.default_rng(4).integers(0, 256, 60).tolist()
    logprobs = []
    for backend in (ReferenceBackend(dequantize), native(isa)):
        loaded = load_model(source, backend.ops)
        executor = backend.compile(loaded.model, loaded.config.kv_layout(KVDType.F16), 8, 64)
        logprobs.append(prompt_logprobs(executor, prompt))
        executor.close()
    # Activations are rounded to 8 bits before every product: about 1 % each.
    difference = np.abs(logprobs[0] - logprobs[1])
    assert difference.mean() < 0.03 * np.std(logprobs[0])


@pytest.mark.parametrize("isa", ISAS)
def test_two_terms_of_activations_are_as_good_as_floats(isa: str):
    source = tiny_source("llama", formats=(QuantFormat.Q4_1, QuantFormat.Q8_0), num_layers=2)
    prompt = np.random.default_rng(4).integers(0, 256, 60).tolist()
    logprobs = []
    for backend in (
        ReferenceBackend(dequantize),
        native(isa),
        native(isa, activation_precision=ActivationPrecision.INT8X2),
    ):
        loaded = load_model(source, backend.ops)
        executor = backend.compile(loaded.model, loaded.config.kv_layout(KVDType.F32), 8, 64)
        logprobs.append(prompt_logprobs(executor, prompt))
        executor.close()
    one_term, two_terms = (np.abs(logprobs[0] - native_).mean() for native_ in logprobs[1:])
    assert two_terms < one_term / 50
