"""Counters that go on where an engine was replaced by another, which starts from zero."""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from octavo.messages import EngineStats

_COUNTERS: Final = (
    "num_steps",
    "num_prompt_tokens",
    "num_generated_tokens",
    "num_cached_tokens",
    "num_preemptions",
    "num_disk_stored_blocks",
    "num_disk_loaded_blocks",
    "num_broken_invariants",
    "num_step_tokens",
    "num_disk_queried_blocks",
    "model_s",
)


def carried(before: EngineStats, now: EngineStats) -> EngineStats:
    """The gauges of `now`, with the counters of both."""
    sums = {name: getattr(before, name) + getattr(now, name) for name in _COUNTERS}
    misses = Counter(before.num_prefix_misses) + Counter(now.num_prefix_misses)
    return msgspec.structs.replace(now, num_prefix_misses=dict(misses), **sums)
