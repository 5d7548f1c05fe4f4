"""Recorded ids of llama.cpp."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.tokenization.vocabularies import inp_out_vectors, json_vectors, open_tokenizer

VOCABULARIES = ("deepseek-llm", "falcon", "gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2", "starcoder")  # fmt: skip


@pytest.mark.parametrize("name", VOCABULARIES)
def test_inp_texts_give_out_ids_and_come_back(test_data: Path, name: str) -> None:
    path = test_data / "vocab" / f"ggml-vocab-{name}.gguf"
    tokenizer = open_tokenizer(path)
    checked = 0
    for text, ids in inp_out_vectors(path):
        assert tokenizer.encode(text, add_special=False) == ids, text
        assert tokenizer.decode(ids) == text
        checked += 1
    assert checked == 47


@pytest.mark.parametrize("model", ["smollm2", "gemma"])
def test_json_vectors(request: pytest.FixtureRequest, test_data: Path, model: str) -> None:
    tokenizer = open_tokenizer(
        request.getfixturevalue("gemma3_path" if model == "gemma" else "smollm2_path")
    )
    records = json_vectors(test_data, model)
    assert len(records) == 79
    for record in records:
        text = str(record["text"])
        for special in (0, 1):
            for parse in (0, 1):
                key = f"add{special}_parse{parse}"
                ids = tokenizer.encode(text, add_special=bool(special), parse_special=bool(parse))
                accepted = [record[key]]
                if record["strict"] == "parse1 only" and not parse:  # both engines are right there
                    accepted.append(record["transformers"][key])  # type: ignore[index]
                assert ids in accepted, (record["name"], key)
        if record["strict"]:
            assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text
