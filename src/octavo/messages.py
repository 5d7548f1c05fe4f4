"""The structs that cross the boundary between a front end and an engine, in a thread or in a process of its own.

Every added request ends with exactly one `finish_reason` per choice, whatever happens.
"""

from __future__ import annotations

from typing import Final

import msgspec

from octavo.observability.first_token import StepPrices
from octavo.observability.limits import ModelWork
from octavo.params import SamplingParams

MAX_WAIT_EXCEEDED: Final = "max_wait_exceeded"
"""The error code of a request that was not begun in the time that it may wait."""


class AddRequest(msgspec.Struct, array_like=True, gc=False, tag=True):
    """A validated request. `output_token_ids` (one list per choice) were already produced: resume and replay.

    `eos_token_ids` end a choice unless `params.ignore_eos`. `params.max_tokens` is resolved (never None) and fits the
    context. `params.seed` is resolved (never None). Somebody reads a streamed request's tokens while they come.
    A request that was not begun after `max_wait_ms` ends with an error.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    eos_token_ids: list[int] = []
    output_token_ids: list[list[int]] = []
    priority: int = 0
    cache_salt: str | None = None
    tenant: str = ""
    is_streamed: bool = False
    max_wait_ms: int | None = None
    num_candidates: int = 0
    """Alternatives scored per token where a search needs more of them than `params.logprobs` may ask for; 0: not set."""


class TokenScore(msgspec.Struct, array_like=True, gc=False):
    """Raw-distribution log-probabilities at one position: the token itself, then the best alternatives."""

    token_id: int
    logprob: float
    rank: int
    top_ids: list[int] = []
    top_logprobs: list[float] = []


class EngineTimeline(msgspec.Struct, array_like=True, gc=False):
    """Where the time of one choice went in the engine, from `added_s` to `until_s` of the machine's monotonic clock.

    `queue_s`, `preempted_s`, `passed_over_s`, `prefill_s`, `decode_s` and `between_s` are a partition of that time.
    Unless `is_final` the choice was decoding at `until_s`.
    """

    added_s: float = 0.0
    until_s: float = 0.0
    is_final: bool = False
    queue_s: float = 0.0
    preempted_s: float = 0.0
    """Waiting after a preemption, and computing again what had been computed."""
    passed_over_s: float = 0.0
    """Running, with a prompt not done, while steps computed others."""
    prefill_s: float = 0.0
    decode_s: float = 0.0
    between_s: float = 0.0
    """Between steps: outputs are handed on and, in a process without an engine thread, also read."""
    num_ahead: int = 0
    """Requests that were there when it came."""
    ahead_ids: list[str] = []
    """The first few of these, of the same tenant."""
    held_by_slots_s: float = 0.0
    """While it was queued, the first of the queue waited for this."""
    held_by_blocks_s: float = 0.0
    held_by_tokens_s: float = 0.0
    max_num_seqs: int = 0
    num_blocks: int = 0
    num_computed_tokens: int = 0
    """Tokens of prefill, those computed again among them."""
    num_recomputed_tokens: int = 0
    num_chunks: int = 0
    num_decode_steps: int = 0
    num_decode_rows: int = 0
    """Requests computed in these steps, summed over them."""
    decode_model_s: float = 0.0
    beside_prefill_s: float = 0.0
    """Of `decode_model_s`, in steps that also computed prompts of others."""
    miss_at: int = 0
    """Tokens of the prompt that were cached, if not all were."""
    miss_reason: str | None = None
    miss_others: list[int] = []
    """What others of the same tenant and salt have at that place."""
    replayed_s: float = 0.0
    """Before `added_s`: since it first came, in an engine that died, and until another one was there."""


class ChoiceOutput(msgspec.Struct, array_like=True, gc=False):
    """What one step added to one choice of one request. `finish_reason` is FinishReason's value.

    `timeline` comes with the first token and with the end.
    """

    request_id: str
    index: int
    token_ids: list[int] = []
    scores: list[TokenScore] = []
    prompt_scores: list[TokenScore] = []
    finish_reason: str | None = None
    stop_reason: int | None = None
    error: str | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    timeline: EngineTimeline | None = None
    error_code: str | None = None
    """What kind of error, where a front end must tell it from others."""


class EngineStats(msgspec.Struct, array_like=True, gc=False):
    """Counters and gauges of an engine, for metrics and logs."""

    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    """Blocks that no request holds."""
    num_cached_blocks: int = 0
    """Of these, the ones that are kept for what is in them."""
    num_steps: int = 0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_disk_stored_blocks: int = 0
    """KV blocks written to disk."""
    num_disk_loaded_blocks: int = 0
    """KV blocks read from there in place of computing them."""
    num_prefix_misses: dict[str, int] = {}
    """Requests by the reason why not all of their prompt was cached."""
    num_decoding: int = 0
    """Running requests whose prompt is computed."""
    num_prefilled_tokens: int = 0
    """Tokens computed of the prompts of the other running ones."""
    prices: StepPrices | None = None
    """What steps cost; None before a prompt was computed."""
    num_broken_invariants: int = 0
    """Faults that the checks of idle time found."""
    num_step_tokens: int = 0
    """Tokens computed in all steps: of prompts, and those that were decoded."""
    num_disk_queried_blocks: int = 0
    """Blocks that were not in memory and looked for on disk."""
    limit_share: float | None = None
    """The share of the machine's limit that warm decode steps reached; None before it is known."""
    model_s: float = 0.0
    """Seconds spent in the backend. What steps took beyond them went to scheduling and handling."""


class StepOutputs(msgspec.Struct, array_like=True, gc=False, tag=True):
    """One message for all requests of a step."""

    outputs: list[ChoiceOutput] = []
    stats: EngineStats = msgspec.field(default_factory=EngineStats)


def failed_outputs(message: AddRequest, error: str, stats: EngineStats) -> StepOutputs:
    """The ends of a request that was accepted and cannot be computed."""
    ends = [
        ChoiceOutput(message.request_id, index, finish_reason="error", error=error)
        for index in range(message.params.n)
    ]
    return StepOutputs(ends, stats)


class EngineInfo(msgspec.Struct, array_like=True, gc=False):
    """What a front end must know of a loaded engine. Sent once, when it is ready. `work`: None if not known."""

    model_name: str
    architecture: str
    vocab_size: int
    max_model_len: int
    num_blocks: int
    block_size: int
    max_num_seqs: int
    num_parameters: int
    kernel_table: str
    num_threads: int
    work: ModelWork | None = None
