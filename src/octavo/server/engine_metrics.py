"""The engine's own counters and gauges as Prometheus metrics, read when somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from octavo import __version__
from octavo.errors import EngineDead
from octavo.messages import EngineInfo, EngineStats

LABELS: Final = ("model_name", "engine")

_MISSES: Final = ("cold", "diverged", "evicted", "salt", "disabled")


class SupervisionCounts(Protocol):
    """What was done about engines that died, since the server started."""

    @property
    def num_restarts(self) -> int:
        """Engines that were started in place of one that died."""
        ...

    @property
    def num_replayed(self) -> int:
        """Requests that went on in another engine."""
        ...

    @property
    def num_quarantined(self) -> int:
        """Requests that ended with an error because engines died of them."""
        ...


class NoSupervision:
    """Of an engine that nobody replaces."""

    num_restarts = 0
    num_replayed = 0
    num_quarantined = 0


_GAUGES: Final[tuple[tuple[str, str, Callable[[EngineStats], float]], ...]] = (
    ("vllm:num_requests_running", "Requests being computed", lambda s: s.num_running),
    ("vllm:num_requests_waiting", "Requests waiting to be computed", lambda s: s.num_waiting),
    (
        "vllm:kv_cache_usage_perc",
        "Share of KV blocks held by requests, 0 to 1",
        lambda s: _num_used(s) / s.num_blocks if s.num_blocks else 0.0,
    ),
    ("octavo:kv_blocks", "KV blocks in all", lambda s: s.num_blocks),
    ("octavo:kv_blocks_used", "KV blocks held by requests", lambda s: _num_used(s)),
    (
        "octavo:kv_blocks_free",
        "KV blocks that hold nothing",
        lambda s: s.num_free_blocks - s.num_cached_blocks,
    ),
    ("octavo:kv_blocks_cached", "KV blocks kept for reuse", lambda s: s.num_cached_blocks),
)

_COUNTERS: Final[tuple[tuple[str, str, Callable[[EngineStats], float]], ...]] = (
    ("vllm:prompt_tokens", "Prompt tokens of accepted requests", lambda s: s.num_prompt_tokens),
    ("vllm:generation_tokens", "Tokens generated", lambda s: s.num_generated_tokens),
    ("vllm:num_preemptions", "Requests set back to make room", lambda s: s.num_preemptions),
    (
        "vllm:prefix_cache_queries",
        "Prompt tokens looked for in the prefix cache",
        lambda s: s.num_prompt_tokens,
    ),
    (
        "vllm:prefix_cache_hits",
        "Prompt tokens found there, and not computed again; those that came from disk among them",
        lambda s: s.num_cached_tokens,
    ),
    ("octavo:kv_blocks_stored", "KV blocks written to disk", lambda s: s.num_disk_stored_blocks),
    (
        "octavo:kv_blocks_loaded",
        "KV blocks read from disk, and not computed again",
        lambda s: s.num_disk_loaded_blocks,
    ),
    ("octavo:engine_steps", "Steps of the engine", lambda s: s.num_steps),
    (
        "octavo:step_tokens",
        "Tokens computed in all steps, of prompts and decoded ones",
        lambda s: s.num_step_tokens,
    ),
    ("octavo:model_seconds", "Seconds that steps spent in the model", lambda s: s.model_s),
    (
        "octavo:broken_invariants",
        "Faults of queues and blocks that idle time's checks found",
        lambda s: s.num_broken_invariants,
    ),
)

_SUPERVISION: Final[tuple[tuple[str, str, Callable[[SupervisionCounts], float]], ...]] = (
    (
        "octavo:engine_restarts",
        "Engines started in place of one that died",
        lambda s: s.num_restarts,
    ),
    (
        "octavo:replayed_requests",
        "Requests that went on in another engine",
        lambda s: s.num_replayed,
    ),
    (
        "octavo:quarantined_requests",
        "Requests ended because engines died of them",
        lambda s: s.num_quarantined,
    ),
)


class EngineMetrics:
    """Reads the counters of an engine. Of one that is dead it shows the last ones that were read."""

    def __init__(
        self,
        model_name: str,
        stats: Callable[[], EngineStats],
        info: EngineInfo,
        supervision: Callable[[], SupervisionCounts],
    ) -> None:
        self._labels = (model_name, "0")
        self._stats = stats
        self._last = EngineStats(num_blocks=info.num_blocks, num_free_blocks=info.num_blocks)
        self._info = info
        self._supervision = supervision

    def families(self) -> Iterator[Metric]:
        """All metrics, as they are now."""
        stats = self._read()
        for name, help_, value in _GAUGES:
            yield gauge(name, help_, self._labels, value(stats))
        for name, help_, value in _COUNTERS:
            yield counter(name, help_, self._labels, value(stats))
        supervision = self._supervision()
        for name, help_, count in _SUPERVISION:
            yield counter(name, help_, self._labels, count(supervision))
        block_size = self._info.block_size
        yield counter(
            "vllm:external_prefix_cache_queries",
            "Prompt tokens looked for on disk: they were not in memory",
            self._labels,
            stats.num_disk_queried_blocks * block_size,
        )
        yield counter(
            "vllm:external_prefix_cache_hits",
            "Prompt tokens read from disk, and not computed again",
            self._labels,
            stats.num_disk_loaded_blocks * block_size,
        )
        yield counters(
            "octavo:prefix_cache_misses",
            "Requests whose prompt was not all cached, by reason",
            self._labels,
            "reason",
            dict.fromkeys(_MISSES, 0) | stats.num_prefix_misses,
        )
        share = GaugeMetricFamily(
            "octavo:limit_share",
            "Share of the machine's limit that warm decode steps reached, measured once",
            labels=LABELS,
        )
        if stats.limit_share is not None:
            share.add_metric(self._labels, stats.limit_share)
        yield share
        yield from self._facts()

    def _read(self) -> EngineStats:
        try:
            self._last = self._stats()
        except EngineDead:
            self._last = msgspec.structs.replace(self._last, num_running=0, num_waiting=0)
        return self._last

    def _facts(self) -> Iterator[Metric]:
        info = self._info
        yield _facts(
            "vllm:cache_config_info",
            "What the KV cache was made with",
            self._labels,
            {"block_size": info.block_size, "num_gpu_blocks": info.num_blocks},
        )
        yield _facts(
            "octavo:engine_info",
            "What runs here",
            self._labels,
            {
                "version": __version__,
                "architecture": info.architecture,
                "kernel_table": info.kernel_table,
                "num_threads": info.num_threads,
                "max_model_len": info.max_model_len,
                "max_num_seqs": info.max_num_seqs,
            },
        )


def gauge(name: str, help_: str, labels: tuple[str, str], value: float) -> Metric:
    """One gauge."""
    family = GaugeMetricFamily(name, help_, labels=LABELS)
    family.add_metric(labels, value)
    return family


def counter(name: str, help_: str, labels: tuple[str, str], value: float) -> Metric:
    """One counter."""
    family = CounterMetricFamily(name, help_, labels=LABELS)
    family.add_metric(labels, value)
    return family


def counters(
    name: str, help_: str, labels: tuple[str, str], label: str, value_by: Mapping[str, float]
) -> Metric:
    """A counter with one more label."""
    family = CounterMetricFamily(name, help_, labels=(*LABELS, label))
    for key, value in value_by.items():
        family.add_metric((*labels, key), value)
    return family


def _facts(name: str, help_: str, labels: Iterable[str], facts: Mapping[str, object]) -> Metric:
    """A gauge that is always 1 and has facts for labels."""
    family = GaugeMetricFamily(name, help_, labels=(*LABELS, *facts))
    family.add_metric((*labels, *map(str, facts.values())), 1)
    return family


def _num_used(stats: EngineStats) -> int:
    return stats.num_blocks - stats.num_free_blocks
