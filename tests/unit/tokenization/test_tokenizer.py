"""What both kinds of tokenizers promise."""

from __future__ import annotations

import logging
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import CorruptWeights, InvalidRequest, UnsupportedArchitecture
from octavo.tokenization.pretokenizers import PRE_TOKENIZERS
from octavo.tokenization.special import TokenType
from octavo.tokenization.tokenizer import load_tokenizer
from tests.unit.tokenization.vocabularies import MARK, ids_by_text, tiny_bpe, tiny_spm

BPE, SPM, PLAIN_SPM = tiny_bpe(), tiny_spm(), tiny_spm(add_space_prefix=False)
TOKENIZERS = [load_tokenizer(metadata) for metadata in (BPE, SPM, PLAIN_SPM)]
KINDS = pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=["bpe", "spm", "spm-no-prefix"])
# U+2581 stands for a space in SentencePiece and comes back as one.
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\u2581"), max_size=40)
SNIPPETS = st.lists(
    st.one_of(TEXTS, st.sampled_from(["<tool>", "<|im_end|>", "<s>", " ", "ab", "\n"]))
)


@KINDS
@settings(max_examples=150, deadline=None)
@given(snippets=SNIPPETS)
def test_decode_gives_back_what_was_encoded(tokenizer, snippets):
    text = "".join(snippets)
    assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text


@KINDS
@settings(max_examples=100, deadline=None)
@given(snippets=SNIPPETS)
def test_marks_change_nothing_but_control_tokens(tokenizer, snippets):
    text = "".join(snippets)
    marked = MARK.join(text)
    plain = tokenizer.encode(text, add_special=False)
    assert tokenizer.encode(marked, add_special=False, parse_special=True, mark=MARK) == plain


@pytest.mark.parametrize(("metadata", "name"), [(BPE, "<|im_end|>"), (SPM, "<s>")])
def test_control_tokens_are_parsed_only_when_asked_for(metadata, name):
    tokenizer = load_tokenizer(metadata)
    token_id = ids_by_text(metadata)[name]
    assert token_id not in tokenizer.encode(name, add_special=False)
    assert tokenizer.encode(name, add_special=False, parse_special=True) == [token_id]
    assert tokenizer.is_control(token_id)
    assert token_id in tokenizer.control_token_ids
    assert tokenizer.token_bytes(token_id) == name.encode()
    assert tokenizer.decode([token_id]) == ""
    assert tokenizer.decode([token_id], skip_special_tokens=False) == name
    broken = name[0] + MARK + name[1:]
    assert token_id not in tokenizer.encode(broken, parse_special=True, mark=MARK)[1:]
    around = MARK + name + MARK
    assert tokenizer.encode(around, add_special=False, parse_special=True, mark=MARK) == [token_id]


@pytest.mark.parametrize("metadata", [BPE, SPM])
def test_user_defined_tokens_are_always_parsed(metadata):
    token_id = ids_by_text(metadata)["<tool>"]
    for parse in (False, True):
        ids = load_tokenizer(metadata).encode("<tool>", add_special=False, parse_special=parse)
        assert ids == [token_id]


def test_text_cannot_merge_into_a_control_token():
    metadata = tiny_bpe(("ba", TokenType.CONTROL), merges=("a b", "b a"))
    assert load_tokenizer(metadata).encode("ba") == [ids_by_text(metadata)[c] for c in "ba"]
    metadata = tiny_spm(("ba", TokenType.CONTROL, 9.0), add_space_prefix=False)
    ids = load_tokenizer(metadata).encode("ba", add_special=False)
    assert ids == [ids_by_text(metadata)[c] for c in "ba"]


def test_bos_and_eos_follow_the_file_and_the_defaults_of_the_kind():
    assert TOKENIZERS[1].encode("ab")[0] == 1
    assert TOKENIZERS[1].adds_bos
    assert not load_tokenizer(tiny_spm(add_bos_token=False)).adds_bos
    assert load_tokenizer(tiny_spm(add_eos_token=True)).encode("") == [1, 2]
    assert TOKENIZERS[0].encode("") == []
    assert load_tokenizer(tiny_bpe(bos_token_id=7, add_bos_token=True)).encode("") == [7]
    assert load_tokenizer(tiny_bpe(pre="llama-bpe", bos_token_id=7)).encode("") == [7]
    assert load_tokenizer(tiny_bpe(bos_token_id=7)).encode("") == []


def test_a_bos_that_the_file_does_not_name_is_not_added(caplog):
    assert not load_tokenizer(tiny_bpe(add_bos_token=True)).adds_bos
    assert not load_tokenizer(tiny_bpe(add_bos_token=True, bos_token_id=10**6)).adds_bos
    assert "add_bos_token" in caplog.text


def test_every_end_of_turn_is_known():
    metadata = tiny_bpe(
        ("<|eot_id|>", TokenType.USER_DEFINED),  # mistaken type
        ("</s>", TokenType.USER_DEFINED),  # a tag in this vocabulary
        ("</x>", TokenType.CONTROL),
        ("<eos>", TokenType.CONTROL),
        eot_token_id=3,
        eos_token_id=4,
    )
    by_text = ids_by_text(metadata)
    tokenizer = load_tokenizer(metadata)
    named = {by_text[text] for text in ("<|im_end|>", "<|eot_id|>", "<eos>")}
    assert tokenizer.eos_token_ids == named | {3, 4}
    assert tokenizer.eos_token_id == 4
    assert tokenizer.is_control(by_text["<|eot_id|>"])
    assert not tokenizer.is_control(by_text["</s>"])


