"""The tokenizer contract and its construction from model metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from octavo.errors import InvalidRequest, UnsupportedArchitecture
from octavo.tokenization.bpe import BpeCodec, bpe_defaults, find_pre_tokenizer
from octavo.tokenization.special import (
    HIDDEN,
    TokenType,
    Vocabulary,
    build_matcher,
    read_vocabulary,
)
from octavo.tokenization.spm import SPM_DEFAULTS, SpmCodec


class Tokenizer(Protocol):
    """Text to ids and back. Immutable and safe to share between threads.

    A control token (end of turn, BOS) is parsed from text only when asked for; a user-defined token always.
    """

    @property
    def vocab_size(self) -> int: ...

    @property
    def bos_token_id(self) -> int | None: ...

    @property
    def eos_token_id(self) -> int | None:
        """The id that the model itself calls EOS."""
        ...

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Every id that ends a generation (end of text, end of turn)."""
        ...

    @property
    def control_token_ids(self) -> tuple[int, ...]:
        """Every id of which `is_control` is true, ascending."""
        ...

    @property
    def adds_bos(self) -> bool:
        """Whether encode with add_special puts BOS in front."""
        ...

    @property
    def chat_template(self) -> str | None:
        """The template that the model brings."""
        ...

    def encode(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool = False,
        mark: str | None = None,
    ) -> list[int]:
        """Ids of `text`. `mark` is a character that is removed but keeps control-token text around it from parsing."""
        ...

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `ids`; decode(encode(s, add_special=False)) == s. Broken UTF-8 becomes U+FFFD."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes that one token adds to the text (a control token: its name)."""
        ...

    def is_control(self, token_id: int) -> bool:
        """Whether the token is a control token, left out of text by default."""
        ...


Metadata = Mapping[str, object]
"""GGUF key/value pairs: scalars as int, float, bool, str; string arrays as list[str]; numeric arrays as numpy arrays."""


def load_tokenizer(metadata: Metadata) -> Tokenizer:
    """Build the tokenizer that a GGUF file describes. Keeps no reference to `metadata` itself.

    Raises: UnsupportedArchitecture for a kind of tokenizer or a pre-tokenizer that is not known, CorruptWeights for
    tables that contradict themselves.
    """
    kind = metadata.get("tokenizer.ggml.model")
    template = metadata.get("tokenizer.chat_template")
    if kind == "llama":
        vocabulary = read_vocabulary(metadata, SPM_DEFAULTS)
        codec: Codec = SpmCodec(vocabulary, build_matcher(vocabulary, metadata), metadata)
    elif kind in ("gpt2", "gemma4"):
        pre = find_pre_tokenizer(metadata)
        vocabulary = read_vocabulary(metadata, bpe_defaults(pre))
        codec = BpeCodec(vocabulary, build_matcher(vocabulary, metadata), metadata, pre)
    elif kind is None:
        raise UnsupportedArchitecture("the file has no tokenizer (tokenizer.ggml.model)")
    else:
        raise UnsupportedArchitecture(f"unknown tokenizer {kind!r} (tokenizer.ggml.model)")
    return VocabularyTokenizer(vocabulary, codec, template if isinstance(template, str) else None)


class Codec(Protocol):
    """The part in which kinds of tokenizers differ."""

    @property
    def adds_space_prefix(self) -> bool:
        """Whether encode puts a space before text at the start and after a special token."""
        ...

    def encode(self, text: bytes, parse_special: bool, mark: bytes) -> list[int]:
        """Ids of the UTF-8 `text`, without BOS and EOS. An empty mark marks nothing."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of one token; the id is valid."""
        ...


class VocabularyTokenizer:
    """A Tokenizer over a vocabulary: a codec for plain text, and the roles of special tokens around it."""

    def __init__(self, vocabulary: Vocabulary, codec: Codec, chat_template: str | None) -> None:
        self._types = vocabulary.types
        self._bos_id = vocabulary.bos_id
        self._eos_id = vocabulary.eos_id
        self._end_ids = vocabulary.end_ids
        self._adds_bos = vocabulary.adds_bos
        self._adds_eos = vocabulary.adds_eos
        self._control_ids = vocabulary.ids_of_type(*HIDDEN)
        self._is_control = frozenset(self._control_ids).__contains__
        self._codec = codec
        self._chat_template = chat_template

    @property
    def vocab_size(self) -> int:
        return len(self._types)

    @property
    def bos_token_id(self) -> int | None:
        return self._bos_id

    @property
    def eos_token_id(self) -> int | None:
        return self._eos_id

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return self._end_ids

    @property
    def control_token_ids(self) -> tuple[int, ...]:
        return self._control_ids

    @property
    def adds_bos(self) -> bool:
        return self._adds_bos

    @property
    def chat_template(self) -> str | None:
        return self._chat_template

    def encode(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool = False,
        mark: str | None = None,
    ) -> list[int]:
        """Raises: InvalidRequest if `text` is no string or has a lone surrogate."""
        ids = self._codec.encode(_utf8(text), parse_special, _utf8(mark or ""))
        if add_special and self._adds_bos and self._bos_id is not None:
            ids.insert(0, self._bos_id)
        if add_special and self._adds_eos and self._eos_id is not None:
            ids.append(self._eos_id)
        return ids

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Raises: InvalidRequest for an id outside the vocabulary.

        Where encode puts a space before text, decode takes it away: a continuation of a prompt is decoded with
        IncrementalDetokenizer, which keeps it.
        """
        parts: list[bytes] = []
        has_prefix = self._codec.adds_space_prefix
        is_after_special = True
        for token_id in ids:
            data = self.token_bytes(token_id)
            token_type = self._types[token_id]
            if token_type in HIDDEN:
                is_after_special = True
                if not skip_special_tokens:
                    parts.append(data)
                continue
            if has_prefix:
                is_text = token_type != TokenType.USER_DEFINED
                if is_text and is_after_special:
                    data = data.removeprefix(b" ")
                is_after_special = not is_text
            parts.append(data)
        return b"".join(parts).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Raises: InvalidRequest for an id outside the vocabulary."""
        self._check(token_id)
        return self._codec.token_bytes(token_id)

    def is_control(self, token_id: int) -> bool:
        """Raises: InvalidRequest for an id outside the vocabulary."""
        self._check(token_id)
        return self._is_control(token_id)

    def _check(self, token_id: int) -> None:
        if not 0 <= token_id < len(self._types):
            raise InvalidRequest(
                f"token id {token_id} is outside the vocabulary of {len(self._types)} tokens"
            )


def _utf8(text: str) -> bytes:
    if not isinstance(text, str):
        raise InvalidRequest(f"text must be a string, not {type(text).__name__}")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"text is not valid Unicode: lone surrogate at character {error.start}"
        ) from None
