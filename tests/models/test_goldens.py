"""Tiny random models give the numbers they gave when real models were last compared with transformers."""

from __future__ import annotations

import pytest

from octavo.dtypes import KVDType
from octavo.models.table import load_model
from octavo.ops.reference_backend import ReferenceBackend
from octavo.weights.quant import dequantize
from tests.ops.batches import generate, prompt_logprobs
from tests.tiny_models import tiny_source

PROMPT = [(i * 37) % 256 for i in range(60)]


@pytest.mark.parametrize(
    ("architecture", "logprobs", "mean", "made"),
    [
        (
            "llama",
            [-12.704, -16.383, -9.408, -7.487, -6.573, -11.545],
            -12.5278,
            [116, 135, 267, 314, 128, 176, 176, 0],
        ),
        (
            "gemma3",
            [-9.327, -11.686, -15.054, -12.897, -17.189, -19.98],
            -12.9048,
            [58, 58, 58, 58, 58, 288, 90, 296],
        ),
    ],
)
def test_tiny_model_gives_its_golden_numbers(
    architecture: str, logprobs: list[float], mean: float, made: list[int]
):
    backend = ReferenceBackend(dequantize)
    loaded = load_model(tiny_source(architecture), backend.ops)
    layout = loaded.config.kv_layout(KVDType.F32)
    executor = backend.compile(loaded.model, layout, 8, 128)
    ours = prompt_logprobs(executor, PROMPT)
    assert ours[[0, 1, 10, 30, 57, 58]].tolist() == pytest.approx(logprobs, abs=2e-3)
    assert ours.mean() == pytest.approx(mean, abs=1e-3)
    assert generate(executor, PROMPT, 8) == made
