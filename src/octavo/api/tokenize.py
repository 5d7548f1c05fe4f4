"""A model's tokenizer without its engine."""

from __future__ import annotations

from octavo.api.models import resolve_model
from octavo.tokenization.tokenizer import Tokenizer, load_tokenizer
from octavo.weights.source import open_weights


def open_tokenizer(model: str) -> Tokenizer:
    """The tokenizer of a catalog name or a .gguf file; a file with a vocabulary and no weights will do.

    Raises: ModelError, StoreError.
    """
    with open_weights(resolve_model(model)) as weights:
        return load_tokenizer(weights.metadata)
