"""What the scheduler and the cache promise of many requests: counted, on a scripted model where a real one adds nothing."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator

from scripts.proving.rows import SMALL, Paths, Row
from tests.cases.test_llm_cases import resident_bytes
from tests.engine.fakes import VOCAB, FakeExecutor, fake_engine, request
from tests.engine.test_fairness import steps_alone, steps_behind_a_flood

from octavo.bench.experiments import paged
from octavo.bench.options import ClaimsConfig
from octavo.engine.engine import Engine

_NUM_CHURNED = 3000 if SMALL else 10_000
_WARM_UP = 1000


def fairness(paths: Paths) -> Iterator[Row]:
    """Engine steps to the first token of one tenant's request, alone and behind 200 of another."""
    for length in (20, 200):
        unloaded = steps_alone(length)
        loaded = max(steps_behind_a_flood(length, num_before) for num_before in (0, 1, 5, 40))
        yield Row(
            f"steps to the first token of {length} tokens, behind 200 requests of another tenant",
            f"{loaded} (alone {unloaded})",
            "<= 3 x alone + 1",
            loaded <= 3 * unloaded + 1,
        )


def waste(paths: Paths) -> Iterator[Row]:
    """Allocated slots that hold no token, of requests whose lengths are those of chats; a count."""
    figures = paged(16, ClaimsConfig())
    yield Row(
        "KV slots in use of those allocated, lengths of chats",
        f"{figures['paged_used']:.1%}; of reservations {figures['reserved_used']:.0%}",
        "> 96 %",
        figures["paged_used"] > 0.96,
    )


def churn(paths: Paths) -> Iterator[Row]:
    """Random add, abort and finish with shared prefixes: memory, and invariants after every step."""
    rng = random.Random(1)
    engine, executor = fake_engine(num_blocks=300, max_num_seqs=16, max_num_batched_tokens=256)
    _churn(engine, executor, rng, _WARM_UP, "warm")
    gc.collect()
    before = resident_bytes()
    _churn(engine, executor, rng, _NUM_CHURNED - _WARM_UP, "timed")
    gc.collect()
    grown = (resident_bytes() - before) / ((_NUM_CHURNED - _WARM_UP) / 1000)
    stats = engine.stats()
    yield Row(
        f"{_NUM_CHURNED:,} mixed add/abort/finish sharing prefixes: resident memory",
        f"{grown / 1e6:+.2f} MB per 1,000; {stats.num_cached_tokens:,} tokens found",
        "< 1 MB, all invariants hold",
        grown < 1e6 and stats.num_free_blocks == stats.num_blocks,
    )


def _churn(
    engine: Engine, executor: FakeExecutor, rng: random.Random, count: int, name: str
) -> None:
    prefixes = [[rng.randrange(VOCAB) for _ in range(rng.randrange(5, 90))] for _ in range(12)]
    live: list[str] = []
    for i in range(count):
        prompt = [*rng.choice(prefixes), *(rng.randrange(VOCAB) for _ in range(rng.randrange(20)))]
        message = request(
            f"{name} {i}", prompt, max_tokens=rng.randrange(1, 12), n=rng.choice((1, 1, 1, 2))
        )
        message.cache_salt = rng.choice((None, None, f"salt {i % 50}"))
        message.tenant = f"tenant {i % 7}"
        engine.add(message)
        live.append(message.request_id)
        if rng.random() < 0.2:
            engine.abort([live.pop(rng.randrange(len(live)))])
        for _ in range(rng.randrange(4)):
            engine.step()
            engine.check_invariants()
        executor.batches.clear()
        del live[:-40]
    while engine.has_work:
        engine.step()
        engine.check_invariants()
        executor.batches.clear()
