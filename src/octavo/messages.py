"""The only structs that cross the boundary between a front end and an engine (a thread now, a process later).

Every added request ends with exactly one `finish_reason` per choice, whatever happens.
"""

from __future__ import annotations

import msgspec

from octavo.observability.first_token import StepPrices
from octavo.observability.limits import ModelWork
from octavo.params import SamplingParams


class AddRequest(msgspec.Struct, array_like=True, gc=False):
    """A validated request. `output_token_ids` (one list per choice) were already produced: resume and replay.

    `eos_token_ids` end a choice unless `params.ignore_eos`. `params.max_tokens` is resolved (never None) and fits the
    context. `params.seed` is resolved (never None). Somebody reads a streamed request's tokens while they come.
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


class ResetPrefixCache(msgspec.Struct, array_like=True, gc=False):
    """Forget what is stored of earlier prompts. Requests under way go on."""


class TokenScore(msgspec.Struct, array_like=True, gc=False):
    """Raw-distribution log-probabilities at one position: the token itself, then the best alternatives."""

    token_id: int
    logprob: float
    rank: int
    top_ids: list[int] = []
    top_logprobs: list[float] = []


class ChoiceOutput(msgspec.Struct, array_like=True, gc=False):
    """What one step added to one choice of one request. `finish_reason` is FinishReason's value."""

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
    model_s: float = 0.0
    """Seconds spent in the backend. What steps took beyond them went to scheduling and handling."""


class StepOutputs(msgspec.Struct, array_like=True, gc=False):
    """One message for all requests of a step."""

    outputs: list[ChoiceOutput] = []
    stats: EngineStats = msgspec.field(default_factory=EngineStats)


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
