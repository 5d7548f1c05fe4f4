"""Byte-level BPE (GPT-2 and its heirs) on the `tokenizers` library."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from typing import Final
from unicodedata import category

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from octavo.errors import CorruptWeights, UnsupportedArchitecture
from octavo.tokenization._spm import SpecialMatcher
from octavo.tokenization.pretokenizers import DEFAULT, PRE_TOKENIZERS, PreTokenizer
from octavo.tokenization.special import HIDDEN, Defaults, TokenType, Vocabulary, string_list

logger = logging.getLogger(__name__)

_SPACE_MARK: Final = "\u2581"
_PIECE_CHARACTERS: Final = 16384
_WORD_END: Final = re.compile("(?<=[A-Za-z]) (?=[A-Za-z])")


def _byte_alphabet() -> dict[str, bytes]:
    """GPT-2's printable stand-in for each byte: itself where it is printable Latin-1, else U+0100 and following."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in printable]
    alphabet = {chr(value): bytes([value]) for value in printable}
    alphabet.update((chr(0x100 + i), bytes([value])) for i, value in enumerate(others))
    return alphabet


_BYTES_BY_CHAR: Final = _byte_alphabet()


def find_pre_tokenizer(metadata: Mapping[str, object]) -> PreTokenizer:
    """The pre-tokenizer that the file names; a file that names none gets the default one, and a warning.

    Raises: UnsupportedArchitecture for a name that is not known.
    """
    name = metadata.get("tokenizer.ggml.pre")
    if metadata.get("tokenizer.ggml.model") == "gemma4":
        name = "gemma4"
    if not name:
        logger.warning(
            "the file names no pre-tokenizer (tokenizer.ggml.pre): %r is used and answers may be worse; "
            "a file converted with a recent converter has it",
            DEFAULT,
        )
        name = DEFAULT
    found = PRE_TOKENIZERS.get(name) if isinstance(name, str) else None
    if found is None:
        raise UnsupportedArchitecture(f"unknown pre-tokenizer {name!r} (tokenizer.ggml.pre)")
    return found


def bpe_defaults(pre: PreTokenizer) -> Defaults:
    """What is taken where the file is silent: no BOS or EOS id; whether BOS is added depends on the pre-tokenizer."""
    return Defaults(adds_bos=pre.adds_bos)


class BpeCodec:
    """Text to ids and ids to bytes by ranked merges."""

    adds_space_prefix: Final = False

    def __init__(
        self,
        vocabulary: Vocabulary,
        matcher: SpecialMatcher,
        metadata: Mapping[str, object],
        pre: PreTokenizer,
    ) -> None:
        """Raises: CorruptWeights if the merges are missing or unfit."""
        self._tokens = vocabulary.tokens
        self._types = vocabulary.types
        self._matcher = matcher
        self._pre = pre
        self._digit_runs = (
            pre_tokenizers.Split(Regex(pre.digit_runs), "isolated") if pre.digit_runs else None
        )
        self._bpe = Tokenizer(_build_model(vocabulary, metadata, pre))
        steps: list[pre_tokenizers.PreTokenizer] = [
            pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.splits
        ]
        if pre.is_byte_level:
            steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        self._bpe.pre_tokenizer = pre_tokenizers.Sequence(steps)
        # Letters, a space, letters: nearly every cut is one before the space, whatever else is around.
        words = self._bpe.pre_tokenizer.pre_tokenize_str("ab cd")
        self._cuts_at_spaces = any(start == 2 for _, (start, _) in words)

    def encode(self, text: bytes, parse_special: bool, mark: bytes) -> list[int]:
        """Ids of the UTF-8 `text`, without BOS and EOS."""
        ids: list[int] = []
        for part in self._matcher.split(text, parse_special, mark):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._encode_plain(part)
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of one token; the id is valid."""
        text = self._tokens[token_id]
        token_type = self._types[token_id]
        if token_type == TokenType.USER_DEFINED or token_type in HIDDEN:
            return text.encode("utf-8", "surrogateescape")
        if token_type == TokenType.BYTE and len(text) == 6 and text.startswith("<0x"):
            return bytes.fromhex(text[3:5])
        if not self._pre.is_byte_level:
            return text.replace(_SPACE_MARK, " ").encode("utf-8", "surrogateescape")
        try:
            return b"".join(map(_BYTES_BY_CHAR.__getitem__, text))
        except KeyError:  # not of the byte alphabet: a token that was added as plain text
            return b"".join(
                _BYTES_BY_CHAR.get(c) or c.encode("utf-8", "surrogateescape") for c in text
            )

    def _encode_plain(self, text: str) -> list[int]:
        if self._pre.escapes_spaces:
            text = text.replace(" ", _SPACE_MARK)
        if not self._cuts_at_spaces or len(text) <= 2 * _PIECE_CHARACTERS:
            return self._encode_piece(text)
        return [token_id for piece in _pieces(text) for token_id in self._encode_piece(piece)]

    def _encode_piece(self, text: str) -> list[int]:
        if self._digit_runs is None:
            return self._bpe.encode(text, add_special_tokens=False).ids
        words = self._group_digits(text)
        return self._bpe.encode(words, is_pretokenized=True, add_special_tokens=False).ids

    def _group_digits(self, text: str) -> list[str]:
        """Cut runs of digits into threes from the right, as thousands are written, in linear time."""
        assert self._digit_runs is not None
        words: list[str] = []
        for piece, _ in self._digit_runs.pre_tokenize_str(text):
            if not all(category(c).startswith("N") for c in piece):
                words.append(piece)
                continue
            head = len(piece) % 3
            if head:
                words.append(piece[:head])
            words += (piece[i : i + 3] for i in range(head, len(piece), 3))
        return words


def _pieces(text: str) -> Iterator[str]:
    """A long text cut between words. The library takes some 700 bytes a token, and ends the process if it gets none."""
    start = 0
    while len(text) - start > _PIECE_CHARACTERS:
        space = _WORD_END.search(text, start + _PIECE_CHARACTERS)
        if space is None:
            break
        yield text[start : space.start()]
        start = space.start()
    yield text[start:]


def _build_model(
    vocabulary: Vocabulary, metadata: Mapping[str, object], pre: PreTokenizer
) -> models.BPE:
    """The merge table without control tokens: no text may merge into one."""
    ids = {text: i for i, text in enumerate(vocabulary.tokens)}
    for i in vocabulary.ids_of_type(*HIDDEN):
        ids.pop(vocabulary.tokens[i], None)
    merges = _read_merges(string_list(metadata, "tokenizer.ggml.merges"))
    options = {"ignore_merges": pre.ignores_merges, "byte_fallback": not pre.is_byte_level}
    try:
        return models.BPE(ids, merges, **options)
    except Exception:  # the library's only error: a merge names a token that the vocabulary lacks
        known = [(a, b) for a, b in merges if a in ids and b in ids and a + b in ids]
        logger.info(
            "%d of %d merges name unknown tokens: left out", len(merges) - len(known), len(merges)
        )
    try:
        return models.BPE(ids, known, **options)
    except Exception as error:
        raise CorruptWeights(str(error), field="tokenizer.ggml.merges") from None


def _read_merges(lines: list[str]) -> list[tuple[str, str]]:
    merges: list[tuple[str, str]] = []
    for line in lines:
        left, _, right = line.partition(" ")
        if not left:  # the left token itself begins with a space
            left, _, right = line[1:].partition(" ")
            left = " " + left
        if not right:
            raise CorruptWeights(f"not a pair of tokens: {line!r}", field="tokenizer.ggml.merges")
        merges.append((left, right))
    return merges
