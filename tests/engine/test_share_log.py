"""The line that says, once, which share of the machine's limit decoding reaches."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import pytest

from octavo.engine.share_log import ShareLog, start_share_log
from octavo.observability.limits import MachineCeilings, MatrixWork, ModelWork, ReadRate
from octavo.ops.protocol import Batch

WORK = ModelWork(MatrixWork(10**6, 0, 10**6), MatrixWork(0, 0, 0), (0,), (0,))
CEILINGS = MachineCeilings(
    kernel_table="t",
    num_threads=1,
    int8_instructions="vpdpbusd zmm",
    int8_macs_per_s=1e9,
    bf16_macs_per_s=None,
    f32_macs_per_s=1e9,
    reads=(ReadRate(10**6, 0.5e9),),
)


def batch(num_requests: int, num_tokens: int = 1) -> Batch:
    zeros = np.zeros(num_requests * num_tokens, np.int32)
    ends = np.arange(num_requests + 1, dtype=np.int32) * num_tokens
    lens = np.full(num_requests, 9, np.int32)
    tables = np.zeros((num_requests, 1), np.int32)
    return Batch(zeros, zeros, zeros, ends, lens, tables, zeros[:num_requests])


@dataclass
class FakeExecutor:
    """Counts how often it is measured."""

    work: ModelWork | None = WORK
    num_measured: int = 0

    def measure_ceilings(self, seconds: float) -> MachineCeilings:
        assert seconds <= 0.2
        self.num_measured += 1
        return CEILINGS


@pytest.mark.parametrize(
    ("num_requests", "expected"),
    [
        (1, "100 decode steps of 1.0 requests took 4.00 ms each, 50 % of what this machine allows (2.00 ms, reading 1 MB"),
        (3, "of 3.0 requests took 4.00 ms each, 75 % of what this machine allows (3.00 ms, vpdpbusd zmm at 1 GMAC/s)"),
    ],
)  # fmt: skip
def test_one_line_comes_once_warm(
    caplog: pytest.LogCaptureFixture, num_requests: int, expected: str
) -> None:
    log = ShareLog(WORK, CEILINGS)
    with caplog.at_level(logging.INFO, "octavo.engine.share_log"):
        for step in range(400):
            log.observe(batch(num_requests), 1.0 if step < 20 else 0.004)
            log.observe(batch(num_requests, 2), 1.0)  # prefill says nothing of decoding
            assert log.is_done == (step >= 119) == (log.share is not None)
    [message] = caplog.messages
    assert expected in message
    assert log.share is not None
    assert f"{100 * log.share:.0f} % of what this machine allows" in message


def test_nothing_is_measured_where_nobody_reads(caplog: pytest.LogCaptureFixture) -> None:
    executor = FakeExecutor()
    with caplog.at_level(logging.WARNING, "octavo.engine.share_log"):
        assert start_share_log(executor) is None  # type: ignore[arg-type]
    with caplog.at_level(logging.INFO, "octavo.engine.share_log"):
        assert start_share_log(FakeExecutor(work=None)) is None  # type: ignore[arg-type]
        assert executor.num_measured == 0
        assert start_share_log(executor) is not None  # type: ignore[arg-type]
    assert executor.num_measured == 1


def test_steps_of_one_call_count_as_many(caplog: pytest.LogCaptureFixture) -> None:
    log = ShareLog(WORK, CEILINGS)
    with caplog.at_level(logging.INFO, "octavo.engine.share_log"):
        for call in range(20):
            log.observe(batch(1), 9.0 if call < 3 else 8 * 0.004, num_steps=8)
    [message] = caplog.messages
    assert "104 decode steps of 1.0 requests took 4.00 ms each, 50 %" in message
