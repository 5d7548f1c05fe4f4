"""Recorded answers of other engines, and exact arithmetic, on real models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo import LLM
from octavo.api.perplexity import measure_perplexity
from tests.e2e import measures

GPL_3 = Path("/usr/share/common-licenses/GPL-3")


@pytest.fixture(scope="module", params=["smollm2", "gemma3"])
def real_llm(request: pytest.FixtureRequest) -> Iterator[tuple[LLM, str]]:
    path = request.getfixturevalue(f"{request.param}_path")
    with LLM(str(path), max_model_len=1024) as llm:
        yield llm, request.param


def test_greedy_vectors_agree_where_the_gap_decides(
    real_llm: tuple[LLM, str], test_data: Path
) -> None:
    llm, name = real_llm
    result = measures.greedy_agreement(
        llm, measures.records(test_data / "greedy_vectors.jsonl", name)
    )
    assert not result.failures


def test_ggf_12_prompt_logprobs_of_the_short_text(
    real_llm: tuple[LLM, str], test_data: Path
) -> None:
    llm, name = real_llm
    record = measures.records(test_data / "reference_logprobs.jsonl", name)[0]
    result = measures.logprob_agreement(llm, record)
    assert result.mean == pytest.approx(-3.36 if name == "gemma3" else -3.57, abs=0.05)
    assert result.mean_difference <= 0.12
    assert result.largest_difference <= 0.6


def test_ggf_14_and_ctx_06_long_text_past_the_window(test_data: Path, gemma3_path: Path) -> None:
    record = measures.records(test_data / "reference_logprobs.jsonl", "gemma3")[1]
    with LLM(str(gemma3_path), max_model_len=1024) as llm:
        result = measures.logprob_agreement(llm, record)
    assert result.mean_of["1-99"] == pytest.approx(-3.36, abs=0.06)
    assert result.mean_of["200-499"] == pytest.approx(-3.15, abs=0.05)
    assert result.mean_of["600-899"] == pytest.approx(-2.97, abs=0.05)
    assert result.mean_difference <= 0.12


def test_perplexity_of_the_gpl(real_llm: tuple[LLM, str]) -> None:
    llm, name = real_llm
    if not GPL_3.exists():
        pytest.skip("no GPL-3 text on this machine")
    result = measure_perplexity(llm, GPL_3.read_text(), ctx=512, max_windows=8)
    assert result.num_tokens == 2048
    assert result.perplexity <= (15.15 if name == "gemma3" else 18.52)
