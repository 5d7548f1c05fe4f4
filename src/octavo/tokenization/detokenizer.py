"""Ids to text as they come, one stream at a time."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from octavo.tokenization.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """Text of a growing list of ids. Not shared between streams.

    The deltas concatenate to the text of all ids. A character whose bytes are spread over tokens is held back until it
    is whole; bytes that can no longer become a character give U+FFFD. A leading space stays: the text continues a
    prompt. Costs O(1) amortised a token.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Iterable[int]) -> str:
        """Text that these ids complete; may be empty. Raises: InvalidRequest for an id outside the vocabulary."""
        tokenizer = self._tokenizer
        data = b""
        for token_id in ids:
            if not (self._skip_special_tokens and tokenizer.is_control(token_id)):
                data += tokenizer.token_bytes(token_id)
        return self._decoder.decode(data)

    def flush(self) -> str:
        """End of the stream: U+FFFD for a character that stayed incomplete, else nothing."""
        return self._decoder.decode(b"", final=True)
