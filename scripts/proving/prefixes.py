"""What requests have in common is computed once, counted; and what that saves."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import numpy as np
from scripts.proving.exact import exact_rows
from scripts.proving.rows import SMALL, Paths, Row, on_quiet, quiet_bar

from octavo import LLM, SamplingParams
from octavo.kv_layout import BLOCK_SIZE

_NUM_PROMPTS, _MAX_TOKENS = (8, 24) if SMALL else (24, 16)
_SHARED, _OWN, _NUM_REQUESTS = (500, 32, 8) if SMALL else (2000, 32, 24)
_ONE = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)


def exactness(paths: Paths) -> Iterator[Row]:
    """Bit-equal ids with the prefix cache off, cold, warm and too small, greedy and seeded."""
    for name in ("smollm2",) if SMALL else tuple(paths):
        for is_seeded in (False, True):
            yield from exact_rows(
                paths, name, num_prompts=_NUM_PROMPTS, max_tokens=_MAX_TOKENS, is_seeded=is_seeded
            )


def shared_prompts(paths: Paths) -> Iterator[Row]:
    """Prompt tokens computed of requests that share a prefix, and the time to the first token, cold and warm."""
    rng = np.random.default_rng(1)
    with LLM(paths["smollm2"], max_model_len=_SHARED + 100, num_threads=2) as llm:
        for way, slack in (("one after another", 1), ("sent together", BLOCK_SIZE)):
            prompts = _prompts(rng, _NUM_REQUESTS)
            before = llm.stats()
            if slack == 1:
                for prompt in prompts:
                    llm.generate(prompt, _ONE, use_tqdm=False)
            else:
                llm.generate(prompts, _ONE, use_tqdm=False)
            after = llm.stats()
            computed = (after.num_prompt_tokens - before.num_prompt_tokens) - (
                after.num_cached_tokens - before.num_cached_tokens
            )
            ideal = _SHARED + _NUM_REQUESTS * _OWN
            yield Row(
                f"{_NUM_REQUESTS} prompts, {_SHARED} tokens shared, {_OWN} own, {way}: computed",
                f"{computed:,} of {_NUM_REQUESTS * (_SHARED + _OWN):,} prompt tokens",
                f"{ideal:,} + {slack} each",
                ideal <= computed <= ideal + slack * _NUM_REQUESTS,
            )
        yield _first_tokens(llm, rng)


def _first_tokens(llm: LLM, rng: np.random.Generator) -> Row:
    cold, warm = [], []
    for _ in range(2 if SMALL else 5):
        prompts = _prompts(rng, 2)
        for prompt, times in zip(prompts, (cold, warm), strict=True):
            started = time.perf_counter()
            llm.generate(prompt, _ONE, use_tqdm=False)
            times.append(time.perf_counter() - started)
    ratio = statistics.median(cold) / statistics.median(warm)
    bar = 15 if not SMALL else 4
    return Row(
        f"smollm2, {_SHARED} shared tokens: time to the first token, cold : warm",
        f"{1000 * statistics.median(cold):.0f} : {1000 * statistics.median(warm):.0f} ms = {ratio:.1f}x",
        quiet_bar(f">= {bar}x"),
        on_quiet(ratio >= bar),
        {"cold": cold, "warm": warm},
    )


def _prompts(rng: np.random.Generator, count: int) -> list[list[int]]:
    """Random ids, the first of them shared; no two own parts begin alike."""
    shared = rng.integers(1000, 40_000, _SHARED).tolist()
    own = rng.choice(40_000, count, replace=False)
    return [[*shared, int(first), *rng.integers(1000, 40_000, _OWN - 1).tolist()] for first in own]
