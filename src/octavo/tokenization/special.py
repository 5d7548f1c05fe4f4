"""What a vocabulary says besides its texts: token types, BOS and EOS, which ids end a generation."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from octavo.errors import CorruptWeights
from octavo.tokenization._spm import SpecialMatcher

logger = logging.getLogger(__name__)


class TokenType(IntEnum):
    """Values of tokenizer.ggml.token_type."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


HIDDEN: Final = (TokenType.CONTROL, TokenType.UNKNOWN)
"""Types that are parsed from text only when asked for, and left out of decoded text by default."""

_STRIP_LEFT: Final = 1
_STRIP_RIGHT: Final = 2

# Texts that end a turn in every vocabulary that has them. Files that give them another type than control are mistaken.
_ENDS: Final = frozenset({
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>",
    "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<end_of_utterance>", "<｜end▁of▁sentence｜>",
})  # fmt: skip
# Texts that end a turn, or a file in a repository listing, where they are control tokens. Elsewhere they are something
# else: Gemma's "</s>" is an HTML tag.
_ENDS_IF_CONTROL: Final = frozenset({
    "</s>", "<eos>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<turn|>", "<|tool_response>", "[e~[",
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "<|file_sep|>",
    "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>",
})  # fmt: skip
_END_KEYS: Final = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
_SPECIAL_KEYS: Final = (*_END_KEYS, "bos", "unknown", "seperator", "padding", "mask")


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a family of tokenizers takes where a file is silent."""

    bos_id: int | None = None
    eos_id: int | None = None
    unknown_id: int | None = None
    adds_bos: bool = False


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Texts and types of all tokens, and the roles that some of them play. `types` has one byte per token."""

    tokens: list[str]
    types: bytes
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    end_ids: frozenset[int]
    adds_bos: bool
    adds_eos: bool

    def ids_of_type(self, *wanted: TokenType) -> tuple[int, ...]:
        """Ids of all tokens of these types, ascending."""
        types = np.frombuffer(self.types, np.uint8)
        return tuple(np.flatnonzero(np.isin(types, wanted)).tolist())


def read_vocabulary(metadata: Mapping[str, object], defaults: Defaults) -> Vocabulary:
    """Read and check the vocabulary of a GGUF file.

    Raises: CorruptWeights if tokens are missing, or an array or number has the wrong type or length.
    """
    tokens = string_list(metadata, "tokenizer.ggml.tokens")
    known_ends = _ENDS | _ENDS_IF_CONTROL
    ends = {text: idx for idx, text in enumerate(tokens) if text in known_ends}
    special_ids = {key: _token_id(metadata, key, len(tokens)) for key in _SPECIAL_KEYS}
    types = _types(metadata, len(tokens), special_ids.values())
    for text, idx in ends.items():
        if text in _ENDS and types[idx] in (TokenType.NORMAL, TokenType.USER_DEFINED):
            logger.info(
                "token %d %r has not the type control in the file; it is treated as one", idx, text
            )
            types[idx] = TokenType.CONTROL
    bos_id = _or_default(special_ids["bos"], defaults.bos_id, len(tokens))
    eos_id = _or_default(special_ids["eos"], defaults.eos_id, len(tokens))
    unknown_id = _or_default(special_ids["unknown"], defaults.unknown_id, len(tokens))
    named = {eos_id, *(special_ids[key] for key in _END_KEYS)} - {None}
    return Vocabulary(
        tokens=tokens,
        types=types.tobytes(),
        bos_id=bos_id,
        eos_id=eos_id,
        unknown_id=unknown_id,
        end_ids=_end_ids(ends, types, (idx for idx in named if idx is not None)),
        adds_bos=_adds(metadata, "bos", defaults.adds_bos, bos_id),
        adds_eos=_adds(metadata, "eos", False, eos_id),
    )


def build_matcher(vocabulary: Vocabulary, metadata: Mapping[str, object]) -> SpecialMatcher:
    """The matcher of every token that is cut out of text before anything else happens to it."""
    matcher = SpecialMatcher()
    strip_of = _strip_rule(metadata)
    for idx in vocabulary.ids_of_type(*HIDDEN, TokenType.USER_DEFINED):
        text = vocabulary.tokens[idx]
        try:
            encoded = text.encode()
        except UnicodeEncodeError:  # not UTF-8 in the file: no text can contain it
            continue
        always = vocabulary.types[idx] == TokenType.USER_DEFINED
        matcher.add(encoded, idx, always, strip_of.get(text, strip_of.get("", 0)))
    return matcher


