"""The same model functions and operations on torch: the protocol holds for an eager backend, and `reference` is right."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.dtypes import KVDType, QuantFormat
from octavo.models.table import load_model
from octavo.ops.reference_backend import ReferenceBackend
from octavo.weights.quant import dequantize
from tests.ops.batches import generate, prompt_logprobs
from tests.ops.conformance import Arithmetic, OpCase, check_op, op_cases
from tests.tiny_models import tiny_source

pytest.importorskip("torch", reason="torch is the oracle of these tests")

from tests.ops.torch_backend import TORCH_KV_DTYPES, TorchBackend


@pytest.mark.parametrize(
    "case", [c for c in op_cases() if c.layout.dtype in TORCH_KV_DTYPES], ids=str
)
def test_op_agrees_with_torch(case: OpCase):
    check_op(TorchBackend(dequantize), case, Arithmetic.FLOAT)


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("llama", {}),
        ("llama", {"has_bias": True, "is_tied": False, "formats": (QuantFormat.Q4_0,)}),
        ("gemma3", {}),
        ("gemma3", {"num_kv_heads": 1, "formats": (QuantFormat.Q8_0, QuantFormat.Q5_0)}),
    ],
)
def test_model_agrees_with_torch(architecture: str, options: dict):
    source = tiny_source(architecture, **options)
    prompt = np.random.default_rng(3).integers(0, 256, 70).tolist()
    logprobs, generated = [], []
    for backend in (ReferenceBackend(dequantize), TorchBackend(dequantize)):
        loaded = load_model(source, backend.ops)
        layout = loaded.config.kv_layout(KVDType.F32)
        executor = backend.compile(loaded.model, layout, 8, 128)
        logprobs.append(prompt_logprobs(executor, prompt, 32))
        generated.append(generate(executor, prompt, 12))
    np.testing.assert_allclose(logprobs[0], logprobs[1], atol=2e-4)
    assert generated[0] == generated[1]
    assert len(set(generated[0])) > 1
