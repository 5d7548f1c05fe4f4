"""Streams of ids to streams of text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import InvalidRequest
from octavo.tokenization.detokenizer import IncrementalDetokenizer
from octavo.tokenization.tokenizer import load_tokenizer
from tests.unit.tokenization.vocabularies import ids_by_text, tiny_bpe, tiny_spm

BPE = load_tokenizer(tiny_bpe())
SPM_METADATA = tiny_spm()
SPM = load_tokenizer(SPM_METADATA)


def pieces_of(ids: list[int], sizes: list[int]) -> list[list[int]]:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(ids[at : at + size])
        at += size
    return [*pieces, ids[at:]]


@settings(max_examples=150, deadline=None)
@given(
    ids=st.lists(st.integers(0, BPE.vocab_size - 1), max_size=40),
    sizes=st.lists(st.integers(0, 5), max_size=20),
)
def test_deltas_of_any_ids_concatenate_to_the_full_text(ids, sizes):
    stream = IncrementalDetokenizer(BPE)
    deltas = [stream.push(piece) for piece in pieces_of(ids, sizes)]
    assert "".join(deltas) + stream.flush() == BPE.decode(ids)


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd")))
def test_no_delta_holds_part_of_a_character(text):
    stream = IncrementalDetokenizer(BPE)
    deltas = [stream.push([token_id]) for token_id in BPE.encode(text)]
    assert "".join(deltas) == text
    assert stream.flush() == ""


def test_a_leading_space_is_kept():
    ids = SPM.encode("ab", add_special=False)
    assert SPM.decode(ids) == "ab"
    assert IncrementalDetokenizer(SPM).push(ids) == " ab"


def test_control_tokens_show_only_on_request():
    assert IncrementalDetokenizer(SPM).push([1, 2]) == ""
    assert IncrementalDetokenizer(SPM, skip_special_tokens=False).push([1, 2]) == "<s></s>"


def test_a_character_that_is_never_completed_is_replaced_at_the_end():
    by_text = ids_by_text(SPM_METADATA)
    stream = IncrementalDetokenizer(SPM)
    assert stream.push([by_text["<0xF0>"], by_text["<0x9F>"]]) == ""
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""


def test_ids_outside_the_vocabulary_are_refused():
    with pytest.raises(InvalidRequest):
        IncrementalDetokenizer(BPE).push([10**9])