def test_harmony_does_not_end_at_the_end_of_a_message():
    extra = [(text, TokenType.CONTROL) for text in ("<|end|>", "<|return|>", "<|call|>")]
    metadata = tiny_bpe(*extra)
    ids = load_tokenizer(metadata).eos_token_ids
    assert ids_by_text(metadata)["<|end|>"] not in ids
    assert ids_by_text(metadata)["<|return|>"] in ids


@KINDS
def test_ids_outside_the_vocabulary_are_refused(tokenizer):
    for token_id in (-1, tokenizer.vocab_size, 2**63 - 1, 2**70):
        for call in (tokenizer.token_bytes, tokenizer.is_control):
            with pytest.raises(InvalidRequest, match="outside the vocabulary"):
                call(token_id)
        with pytest.raises(InvalidRequest):
            tokenizer.decode([5, token_id])


@KINDS
@pytest.mark.parametrize("text", ["a\ud800", "\udfff", "x\udc80y", None, b"a", 3])
def test_what_is_no_unicode_text_is_refused(tokenizer, text):
    with pytest.raises(InvalidRequest):
        tokenizer.encode(text)
    assert tokenizer.encode("ab")


@KINDS
@pytest.mark.parametrize("unit", ["a", " ", "\n", "<", "é", "<tool>", "ab "])
def test_time_grows_about_as_the_text(tokenizer, unit):
    def seconds(count: int) -> float:
        start = time.perf_counter()
        tokenizer.encode(unit * count, parse_special=True)
        return time.perf_counter() - start

    small = min(seconds(5_000) for _ in range(3))
    assert min(seconds(80_000) for _ in range(2)) < 64 * small + 0.1  # quadratic: 256 times


def test_broken_utf8_decodes_to_replacement_characters():
    by_text = ids_by_text(SPM)
    ids = [by_text["<0xF0>"], by_text["<0x9F>"], by_text["ab"], by_text["<0xFF>"]]
    assert TOKENIZERS[1].decode(ids) == "\ufffdab\ufffd"


def test_missing_pre_tokenizer_warns_and_takes_the_default(caplog):
    metadata = tiny_bpe()
    del metadata["tokenizer.ggml.pre"]
    with caplog.at_level(logging.WARNING):
        tokenizer = load_tokenizer(metadata)
    assert "tokenizer.ggml.pre" in caplog.text
    assert tokenizer.encode("ab 123") == load_tokenizer(tiny_bpe(pre="default")).encode("ab 123")


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"pre": "no-such"}, "no-such"),
        ({"model": "rwkv"}, "rwkv"),
        ({"model": None}, "no tokenizer"),
    ],
)
def test_what_is_not_known_is_refused_by_name(keys, named):
    with pytest.raises(UnsupportedArchitecture, match=named):
        load_tokenizer(tiny_bpe(**keys))


@pytest.mark.parametrize(
    "keys",
    [
        {"tokens": []},
        {"tokens": [1, 2]},
        {"merges": None},
        {"merges": ["ab"]},
        {"token_type": np.array([1, 2], np.int32)},
        {"token_type": ["a"]},
        {"bos_token_id": "x"},
        {"add_bos_token": 1},
    ],
)
def test_contradictions_are_corrupt_weights(keys):
    metadata = tiny_bpe() | {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    with pytest.raises(CorruptWeights, match="tokenizer"):
        load_tokenizer(metadata)


def test_spm_scores_must_cover_the_vocabulary():
    with pytest.raises(CorruptWeights, match="scores"):
        load_tokenizer(tiny_spm(scores=np.zeros(3, np.float32)))


def test_a_merge_of_unknown_tokens_is_left_out():
    metadata = tiny_bpe(merges=("a b", "Ġ a"))
    metadata["tokenizer.ggml.merges"] = ["q z", "a b", "zz y"]
    assert load_tokenizer(metadata).encode("ab") == [ids_by_text(metadata)["ab"]]


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_pre_tokenizer_keeps_the_text(name):
    tokenizer = load_tokenizer(tiny_bpe(pre=name))
    text = "Don't  WE'LL\r\n\n 12345 ¡é日本語 한국 x²½ _a-b://c <|x|> \t12ab!\u3000。 123456 "
    if PRE_TOKENIZERS[name].is_byte_level:
        assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text


def test_tokens_that_are_not_utf8_in_the_file_are_kept_as_bytes():
    metadata = tiny_spm(
        ("\udcff\udcfe", TokenType.NORMAL, -1.0), ("\udcff", TokenType.CONTROL, 0.0)
    )
    by_text = ids_by_text(metadata)
    tokenizer = load_tokenizer(metadata)
    assert tokenizer.token_bytes(by_text["\udcff\udcfe"]) == b"\xff\xfe"
    assert tokenizer.token_bytes(by_text["\udcff"]) == b"\xff"


def test_missing_types_make_the_named_specials_control():
    metadata = tiny_bpe(bos_token_id=258, eos_token_id=5)
    del metadata["tokenizer.ggml.token_type"]
    tokenizer = load_tokenizer(metadata)
    assert tokenizer.is_control(5)
    assert tokenizer.eos_token_ids >= {5}
