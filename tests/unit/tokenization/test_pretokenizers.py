"""How pre-tokenizers cut."""

from __future__ import annotations

import random

import pytest
from tokenizers import Regex, pre_tokenizers

from octavo.tokenization import bpe
from octavo.tokenization.bpe import BpeCodec
from octavo.tokenization.pretokenizers import PRE_TOKENIZERS
from octavo.tokenization.special import Defaults, build_matcher, read_vocabulary
from tests.unit.tokenization.vocabularies import tiny_bpe


def words(name: str, text: str) -> list[str]:
    cut = PRE_TOKENIZERS[name]
    pieces = [text]
    if cut.digit_runs:
        metadata = tiny_bpe(pre=name)
        vocabulary = read_vocabulary(metadata, Defaults())
        codec = BpeCodec(vocabulary, build_matcher(vocabulary, metadata), metadata, cut)
        pieces = codec._group_digits(text)
    steps = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in cut.splits]
    )
    return [word for piece in pieces for word, _ in steps.pre_tokenize_str(piece)]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("gpt-2", "I'll  go\n\nx1", ["I", "'ll", " ", " go", "\n", "\n", "x", "1"]),
        ("llama-bpe", "I'LL 12345\n\nx", ["I", "'LL", " ", "123", "45", "\n\n", "x"]),
        ("llama-bpe", "a'\u017f", ["a", "'\u017f"]),
        ("qwen2", "x 123", ["x", " ", "1", "2", "3"]),
        ("qwen35", "ne\u0301e", ["ne\u0301e"]),
        ("qwen2", "ne\u0301e", ["ne", "\u0301e"]),
        ("smollm", "a  1", ["a", "  ", "1"]),
        ("gpt-4o", "HelloWorld's XMLHttp", ["Hello", "World's", " XMLHttp"]),
        ("tekken", "helloWorld 42", ["hello", "World", " ", "4", "2"]),
        ("deepseek-v3", "12345日本x.y", ["123", "45", "日本", "x", ".y"]),
        ("deepseek-llm", "ab  \nb   ", ["ab", "  ", "\n", "b", "   "]),
        ("deepseek-llm", "x   1", ["x", "   ", "1"]),
        ("falcon", "a$b 12345", ["a", "$", "b", " ", "123", "45"]),
        ("default", "12345a,b", ["123", "45", "a", ",", "b"]),
        ("superbpe", "one two 1234567", ["one two ", "1", "234", "567"]),
        ("afmoe", "x12345y", ["x", "12", "345", "y"]),
        ("tiny_aya", "1234567 1234ab", ["1", "234", "567", " ", "123", "4", "ab"]),
        ("kimi-k2", "中文Word's", ["中文", "Word's"]),
        ("laguna", "a \n\n b", ["a", " ", "\n\n", " b"]),
        ("bloom", "a|b (c", ["a", "|", "b", " (", "c"]),
        ("seed-coder", "!\n\nx", ["!", "\n\n", "x"]),
        ("jais-2", "a" + " " * 7 + "b", ["a", " " * 4, " " * 2, " b"]),
        ("exaone-moe", "ab cd!", ["ab cd", "!"]),
        ("ufakzeka", "Ankara'da", ["Ankara", "'da"]),
        ("qwen2", "it'd", ["it", "'d"]),
        ("spark2_5", "!\n\n", ["!", "\n", "\n"]),
        ("gemma4", "a b\n\nc", ["a b", "\n\n", "c"]),
    ],
)
def test_words(name: str, text: str, expected: list[str]) -> None:
    assert words(name, text) == expected


def test_aliases_share_their_cut() -> None:
    assert PRE_TOKENIZERS["llama3"] is PRE_TOKENIZERS["pixtral"]
    assert PRE_TOKENIZERS["dbrx"].splits == PRE_TOKENIZERS["llama3"].splits
    assert not PRE_TOKENIZERS["dbrx"].ignores_merges


def test_digit_runs_of_other_numerals_are_left_alone() -> None:
    assert words("superbpe", "一二三四") == ["一二三四"]


@pytest.mark.parametrize("name", [n for n, pre in PRE_TOKENIZERS.items() if pre.is_byte_level])
def test_a_long_text_in_pieces_has_the_ids_of_the_whole(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Merges over a space: a cut where the pre-tokenizer has none would show.
    metadata = tiny_bpe(pre=name, merges=("a b", "b Ġ", "bĠ a", "Ġ a", "Ġa b"))
    vocabulary = read_vocabulary(metadata, Defaults())
    codec = BpeCodec(
        vocabulary, build_matcher(vocabulary, metadata), metadata, PRE_TOKENIZERS[name]
    )
    rng = random.Random(7)
    parts = [
        "a",
        "b",
        "ab",
        " ",
        " ",
        " ",
        "  ",
        "\n",
        "\t",
        "12",
        "'s",
        ".",
        "é",
        "語",
        "A",
        "ſ",
        "\u0301",
        "x y",
    ]
    for _ in range(40):
        text = "".join(rng.choices(parts, k=60)).encode()
        whole = codec.encode(text, False, b"")
        with monkeypatch.context() as patch:
            patch.setattr(bpe, "_PIECE_CHARACTERS", rng.randrange(1, 8))
            assert codec.encode(text, False, b"") == whole


def test_a_text_of_megabytes_takes_little_memory() -> None:
    pieces = list(bpe._pieces("tell me a long story " * 200_000))
    assert "".join(pieces) == "tell me a long story " * 200_000
    assert max(map(len, pieces)) < bpe._PIECE_CHARACTERS + 100
    assert list(bpe._pieces("a" * 100_000)) == ["a" * 100_000]
