"""The measurements behind `bench claims`. Each round gives named figures; a claim is judged by their medians."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np

from octavo.bench.gaps import longest_gaps
from octavo.bench.loaded import LoadedEngine
from octavo.bench.options import CONTEXT_TOKENS, ClaimsConfig
from octavo.bench.stepping import Span
from octavo.bench.workload import chat_lengths, chat_shapes

NUM_PLACES: Final = 8
"""Requests decoded together, at most."""
_SHORT_PROMPT: Final = 64
_OWN_TOKENS: Final = 32
_NUM_RESERVATIONS: Final = 64
_SPREAD: Final = 1.0
"""Of the log-normal output lengths, as chats have it."""

Figures = dict[str, float]
Experiment = Callable[[LoadedEngine, ClaimsConfig], Figures]


def medians(
    loaded: LoadedEngine,
    run: ClaimsConfig,
    experiments: Iterable[Experiment],
    on_round: Callable[[str], None],
) -> Figures:
    """One round of all experiments that is not timed and `repeat` that are, in turn; the median of each figure."""
    rounds: dict[str, list[float]] = {}
    chosen = list(experiments)
    for round_ in range(run.repeat + 1):
        for experiment in chosen:
            on_round(f"{experiment.__name__} {round_ or '(warm-up)'}")
            for name, value in experiment(loaded, run).items():
                if round_:
                    rounds.setdefault(name, []).append(value)
    return {name: statistics.median(values) for name, values in rounds.items()}


def output_lengths(run: ClaimsConfig) -> list[int]:
    """Tokens that the requests of `continuous` generate: the same in every round."""
    rng = np.random.default_rng(run.seed)
    lengths = chat_lengths(run.output_len, _SPREAD, run.num_requests, rng)
    return [min(length, 4 * run.output_len) for length in lengths]


def continuous(loaded: LoadedEngine, run: ClaimsConfig) -> Figures:
    """Tokens per second: all requests at once, and in waves of NUM_PLACES that wait for their longest.

    Within a wave, requests that ended leave, as they do not in a static batch, which computes padding for them: the
    waves are faster than what they stand for.
    """
    lengths = output_lengths(run)
    waves = [lengths[i : i + NUM_PLACES] for i in range(0, len(lengths), NUM_PLACES)]
    together_s = _seconds(loaded, lengths)
    waves_s = sum(_seconds(loaded, wave) for wave in waves)
    return {"continuous": sum(lengths) / together_s, "static": sum(lengths) / waves_s}


def _seconds(loaded: LoadedEngine, lengths: Sequence[int]) -> float:
    return loaded.generate(loaded.prompts(len(lengths), _SHORT_PROMPT), lengths).seconds


def batch(loaded: LoadedEngine, run: ClaimsConfig) -> Figures:
    """Tokens per second of one request that decodes, and of NUM_PLACES together."""
    return {f"decode_{size}": _decode_rate(loaded, run, size) for size in (1, NUM_PLACES)}


def runs(loaded: LoadedEngine, run: ClaimsConfig) -> Figures:
    """Microseconds a step spends outside the model, one request decoding: step by step, and several steps a call."""
    figures = {}
    for name, max_call_s in (("single", 0.0), ("granted", None)):
        loaded.client.limit_calls(max_call_s)
        try:
            span = _decode_span(loaded, run, 1)
        finally:
            loaded.client.limit_calls(None)
        figures[f"{name}_us"] = 1e6 * (span.seconds - span.model_s) / span.num_steps
        figures[f"{name}_share"] = span.outside_share
    return figures


def chunked(loaded: LoadedEngine, run: ClaimsConfig) -> Figures:
    """Longest gap in ms between outputs of requests that decode: while nothing happens, while a prompt is read."""
    quiet_s, reading_s = longest_gaps(loaded, run.long_prompt)
    return {"quiet_ms": 1000 * quiet_s, "reading_ms": 1000 * reading_s}


def precision(loaded: LoadedEngine, run: ClaimsConfig) -> Figures:
    """Tokens per second of decoding one request, and of reading a prompt."""
    span = loaded.generate(loaded.prompts(1, run.long_prompt), 1)
    return {"prefill": run.long_prompt / span.seconds, "decode": _decode_rate(loaded, run, 1)}


def prefix(loaded: LoadedEngine, run: ClaimsConfig) -> Figures:
    """Requests on one shared prompt, each with a part of its own: the first token of one cold, of one warm; all of them.

    `prefix_computed` is the share of all prompt tokens that were computed, the rest was found.
    """
    [shared] = loaded.prompts(1, run.shared_len)
    prompts = [shared + own for own in loaded.prompts(run.num_sharing, _OWN_TOKENS)]
    before = loaded.client.stats()
    seconds = [
        loaded.generate(some, 1, may_be_cached=True).seconds
        for some in (prompts[:1], prompts[1:2], prompts[2:])
    ]
    after = loaded.client.stats()
    found = after.num_cached_tokens - before.num_cached_tokens
    return {
        "prefix_cold_ms": 1000 * seconds[0],
        "prefix_warm_ms": 1000 * seconds[1],
        "prefix_all_s": sum(seconds),
        "prefix_requests": run.num_sharing,
        "prefix_computed": 1 - found / (after.num_prompt_tokens - before.num_prompt_tokens),
    }


def prefix_room(run: ClaimsConfig) -> int:
    """Tokens of its longest request."""
    return run.shared_len + _OWN_TOKENS + 1


def paged(block_size: int, run: ClaimsConfig) -> Figures:
    """Requests like those of chats in the same memory, each at its full length: in blocks, and in reservations.

    A count, not a timing. The memory is that of _NUM_RESERVATIONS reservations of `reserved_len` tokens.
    """
    reserved_blocks = -(-run.reserved_len // block_size)
    num_blocks = _NUM_RESERVATIONS * reserved_blocks
    # More than fit if each took one block only.
    shapes = chat_shapes(num_blocks, np.random.default_rng(run.seed))
    lengths = np.array([min(sum(shape), run.reserved_len) for shape in shapes])
    held = np.cumsum(-(-lengths // block_size))
    count = int(np.searchsorted(held, num_blocks, side="right"))
    used = int(lengths[:count].sum())
    return {
        "paged": count,
        "reserved": _NUM_RESERVATIONS,
        "reserved_len": run.reserved_len,
        "paged_used": used / (int(held[count - 1]) * block_size),
        "reserved_used": float(lengths[:_NUM_RESERVATIONS].mean()) / run.reserved_len,
    }


def _decode_rate(loaded: LoadedEngine, run: ClaimsConfig, size: int) -> float:
    window = loaded.decode(size, CONTEXT_TOKENS, run.gen)
    assert window.tokens_per_s is not None
    return window.tokens_per_s


def _decode_span(loaded: LoadedEngine, run: ClaimsConfig, size: int) -> Span:
    span = loaded.decode(size, CONTEXT_TOKENS, run.gen).span
    assert span is not None
    return span
