"""What the engine promises, as measurements: used by the tests of this folder and by scripts/prove_*.py."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo import LLM, SamplingParams
from octavo.dtypes import KVDType
from octavo.models.table import read_config
from octavo.weights.source import open_weights

MAX_GAP = 0.5
"""Logit gap up to which engines that round activations to 8 bits may choose different tokens."""


def records(path: Path, model: str) -> list[dict]:
    """Lines of a vector file that belong to a catalog model: vectors name it by its published file."""
    family = "gemma" if model.startswith("gemma") else "smollm2"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [r for r in lines if r["model"].lower().startswith(family)]


@dataclass(frozen=True)
class GreedyAgreement:
    """How a free greedy run compares with recorded vectors."""

    num_vectors: int
    num_agreeing: int
    num_steps: int
    failures: list[str]


def greedy_agreement(llm: LLM, vectors: Sequence[dict]) -> GreedyAgreement:
    """Compare up to the first difference; the recorded top-two gap there must be at most MAX_GAP."""
    outputs = llm.generate(
        [v["prompt_ids"] for v in vectors],
        [SamplingParams(temperature=0, max_tokens=len(v["ids"])) for v in vectors],
        use_tqdm=False,
    )
    failures, steps = [], 0
    for vector, output in zip(vectors, outputs, strict=True):
        ours, theirs = output.outputs[0].token_ids, vector["ids"]
        differing = next(
            (i for i in range(len(theirs)) if i >= len(ours) or ours[i] != theirs[i]), None
        )
        steps += len(theirs) if differing is None else differing
        if differing is not None and vector["gap"][differing] > MAX_GAP:
            failures.append(f"{vector['prompt']!r} step {differing} gap {vector['gap'][differing]}")
    return GreedyAgreement(len(vectors), len(vectors) - len(failures), steps, failures)


def prompt_logprobs(llm: LLM, ids: list[int]) -> list[float]:
    """Log-probability of every prompt token but the first."""
    params = SamplingParams(temperature=0, max_tokens=0, prompt_logprobs=0)
    result = llm.generate([ids], params, use_tqdm=False)[0]
    assert result.prompt_logprobs is not None
    return [
        position[token].logprob
        for token, position in zip(ids[1:], result.prompt_logprobs[1:], strict=True)
        if position is not None
    ]


@dataclass(frozen=True)
class LogprobAgreement:
    """Our prompt logprobs against transformers fp32."""

    mean: float
    mean_difference: float
    largest_difference: float
    mean_of: dict[str, float]


def logprob_agreement(llm: LLM, record: dict) -> LogprobAgreement:
    """Scores of one reference text, overall and in the ranges that cases GGF-14 and CTX-06 name."""
    ours = prompt_logprobs(llm, record["ids"])
    reference = record["logprob_transformers_fp32"][1:]
    differences = [abs(a - b) for a, b in zip(ours, reference, strict=True)]
    ranges = {"1-99": (1, 100), "200-499": (200, 500), "600-899": (600, 900)}
    mean_of = {
        name: statistics.fmean(ours[start - 1 : stop - 1])
        for name, (start, stop) in ranges.items()
        if stop <= len(ours)
    }
    return LogprobAgreement(
        statistics.fmean(ours), statistics.fmean(differences), max(differences), mean_of
    )


def exactness_prompts(llm: LLM, num_prompts: int) -> list[list[int]]:
    """Prompts of many lengths, 3 to about 200 tokens, cut from one text; no two alike."""
    tokenizer = llm.get_tokenizer()
    text = (
        "It was a bright cold day in April, and the clocks were striking thirteen; nobody minded. "
        * 24
    )
    ids = tokenizer.encode(text, add_special=False)
    return [ids[7 * i : 7 * i + 3 + (i * 37) % 200] for i in range(num_prompts)]


def exactness_params(num_prompts: int, *, is_seeded: bool, max_tokens: int) -> list[SamplingParams]:
    """Greedy, or seeded sampling with every filter and penalty somewhere."""
    if not is_seeded:
        return [SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)] * num_prompts
    # fmt: off
    return [
        SamplingParams(
            temperature=0.7 + 0.1 * (i % 4), top_k=(0, 40)[i % 2], top_p=(1.0, 0.9)[i % 3 == 0], seed=i,
            repetition_penalty=(1.0, 1.1)[i % 5 == 0], max_tokens=max_tokens, ignore_eos=True,
        )
        for i in range(num_prompts)
    ]
    # fmt: on


def token_ids(llm: LLM, prompts: list[list[int]], params: list[SamplingParams]) -> list[list[int]]:
    """Generated ids of each prompt."""
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [list(o.outputs[0].token_ids) for o in outputs]


def exactness_variants(
    model: Path, num_prompts: int, max_tokens: int, *, is_seeded: bool, **options: Any
) -> Iterator[tuple[str, int, str]]:
    """Yield (variant, number of prompts whose ids differ from each run alone, note). `options` are those of `LLM`."""
    base = {
        "model": str(model),
        "max_model_len": 512,
        "num_threads": 2,
        "enable_prefix_caching": False,
        **options,
    }
    params = exactness_params(num_prompts, is_seeded=is_seeded, max_tokens=max_tokens)
    with LLM(**base) as llm:
        prompts = exactness_prompts(llm, num_prompts)
        # One request always fits, all together never do.
        small_pool_bytes = 44 * _block_bytes(model)
        alone = [token_ids(llm, [p], [s])[0] for p, s in zip(prompts, params, strict=True)]
        yield "all together", _num_different(alone, token_ids(llm, prompts, params)), ""
        _fill_kv(llm, math.nan)
        yield (
            "KV pool pre-filled with NaN",
            _num_different(alone, token_ids(llm, prompts, params)),
            "",
        )
    for chunk in (1, 16, 64, 512):
        with LLM(**base, max_num_batched_tokens=chunk) as llm:
            yield f"chunks of {chunk}", _num_different(alone, token_ids(llm, prompts, params)), ""
    with LLM(**base, kv_cache_memory_bytes=small_pool_bytes) as llm:
        got = token_ids(llm, prompts, params)
        num_preemptions = llm.stats().num_preemptions
        yield (
            "tiny KV pool",
            _num_different(alone, got) + (num_preemptions == 0),
            f"{num_preemptions} preemptions",
        )
    with LLM(**{**base, "num_threads": 1}) as llm:
        yield "1 thread", _num_different(alone, token_ids(llm, prompts, params)), ""
    caching = {**base, "enable_prefix_caching": True}
    with LLM(**caching) as llm:
        yield "prefix cache, cold", _num_different(alone, token_ids(llm, prompts, params)), ""
        num_before = llm.stats().num_cached_tokens
        got = token_ids(llm, prompts, params)
        num_cached = llm.stats().num_cached_tokens - num_before
        num_possible = sum(len(p) - 1 for p in prompts)
        yield (
            "prefix cache, warm",
            _num_different(alone, got) + (num_cached < num_possible),
            f"{num_cached:,} of {num_possible:,} prompt tokens cached",
        )
    with LLM(**caching, kv_cache_memory_bytes=small_pool_bytes) as llm:
        got = token_ids(llm, prompts, params) + token_ids(llm, prompts, params)
        yield "prefix cache, tiny KV pool", _num_different(alone + alone, got), ""


def _fill_kv(llm: LLM, value: float) -> None:
    """Overwrite the KV pool: the one thing no public interface offers."""
    llm._client.fill_kv(value)


def _block_bytes(model: Path) -> int:
    with open_weights(model) as weights:
        return read_config(weights).kv_layout(KVDType.F16).block_bytes


def _num_different(a: list[list[int]], b: list[list[int]]) -> int:
    return sum(x != y for x, y in zip(a, b, strict=True))