def string_list(metadata: Mapping[str, object], key: str) -> list[str]:
    """The non-empty string array `key`. Raises: CorruptWeights if it is missing or something else."""
    value = metadata.get(key)
    if not isinstance(value, list) or not value or not isinstance(value[0], str):
        raise CorruptWeights("a non-empty string array is needed", field=key)
    return value


def flag(metadata: Mapping[str, object], key: str, default: bool) -> bool:
    """The bool `key`, or `default` where the file is silent. Raises: CorruptWeights if it is something else."""
    value = metadata.get(key, default)
    if not isinstance(value, bool):
        raise CorruptWeights(f"a bool is needed, not {type(value).__name__}", field=key)
    return value


def numbers(metadata: Mapping[str, object], key: str, count: int) -> npt.NDArray[np.float64] | None:
    """The first `count` elements of the numeric array `key`; None where the file is silent.

    Raises: CorruptWeights if it is shorter or something else.
    """
    value = metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.kind not in "iuf":
        raise CorruptWeights("a numeric array is needed", field=key)
    if len(value) < count:
        raise CorruptWeights(f"{len(value)} elements for {count} tokens", field=key)
    return value[:count].astype(np.float64)


def _token_id(metadata: Mapping[str, object], role: str, num_tokens: int) -> int | None:
    key = f"tokenizer.ggml.{role}_token_id"
    value = metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise CorruptWeights(f"an integer is needed, not {type(value).__name__}", field=key)
    if not 0 <= value < num_tokens:
        logger.warning(
            "%s is %d, but the vocabulary has %d tokens: ignored", key, value, num_tokens
        )
        return None
    return value


def _or_default(value: int | None, default: int | None, num_tokens: int) -> int | None:
    if value is not None or default is None:
        return value
    return default if default < num_tokens else None


def _types(
    metadata: Mapping[str, object], num_tokens: int, special_ids: Iterable[int | None]
) -> npt.NDArray[np.uint8]:
    stored = numbers(metadata, "tokenizer.ggml.token_type", num_tokens)
    if stored is None:
        types = np.full(num_tokens, TokenType.NORMAL, np.uint8)
        types[[idx for idx in special_ids if idx is not None]] = TokenType.CONTROL
        return types
    known = (stored >= 0) & (stored <= max(TokenType))
    return np.where(known, stored, TokenType.UNDEFINED).astype(np.uint8)


def _adds(metadata: Mapping[str, object], role: str, default: bool, token_id: int | None) -> bool:
    key = f"tokenizer.ggml.add_{role}_token"
    wanted = flag(metadata, key, default)
    if wanted and token_id is None:
        logger.warning("%s is true, but the file names no such token: none is added", key)
    return wanted and token_id is not None


def _end_ids(
    ends: Mapping[str, int], types: npt.NDArray[np.uint8], named: Iterable[int]
) -> frozenset[int]:
    ids = {idx for idx in ends.values() if types[idx] == TokenType.CONTROL}
    ids.update(named)
    # Harmony and Solar end a message, not a turn, with <|end|>.
    is_harmony = "<|return|>" in ends and "<|call|>" in ends
    is_solar = "<|flush|>" in ends and ("<|call|>" in ends or "<|calls|>" in ends)
    if (is_harmony or is_solar) and "<|end|>" in ends:
        ids.discard(ends["<|end|>"])
    return frozenset(ids)


def _strip_rule(metadata: Mapping[str, object]) -> dict[str, int]:
    """White space that special tokens swallow, by text; the key "" stands for all others. Files do not say it."""
    name = str(metadata.get("general.name", "")).lower()
    pre = str(metadata.get("tokenizer.ggml.pre", ""))
    if any(part in pre for part in ("jina-v2-de", "jina-v2-es", "jina-v2-code")):
        return {"<mask>": _STRIP_LEFT}
    if "phi-3" in name or "phi3" in name:
        return {"": _STRIP_RIGHT, "<unk>": 0, "<s>": 0, "<|endoftext|>": 0}
    if "modern-bert" in name:
        return {"[MASK]": _STRIP_LEFT}
    return {}
