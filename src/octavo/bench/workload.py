"""Requests made up from a seed: the same seed gives the same prompts and lengths everywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, assert_never, cast

import numpy as np

from octavo.bench.options import PromptKind, WorkloadConfig, WorkloadKind

Prompt = list[int] | str

_FIRST_ID: Final = 1000
"""Ids below are often control tokens or single bytes."""

# Median and spread of log-normal lengths. They give the means (about 200 in, 210 out) and the long tails of the
# conversations that serving benchmarks usually take from ShareGPT, which are cut at 1024 tokens too.
_CHAT_INPUT: Final = (100.0, 1.2)
_CHAT_OUTPUT: Final = (130.0, 1.0)
_CHAT_LIMITS: Final = (4, 1024)

_ONSETS: Final = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "st", "tr", "")
_NUCLEI: Final = ("a", "e", "i", "o", "u", "ai", "ea")
_CODAS: Final = ("", "", "n", "r", "s", "l")


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One request: what is sent, and how much is asked for."""

    prompt: Prompt
    max_tokens: int


def make_workload(config: WorkloadConfig, count: int, rng: np.random.Generator) -> list[WorkItem]:
    """`count` requests. Later calls with the same generator give others, so that nothing is cached from before."""
    write = _writer(config, rng)
    match config.workload:
        case WorkloadKind.RANDOM:
            return [WorkItem(write(config.input_len), config.output_len) for _ in range(count)]
        case WorkloadKind.SHAREGPT:
            return [WorkItem(write(i), o) for i, o in chat_shapes(count, rng)]
        case WorkloadKind.PREFIX:
            prefixes = [write(config.prefix_len) for _ in range(config.num_groups)]
            groups = rng.integers(0, config.num_groups, count).tolist()
            return [
                WorkItem(_join(prefixes[group], write(config.input_len)), config.output_len)
                for group in groups
            ]
        case _:
            assert_never(config.workload)


def chat_lengths(median: float, spread: float, count: int, rng: np.random.Generator) -> list[int]:
    """Log-normal lengths in whole tokens, cut to what benchmarks keep of real chats."""
    lengths = np.exp(np.log(median) + spread * rng.standard_normal(count))
    return [int(length) for length in np.clip(np.rint(lengths), *_CHAT_LIMITS)]


def chat_shapes(count: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Tokens of prompt and answer, of requests like those of chats."""
    inputs = chat_lengths(*_CHAT_INPUT, count, rng)
    outputs = chat_lengths(*_CHAT_OUTPUT, count, rng)
    return list(zip(inputs, outputs, strict=True))


def random_ids(count: int, max_id: int, rng: np.random.Generator) -> list[int]:
    """Token ids below `max_id`, away from the low ones where the vocabulary has enough others."""
    ids = rng.integers(min(_FIRST_ID, max_id // 4), max_id, count)
    return cast(list[int], ids.tolist())


def random_words(count: int, rng: np.random.Generator) -> str:
    """Made-up words of one to three syllables."""
    return " ".join(_word(rng) for _ in range(count))


def _word(rng: np.random.Generator) -> str:
    return "".join(
        _ONSETS[rng.integers(len(_ONSETS))]
        + _NUCLEI[rng.integers(len(_NUCLEI))]
        + _CODAS[rng.integers(len(_CODAS))]
        for _ in range(rng.integers(1, 4))
    )


def _writer(config: WorkloadConfig, rng: np.random.Generator) -> Callable[[int], Prompt]:
    match config.prompt_kind:
        case PromptKind.IDS:
            return partial(random_ids, max_id=config.max_token_id, rng=rng)
        case PromptKind.WORDS:
            return partial(random_words, rng=rng)
        case _:
            assert_never(config.prompt_kind)


def _join(prefix: Prompt, rest: Prompt) -> Prompt:
    if isinstance(prefix, str) or isinstance(rest, str):
        return f"{prefix} {rest}"
    return prefix + rest
