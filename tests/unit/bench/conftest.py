"""A tiny model file, and reports as the benchmarks write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.bench.options import MeasureConfig
from octavo.bench.shares import limits_report
from octavo.observability.limits import MachineCeilings, MatrixWork, ModelWork, ReadRate
from tests.tiny_models import tiny_source, write_gguf

CEILINGS = MachineCeilings(
    kernel_table="avx2",
    num_threads=2,
    int8_instructions="vpmaddubsw + vpmaddwd ymm",
    int8_macs_per_s=1e11,
    bf16_macs_per_s=None,
    f32_macs_per_s=1e10,
    reads=(ReadRate(11 * 10**7, 2.2e9), ReadRate(2**30, 2e9)),
)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 64 channels whose vocabulary has a merge, as every file's has."""
    source = tiny_source("llama")
    tokens, types = (source.metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type"))
    assert isinstance(tokens, list)
    assert isinstance(types, np.ndarray)
    source = source.with_metadata(
        tokenizer__ggml__tokens=[*tokens[:258], "he", *tokens[259:]],
        tokenizer__ggml__token_type=np.where(np.arange(len(types)) == 258, 1, types),
        tokenizer__ggml__merges=["h e"],
    )
    return write_gguf(source, tmp_path_factory.mktemp("tiny") / "tiny.gguf")


def engine_report(factor: float = 1.0) -> dict[str, Any]:
    """A report of `bench engine`."""
    figures = {
        "prefill": 100.0 * factor,
        "decode": {"1": 10.0 * factor, "8": 40.0 * factor},
        "mixed": {"1": 8.0 * factor, "8": 30.0 * factor},
    }
    return {
        "engine": "octavo", "version": "1", "model": "m.gguf", "threads": 2, "prompt": 512, "gen": 64, "repeat": 3,
        **figures, "median": figures, "machine": {"cpu": "A CPU", "kernel_table": "avx2"},
    }  # fmt: skip


def limited_report(factor: float = 1.0) -> dict[str, Any]:
    """A report of `bench engine` that carries limits and tells how it was made."""
    report = engine_report(factor)
    work = ModelWork(MatrixWork(10**8, 0, 10**8), MatrixWork(10**7, 0, 10**7), (768,), (0,))
    rates = {("prefill", 1): [report["prefill"]]} | {
        (kind, int(batch)): [rate]
        for kind in ("decode", "mixed")
        for batch, rate in report[kind].items()
    }
    return {
        **report,
        "outside_model": {
            "prefill": 0.01, "decode": {"1": 0.034, "8": 0.05}, "mixed": {"1": 0.034, "8": 0.05},
        },
        "date": "2026-11-29T12:00:00+00:00", "commit": "0123456789abcdef0123456789abcdef01234567+",
        "command": "octavo bench engine m.gguf",
        "limits": limits_report(work, CEILINGS, MeasureConfig(batch="1,8"), rates, {key: [CEILINGS] for key in rates}),
    }  # fmt: skip


def serve_report() -> dict[str, Any]:
    """A report of `bench serve` with two levels."""
    latency = {"mean": 10.0, "p50": 10.0, "p90": 20.0, "p99": 30.0}
    runs = [
        {
            "level": f"concurrency {n}", "num_completed": 8, "num_failed": 0, "num_unfinished": 0, "is_cut": False,
            "errors": {}, "requests_per_s": n * 1.0, "output_tokens_per_s": n * 64.0, "total_tokens_per_s": n * 200.0,
            "ttft_ms": latency, "tpot_ms": latency, "itl_ms": latency, "e2e_ms": latency, "client_cpu_s": 0.1,
        }
        for n in (1, 8)
    ]  # fmt: skip
    return {
        "model": "m", "url": "http://127.0.0.1:1/v1", "workload": {"workload": "random", "seed": 0}, "runs": runs,
    }  # fmt: skip
