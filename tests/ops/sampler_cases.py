"""Every sampling parameter against `reference`, with logits that are given exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from octavo.ops.protocol import AnyBackend, Batch, Ops, SampleResult
from octavo.ops.reference_backend import ReferenceBackend
from octavo.weights.quant import dequantize
from tests.ops.batches import Chunk, make_batch, make_sample, num_blocks
from tests.ops.op_cases import SMALL_LAYOUT
from tests.tiny_models import float_tensor


@dataclass(frozen=True)
class SamplerCase:
    """Logits [rows, vocab] and how each row is sampled. `slack` rows may differ: their u lies on a rounding edge."""

    name: str
    logits: np.ndarray
    sampling: Mapping[str, Any] = field(default_factory=dict)
    slack: int = 1

    def __str__(self) -> str:
        return self.name


class LogitsModel:
    """A DecoderModel whose logits are given: token i has row i, picked exactly by a product with a unit vector."""

    def __init__(self, ops: Ops[Any, Any], logits: np.ndarray) -> None:
        self._units = ops.weight(float_tensor("units", np.eye(len(logits))))
        self._columns = ops.weight(float_tensor("columns", logits.T))

    def forward(self, ops: Ops[Any, Any], batch: Batch) -> Any:
        return ops.embed(self._units, batch)

    def logits(self, ops: Ops[Any, Any], rows: Any) -> Any:
        return ops.linear(rows, self._columns)


def sampler_cases() -> list[SamplerCase]:
    """Every sampling parameter alone, then together. Two vocabularies: inside one slice of 4,096 ids, and over three."""
    cases = []
    for vocab in (50, 9000):
        logits = _normal(20 + vocab, 64, vocab) * 2
        draws = {"seeds": np.arange(64) * 7919 + 2**40, "positions": np.arange(64) % 5}
        warm = draws | {"temperature": 0.9}
        listed = [[i, i + 1, i, 3, 3, 3] for i in range(40)] + [[]] * 24
        for name, sampling in {
            "greedy": {},
            "temperature": draws | {"temperature": np.linspace(0.05, 2.0, 64)},
            "choices": warm | {"choices": np.arange(64)},
            "top_k": warm | {"top_k": np.arange(64)},
            "top_p": warm | {"top_p": np.linspace(0.01, 1.0, 64)},
            "min_p": warm | {"min_p": np.linspace(0.0, 1.0, 64)},
            "typical_p": warm | {"typical_p": np.linspace(0.01, 1.0, 64)},
            "all filters": warm | {"top_k": 30, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.8},
            "greedy penalties": {
                "seen": listed,
                "made": listed,
                "repetition_penalty": 1.7,
                "presence_penalty": 0.5,
                "frequency_penalty": -0.25,
            },
            "penalties": warm
            | {"seen": listed, "made": listed, "repetition_penalty": 0.6, "frequency_penalty": 1.0},
            "bias": warm
            | {"bias": [{i % vocab: 6.0, 1: -float("inf"), 0: -3.0} for i in range(64)]},
        }.items():
            slack = 0 if "temperature" not in sampling else 1
            cases.append(SamplerCase(f"{name}, {vocab} ids", logits, sampling, slack))
    ties = np.round(_normal(30, 64, 300))  # many equal logits
    cases.append(SamplerCase("greedy ties", ties, slack=0))
    warm = {"temperature": 1.0, "seeds": np.arange(64), "top_k": 5, "top_p": 0.7}
    cases.append(SamplerCase("ties at the edge of top_k and top_p", ties, warm))
    return cases


def check_sampler(backend: AnyBackend, case: SamplerCase) -> None:
    """Fail if tokens, logprobs, ranks or alternatives are not those of `reference`."""
    expected = _sampled(ReferenceBackend(dequantize), case)
    actual = _sampled(backend, case)
    is_same = actual.token_ids == expected.token_ids
    assert np.count_nonzero(~is_same) <= case.slack, f"{case}: rows {np.flatnonzero(~is_same)}"
    np.testing.assert_array_equal(actual.ranks[is_same], expected.ranks[is_same])
    # float32 of numbers up to about 20: 2e-6, and as much for the sum of the exponentials.
    np.testing.assert_allclose(actual.logprobs[is_same], expected.logprobs[is_same], atol=1e-5)
    np.testing.assert_array_equal(actual.top_ids, expected.top_ids)
    np.testing.assert_allclose(actual.top_logprobs, expected.top_logprobs, atol=1e-5)


def check_scoring(backend: AnyBackend) -> None:
    """Scored rows return their target; logprobs only where asked, alternatives as many as asked."""
    logits = _normal(40, 6, 5000) * 3
    case = SamplerCase(
        "scored",
        logits,
        {
            "is_scored": [True, True, True, False, False, True],
            "targets": [0, 4999, 17, 0, 0, 3],
            "num_logprobs": [0, 5, -1, 2, -1, 20],
            "bias": [{0: 50.0}] * 6,
        },
        slack=0,
    )
    check_sampler(backend, case)
    result = _sampled(backend, case)
    assert result.token_ids[:3].tolist() == [0, 4999, 17]
    assert np.isnan(result.logprobs).tolist() == [False, False, True, False, True, False]
    assert (result.top_ids >= 0).sum(axis=1).tolist() == [0, 5, 0, 2, 0, 20]


def _sampled(backend: AnyBackend, case: SamplerCase) -> SampleResult:
    num_rows = len(case.logits)
    model = LogitsModel(backend.ops, case.logits)
    executor = backend.compile(model, SMALL_LAYOUT, num_blocks(num_rows), num_rows)
    batch = make_batch([Chunk(range(num_rows), 0, range(num_blocks(num_rows)))], "all")
    try:
        return executor.execute(
            batch, make_sample(num_rows, **{"num_logprobs": 3, **case.sampling})
        )
    finally:
        executor.close()


def _normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
