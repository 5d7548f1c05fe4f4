"""What every backend must compute: operations and samplers against `reference`, through Backend.compile alone.

To test a backend, parametrise over the cases and call the check (see test_torch_agrees.py):

    @pytest.mark.parametrize("case", op_cases(), ids=str)
    def test_op(case): check_op(my_backend, case, Arithmetic.INT8)

    @pytest.mark.parametrize("case", sampler_cases(), ids=str)
    def test_sampler(case): check_sampler(my_backend, case)

A case becomes a model whose `forward` is the one operation, fed by embeddings of F32 tables (token i is row i) and read
through a head that is the identity matrix in F32: all alternatives of the raw distribution are the outputs less one
constant per row, so rows are compared after their mean is taken away. KV memory is filled with NaN before each run.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np

from octavo.dtypes import QuantFormat
from octavo.ops.protocol import AnyBackend, Batch, Executor, Ops
from octavo.ops.reference_backend import ReferenceBackend
from octavo.weights.quant import dequantize
from tests.ops.batches import Chunk, make_batch, make_sample, num_blocks
from tests.ops.op_cases import OpCase, op_cases
from tests.ops.sampler_cases import SamplerCase, check_sampler, check_scoring, sampler_cases
from tests.tiny_models import float_tensor

__all__ = [
    "Arithmetic",
    "OpCase",
    "SamplerCase",
    "check_op",
    "check_sampler",
    "check_scoring",
    "op_cases",
    "read_logits",
    "run_op",
    "sampler_cases",
]


class Arithmetic(Enum):
    """How a backend multiplies quantised weights: with float activations, or rounded to int8 per 32 channels."""

    FLOAT = "float"
    INT8 = "int8"


# |difference| / |expected| over the whole result.
LINEAR_FLOAT = 3e-6  # float32 sums of up to 512 products, in any order
LINEAR_INT8 = (
    0.01  # activations rounded to 8 bits: 0.6 to 0.75 % for Gaussian ones, any weight format
)
_FLOAT_FORMATS = (QuantFormat.F32, QuantFormat.F16, QuantFormat.BF16)


class OneOpModel:
    """A DecoderModel that is one operation, see the module."""

    def __init__(self, ops: Ops[Any, Any], case: OpCase) -> None:
        self._apply = case.apply
        self._tables = [ops.weight(float_tensor(f"input{i}", x)) for i, x in enumerate(case.inputs)]
        self._weights = [
            ops.weight(t) if len(t.shape) == 2 else ops.vector(t) for t in case.weights
        ]
        self._identity = ops.weight(float_tensor("identity", np.eye(case.out_width)))

    def forward(self, ops: Ops[Any, Any], batch: Batch) -> Any:
        inputs = [ops.embed(table, batch) for table in self._tables]
        return self._apply(ops, inputs, self._weights, batch)

    def logits(self, ops: Ops[Any, Any], rows: Any) -> Any:
        return ops.linear(rows, self._identity)


def run_op(backend: AnyBackend, case: OpCase) -> np.ndarray:
    """Results of all tokens, [num_tokens, out_width], each row less its mean."""
    steps, pool_blocks = _steps(case)
    largest = max(len(step.token_ids) for step in steps)
    executor = backend.compile(OneOpModel(backend.ops, case), case.layout, pool_blocks, largest)
    try:
        executor.fill_kv(float("nan"))
        out = np.full((len(case.inputs[0]), case.out_width), np.nan)
        for step in steps:
            out[step.token_ids] = read_logits(executor, step, case.out_width)
    finally:
        executor.close()
    return out - out.mean(axis=1, keepdims=True)


def read_logits(executor: Executor, batch: Batch, width: int) -> np.ndarray:
    """Log-softmax of the logits of a step's output rows, [rows, width]."""
    sample = make_sample(len(batch.output_rows), num_logprobs=width)
    result = executor.execute(batch, sample)
    out = np.empty(result.top_ids.shape)
    np.put_along_axis(out, result.top_ids.astype(np.int64), result.top_logprobs, axis=1)
    return out


def check_op(backend: AnyBackend, case: OpCase, arithmetic: Arithmetic) -> None:
    """Fail if the backend's result of this case is not that of `reference`, within the case's tolerance."""
    expected = run_op(ReferenceBackend(dequantize), case)
    actual = run_op(backend, case)
    assert np.isfinite(actual).all(), f"{case}: not finite"
    difference = actual - expected
    if case.linear_format is not None:
        error = float(np.linalg.norm(difference) / np.linalg.norm(expected))
        limit = _linear_tolerance(case.linear_format, arithmetic)
    else:
        error = float(np.abs(difference).max() / np.sqrt(np.mean(expected**2)))
        limit = case.tolerance
    assert error <= limit, f"{case}: error {error:.2e}, allowed {limit:.2e}"


def _linear_tolerance(format_: QuantFormat, arithmetic: Arithmetic) -> float:
    if arithmetic is Arithmetic.FLOAT or format_ in _FLOAT_FORMATS:
        return LINEAR_FLOAT
    return LINEAR_INT8


def _steps(case: OpCase) -> tuple[list[Batch], int]:
    """The steps of a case, over shuffled block tables, and the size of the pool."""
    plan = case.plan or (((0, len(case.inputs[0])),),)
    num_sequences = 1 + max(sequence for step in plan for sequence, _ in step)
    starts = [case.starts[i % len(case.starts)] for i in range(num_sequences)]
    lengths = list(starts)
    for step in plan:
        for sequence, count in step:
            lengths[sequence] += count
    needed = [num_blocks(n) for n in lengths]
    ids = np.random.default_rng(5).permutation(sum(needed) + 3)
    tables = [ids[sum(needed[:i]) : sum(needed[: i + 1])] for i in range(num_sequences)]
    steps, next_token, position = [], 0, list(starts)
    for step in plan:
        chunks = []
        for sequence, count in step:
            tokens = range(next_token, next_token + count)
            chunks.append(Chunk(tokens, position[sequence], tables[sequence]))
            next_token += count
            position[sequence] += count
        steps.append(make_batch(chunks, "all"))
    assert next_token == len(case.inputs[0]), "the plan must use every input row once"
    return steps, len(ids)
