"""GGF-15 and GGF-13 to the end: unusual but valid files answer like the original, in memory that fits the file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from octavo import LLM, SamplingParams
from octavo.weights.source import open_weights
from octavo.weights.writer import write_gguf

PROMPT = "The capital of Norway is"


def answer(path: Path) -> str:
    with LLM(str(path), max_model_len=64) as llm:
        params = SamplingParams(temperature=0, max_tokens=12)
        return llm.generate(PROMPT, params, use_tqdm=False)[0].outputs[0].text


@pytest.fixture(scope="module")
def expected(smollm2_path: Path) -> str:
    text = answer(smollm2_path)
    assert text.startswith(" Oslo")
    return text


def rewritten(
    source: Path, target: Path, change: Callable[[dict[str, object]], Mapping[str, object]]
) -> Path:
    with open_weights(source) as weights:
        metadata = change(dict(weights.metadata))
        write_gguf(target, metadata, [weights.tensor(name) for name in weights.tensors])
    return target


def test_ggf_15_trailing_zero_bytes_change_nothing(
    smollm2_path: Path, expected: str, tmp_path: Path
) -> None:
    longer = tmp_path / "longer.gguf"
    longer.write_bytes(smollm2_path.read_bytes() + bytes(17))
    assert answer(longer) == expected


CHANGES: dict[str, Callable[[dict[str, object]], Mapping[str, object]]] = {
    "keys in another order": lambda m: dict(reversed(m.items())),
    "extra keys": lambda m: {**m, "x.bool": True, "x.text": "é", "x.nested": [["a"], ["b"]]},
    "alignment 64": lambda m: {**m, "general.alignment": 64},
    "name with emoji": lambda m: {**m, "general.name": "🦙"},
}


@pytest.mark.parametrize("name", CHANGES)
def test_ggf_15_an_unusual_file_answers_like_the_original(
    smollm2_path: Path, expected: str, tmp_path: Path, name: str
) -> None:
    assert answer(rewritten(smollm2_path, tmp_path / "unusual.gguf", CHANGES[name])) == expected


def test_ggf_15_a_missing_pre_tokenizer_is_warned_of_and_gets_the_default(
    smollm2_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    without = lambda m: {k: v for k, v in m.items() if k != "tokenizer.ggml.pre"}  # noqa: E731
    path = rewritten(smollm2_path, tmp_path / "no-pre.gguf", without)
    with caplog.at_level(logging.WARNING):
        assert answer(path)
    assert "tokenizer.ggml.pre" in caplog.text
