"""Explanations of real requests against a clock of one's own: used by the tests of this folder and by scripts/proving."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo import LLM, AsyncLLM, SamplingParams
from octavo.observability.explain import Explanation
from octavo.outputs import RequestOutput

_LONG = "The quick brown fox jumps over the lazy dog. " * 40
_OPTIONS: dict[str, Any] = {"max_model_len": 1024, "num_threads": 2}


@dataclass(frozen=True)
class Explained:
    """One request: what was said of it, and how long it took by the clock of who asked."""

    what: str
    explanation: Explanation
    wall_s: float

    @property
    def other_share(self) -> float:
        """Of the whole time, what no part accounts for."""
        return abs(self.explanation.parts["other"]) / self.explanation.total_s

    @property
    def wall_gap_s(self) -> float:
        """Between the whole time as explained and as measured outside."""
        return abs(self.wall_s - self.explanation.total_s)


def real_runs(model: Path) -> Iterator[Explained]:
    """Requests of many kinds: alone, cold and warm, cut off, streamed, many together, queued, short of blocks."""
    with LLM(model, kv_cache_memory_bytes="64MiB", **_OPTIONS) as llm:
        for what, prompt, options in (
            ("alone", "Once upon a time", {}),
            ("cold prompt", _LONG, {"max_tokens": 4}),
            ("warm prompt", _LONG, {"max_tokens": 4}),
            ("prompt logprobs", _LONG[:400], {"prompt_logprobs": 1}),
            ("stop string", "Count: one, two, three,", {"stop": ",", "max_tokens": 48}),
        ):
            started = time.perf_counter()
            [output] = llm.generate([prompt], _params(**options), use_tqdm=False)
            yield _explained(what, output, time.perf_counter() - started)
        started = time.perf_counter()
        *_, last = llm.stream("Once upon a time there was", _params())
        yield _explained("streamed", last, time.perf_counter() - started)
        started = time.perf_counter()
        prompts = [f"{i} is the number of" for i in range(8)]
        for output in llm.generate(prompts, _params(n=2, temperature=1.0, seed=1), use_tqdm=False):
            yield _explained("8 of 2 choices together", output, 0.0)
    for what, options in (
        ("queued for 2 slots", {"max_num_seqs": 2, "kv_cache_memory_bytes": "64MiB"}),
        ("short of blocks", {"kv_cache_memory_bytes": "6MiB", "max_model_len": 256}),
    ):
        with AsyncLLM(model, **{**_OPTIONS, **options}) as async_llm:
            yield from asyncio.run(_together(what, async_llm))


async def _together(what: str, llm: AsyncLLM) -> list[Explained]:
    async def one(i: int) -> Explained:
        started = time.perf_counter()
        outputs = llm.generate(f"{i} times we went to the sea.", _params(max_tokens=100))
        return _explained(what, await _last(outputs), time.perf_counter() - started)

    return await asyncio.gather(*(one(i) for i in range(6)))


async def _last(outputs: AsyncIterator[RequestOutput]) -> RequestOutput:
    return [output async for output in outputs][-1]


def _explained(what: str, output: RequestOutput, wall_s: float) -> Explained:
    assert output.explanation is not None
    return Explained(what, output.explanation, wall_s)


def _params(**options: Any) -> SamplingParams:
    return SamplingParams(
        **{"temperature": 0.0, "max_tokens": 24, "ignore_eos": True, "explain": True, **options}
    )
