"""`octavo tokenize` as scripts use it."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from octavo.cli.main import main


@pytest.fixture
def vocabulary(test_data: Path) -> str:
    return str(test_data / "vocab" / "ggml-vocab-llama-spm.gguf")


@pytest.fixture
def run(capsys, monkeypatch):
    def call(*argv: str, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as end:
            main(["tokenize", *argv])
        out, err = capsys.readouterr()
        return int(end.value.code), out, err

    return call


def test_json_is_one_list_with_bos_unless_told_otherwise(run, vocabulary):
    assert run(vocabulary, "Hello", "--json")[:2] == (0, "[1, 15043]\n")
    assert run(vocabulary, "Hello", "--json", "--no-special")[:2] == (0, "[15043]\n")
    assert run(vocabulary, "--json", stdin=b"Hello")[:2] == (0, "[1, 15043]\n")


def test_control_tokens_are_parsed_on_request(run, vocabulary):
    assert json.loads(run(vocabulary, "</s>", "--json", "--no-special")[1]) != [2]
    parsed = run(vocabulary, "</s>", "--json", "--no-special", "--parse-special")
    assert json.loads(parsed[1]) == [2]


def test_jsonl_answers_each_line(run, vocabulary):
    code, out, _ = run(vocabulary, "--jsonl", stdin=b'"Hello"\n""\n"a\\nb"\n')
    assert code == 0
    assert [json.loads(line) for line in out.splitlines()] == [[1, 15043], [1], [1, 263, 13, 29890]]


def test_without_json_each_token_has_a_line(run, vocabulary):
    assert run(vocabulary, "Hello", "--no-special")[:2] == (0, "15043\t' Hello'\n")


@pytest.mark.parametrize("line", [b"{", b"3", b'"\\ud800"', b"\xff"])
def test_a_bad_line_fails_with_a_message(run, vocabulary, line):
    code, _, err = run(vocabulary, "--jsonl", stdin=line + b"\n")
    assert code == 1
    assert err.startswith("octavo: ")


def test_jsonl_with_a_text_is_wrong_usage(run, vocabulary):
    assert run(vocabulary, "Hello", "--jsonl")[0] == 2
