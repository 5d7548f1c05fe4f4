"""Cases of the areas tokenizer and detokenizer that need no engine; the rest is tested over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.errors import InvalidRequest
from octavo.tokenization.detokenizer import IncrementalDetokenizer
from octavo.tokenization.tokenizer import Tokenizer, load_tokenizer
from octavo.weights.source import open_weights


def _load(path: Path) -> Tokenizer:
    with open_weights(path) as source:
        return load_tokenizer(source.metadata)


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return _load(smollm2_path)


@pytest.fixture(scope="module")
def gemma3(gemma3_path: Path) -> Tokenizer:
    return _load(gemma3_path)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("1234567890", [33, 34, 35, 36, 37, 38, 39, 40, 41, 32]),
        ("a1b22 c333", [81, 33, 82, 34, 34, 265, 35, 35, 35]),
        ("Don't we'll I'd", [8084, 982, 392, 3060, 339, 6737]),
        ("a  1 b   22", [81, 256, 33, 278, 333, 34, 34]),
    ],
)
def test_tok_01_the_models_own_pre_tokenizer(smollm2: Tokenizer, text: str, ids: list[int]) -> None:
    assert smollm2.encode(text) == ids


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("  indented\n\ttab\n\n\nend", [216, 641, 6574, 198, 197, 15999, 1116, 198, 486]),
        (" Hello  world", [38699, 216, 905]),
        ("    x", [333, 1792]),
        ("\r\n", [2738]),
        ("\n\n\n\n", [22342]),
    ],
)
def test_tok_02_runs_of_white_space(smollm2: Tokenizer, text: str, ids: list[int]) -> None:
    assert smollm2.encode(text) == ids


@pytest.mark.parametrize(
    "text",
    [
        " " * 64 + "X",
        "👩‍👩‍👧",
        "e\u0301",
        "\u00a0x",
        "日本語",
        "नमस्ते",
        "tab\tend\r\n",
        " lead and trail ",
    ],
)
def test_tok_03_round_trip(smollm2: Tokenizer, gemma3: Tokenizer, text: str) -> None:
    for tokenizer in (smollm2, gemma3):
        assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text


def test_tok_03_sixty_four_spaces(smollm2: Tokenizer) -> None:
    assert smollm2.encode(" " * 64 + "X") == [12427, 1703, 22754, 2273]


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("\t" * 6 + "test", [2, 255973, 2181]),
        ("\n" * 32, [2, 137, 107]),
        ("  x", [2, 138, 236781]),
        ("<b>hi</b>", [2, 200, 2202, 209]),
        ("a\n\nb", [2, 236746, 108, 236763]),
    ],
)
def test_tok_04_user_defined_tokens(gemma3: Tokenizer, text: str, ids: list[int]) -> None:
    assert gemma3.encode(text) == ids
    assert gemma3.encode(text, parse_special=True) == ids


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("🦙", [2, 478, 397, 404, 391]),
        ("\U000f0000x", [2, 481, 414, 366, 366, 236781]),
        ("\x0e", [2, 252]),
    ],
)
def test_tok_05_byte_fallback(gemma3: Tokenizer, text: str, ids: list[int]) -> None:
    assert gemma3.encode(text) == ids
    assert gemma3.decode(ids) == text


def test_tok_07_bos_as_the_model_says_and_as_typed(smollm2: Tokenizer, gemma3: Tokenizer) -> None:
    assert smollm2.encode("Hello world") == [19556, 905]
    sentence = [818, 5279, 529, 7001, 563]
    assert gemma3.encode("The capital of France is") == [2, *sentence]
    typed = gemma3.encode("<bos>The capital of France is", parse_special=True)
    assert typed == [2, 2, *sentence]


@pytest.mark.parametrize("token_id", [49152, -1, 9223372036854775807])
def test_tok_08_bad_ids_are_refused(smollm2: Tokenizer, token_id: int) -> None:
    with pytest.raises(InvalidRequest, match="49152"):
        smollm2.decode([token_id])
    assert smollm2.decode([19556, 905]) == "Hello world"


def test_tok_10_empty_text(smollm2: Tokenizer, gemma3: Tokenizer) -> None:
    assert smollm2.encode("") == []
    assert gemma3.encode("") == [2]


def test_str_01_no_part_of_a_character_in_a_delta(smollm2: Tokenizer, gemma3: Tokenizer) -> None:
    text = "🦙🧬👩‍👩‍👧日本語"
    for tokenizer in (smollm2, gemma3):
        stream = IncrementalDetokenizer(tokenizer)
        deltas = [stream.push([i]) for i in tokenizer.encode(text, add_special=False)]
        assert "\ufffd" not in "".join(deltas)
        assert "".join(deltas) == text
        assert stream.flush() == ""


def test_str_04_first_space_and_space_before_punctuation_stay(smollm2: Tokenizer) -> None:
    for text in (" Paris", "Wait   .", "def f(x):\n    return"):
        stream = IncrementalDetokenizer(smollm2)
        assert "".join(stream.push([i]) for i in smollm2.encode(text)) == text


def test_str_11_control_tokens_are_left_out(smollm2: Tokenizer) -> None:
    assert {0, 2} <= smollm2.eos_token_ids
    assert IncrementalDetokenizer(smollm2).push([2, 0, 1]) == ""


def test_str_11_the_eos_of_the_file(smollm2: Tokenizer, gemma3: Tokenizer) -> None:
    assert smollm2.eos_token_id == 2
    assert gemma3.eos_token_id == 1
    assert 106 in gemma3.eos_token_ids  # <end_of_turn>
    assert 212 not in gemma3.eos_token_ids  # "</s>", a tag
