"""SentencePiece BPE: the vocabulary with its scores is all there is; merging happens in native code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from octavo.errors import InvalidRequest
from octavo.tokenization._spm import SpecialMatcher, SpmModel
from octavo.tokenization.special import Defaults, Vocabulary, flag, numbers

SPM_DEFAULTS: Final = Defaults(bos_id=1, eos_id=2, unknown_id=0, adds_bos=True)


class SpmCodec:
    """Text to ids and ids to bytes by a scored vocabulary."""

    def __init__(
        self, vocabulary: Vocabulary, matcher: SpecialMatcher, metadata: Mapping[str, object]
    ) -> None:
        """Raises: CorruptWeights if scores are there but unfit."""
        num_tokens = len(vocabulary.tokens)
        scores = numbers(metadata, "tokenizer.ggml.scores", num_tokens)
        if scores is None:
            scores = np.zeros(num_tokens, np.float32)
        self.adds_space_prefix = flag(metadata, "tokenizer.ggml.add_space_prefix", True)
        self._matcher = matcher
        self._model = SpmModel(
            vocabulary.tokens,
            np.ascontiguousarray(scores, np.float32),
            np.frombuffer(vocabulary.types, np.uint8),
            self.adds_space_prefix,
            -1 if vocabulary.unknown_id is None else vocabulary.unknown_id,
        )

    def encode(self, text: bytes, parse_special: bool, mark: bytes) -> list[int]:
        """Ids of the UTF-8 `text`, without BOS and EOS."""
        try:
            return self._model.encode(text, self._matcher, parse_special, mark)
        except ValueError as error:
            raise InvalidRequest(str(error)) from None

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of one token; the id is valid."""
        return self._model.token_bytes(token_id)
