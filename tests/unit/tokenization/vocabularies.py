"""Small vocabularies as GGUF metadata, and access to the recorded vectors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from octavo.tokenization.bpe import _BYTES_BY_CHAR
from octavo.tokenization.special import TokenType
from octavo.tokenization.tokenizer import Tokenizer, load_tokenizer
from octavo.weights.source import open_weights

MARK = "\ufdd0"


def open_tokenizer(path: Path) -> Tokenizer:
    with open_weights(path) as source:
        return load_tokenizer(source.metadata)


def inp_out_vectors(vocabulary: Path) -> Iterator[tuple[str, list[int]]]:
    """Texts and ids of the two files beside a vocabulary."""
    texts = Path(f"{vocabulary}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = Path(f"{vocabulary}.out").read_bytes().decode().split("\n")
    return zip(texts, ([int(x) for x in line.split()] for line in lines), strict=True)


def json_vectors(test_data: Path, model: str) -> list[dict[str, object]]:
    """Records of tokenizer_vectors.jsonl whose model's file name begins with `model`."""
    lines = (test_data / "tokenizer_vectors.jsonl").read_text(encoding="utf-8").splitlines()
    return [r for r in map(json.loads, lines) if r["model"].lower().startswith(model)]


def tiny_bpe(
    *extra: tuple[str, TokenType], merges: tuple[str, ...] = ("a b", "Ġ a"), **keys: object
) -> dict[str, object]:
    """All bytes, the given merges, then <|end|> (control), <tool> (user defined) and `extra`."""
    texts = [*_BYTES_BY_CHAR, *(m.replace(" ", "") for m in merges)]
    special = (("<|im_end|>", TokenType.CONTROL), ("<tool>", TokenType.USER_DEFINED), *extra)
    types = [TokenType.NORMAL] * len(texts) + [kind for _, kind in special]
    texts += [text for text, _ in special]
    metadata: dict[str, object] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.merges": list(merges),
    }
    return metadata | {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def tiny_spm(*extra: tuple[str, TokenType, float], **keys: object) -> dict[str, object]:
    """<unk>, <s>, </s>, all bytes, a few letters, <tool> (user defined) and `extra`."""
    entries = [("<unk>", TokenType.UNKNOWN, 0.0), ("<s>", TokenType.CONTROL, 0.0)]
    entries += [("</s>", TokenType.CONTROL, 0.0)]
    entries += [(f"<0x{value:02X}>", TokenType.BYTE, 0.0) for value in range(256)]
    entries += [(c, TokenType.NORMAL, -9.0) for c in "▁ab<s>/"]
    entries += [("ab", TokenType.NORMAL, -2.0), ("▁a", TokenType.NORMAL, -3.0)]
    entries += [("<tool>", TokenType.USER_DEFINED, 0.0), *extra]
    metadata: dict[str, object] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [text for text, _, _ in entries],
        "tokenizer.ggml.token_type": np.array([kind for _, kind, _ in entries], np.int32),
        "tokenizer.ggml.scores": np.array([score for _, _, score in entries], np.float32),
    }
    return metadata | {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def ids_by_text(metadata: dict[str, object]) -> dict[str, int]:
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    return {text: i for i, text in enumerate(tokens)}
