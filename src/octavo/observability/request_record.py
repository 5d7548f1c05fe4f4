"""What is kept of a request that ended, and the names of what it may have waited for."""

from __future__ import annotations

from enum import Enum

import msgspec

from octavo.messages import EngineTimeline


class Cause(Enum):
    """What most of the time that could have been saved went to."""

    QUEUE = "queue"
    COLD_PREFILL = "cold_prefill"
    PREEMPTION = "preemption"
    SLOW_CLIENT = "slow_client"
    ENGINE_DIED = "engine_died"
    """Begun in an engine process that died, ended in another."""
    MEMORY = "memory"
    """Queued for KV blocks."""
    NOTHING_UNUSUAL = "nothing_unusual"
    UNKNOWN = "unknown"
    """The engine told nothing."""


class RequestRecord(msgspec.Struct, frozen=True):
    """What is kept of a request that ended. Times are seconds of one monotonic clock, or lengths in seconds.

    `told_s`: the front end had its last event. `delivered_s`: the reader had taken it. `timeline` is that of the choice
    that ended last.
    """

    request_id: str
    arrived_s: float
    told_s: float
    delivered_s: float
    timeline: EngineTimeline | None = None
    finish_reason: str | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    detokenise_s: float = 0.0
    event_wait_s: float = 0.0
    """Events were there and the reader did not take them; most of it beside the decoding."""
    paused_s: float = 0.0
    """The reader held up the engine itself: in a process without an engine thread."""
    has_prompt_logprobs: bool = False
    miss_text: str = ""
    """The prompt from the first token that was not cached."""
    others_text: str = ""
    """What others of the same tenant and salt have there."""


def longest_hold(timeline: EngineTimeline) -> str | None:
    """What held the queue longest while a choice was in it: slots, blocks or tokens; None if nothing did."""
    held = {
        "slots": timeline.held_by_slots_s,
        "blocks": timeline.held_by_blocks_s,
        "tokens": timeline.held_by_tokens_s,
    }
    longest = max(held, key=lambda name: held[name])
    return longest if held[longest] > 0 else None
