"""What callers get back."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from octavo.observability.explain import Explanation


class FinishReason(Enum):
    """Why a completion ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token's log-probability in the raw model distribution. `rank` counts from 1."""

    logprob: float
    rank: int
    decoded_token: str
    token_bytes: bytes = b""


TokenLogprobs = dict[int, Logprob]
"""Chosen token and alternatives at one position, by token id; the chosen (or given) token comes first."""


@dataclass(slots=True)
class CompletionOutput:
    """One completion of a prompt, so far or in full."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    cumulative_logprob: float | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    @property
    def is_finished(self) -> bool:
        """Whether nothing more will come."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """Times of one request, in seconds of a monotonic clock since its arrival, and what was counted of it.

    Times that are not known yet, or never came, are None.
    """

    first_token_s: float | None = None
    finished_s: float | None = None
    num_preemptions: int = 0
    """How often it was set back to make room for others."""
    num_recomputed_tokens: int = 0
    """Tokens that were computed again after that."""
    last_token_s: float | None = None
    queue_s: float | None = None
    """Until its first step."""
    num_output_tokens: int = 0
    """Of all choices."""
    num_cached_tokens: int = 0
    """Prompt tokens found in the cache."""
    num_gaps: int = 0
    """Tokens that came after another one of their choice."""
    gaps_s: float = 0.0
    """The waits for these tokens, of all choices together."""

    @property
    def generation_s(self) -> float | None:
        """From the first token to the last one."""
        if self.first_token_s is None or self.last_token_s is None:
            return None
        return self.last_token_s - self.first_token_s

    @property
    def mean_itl_s(self) -> float | None:
        """Mean time between two tokens of a choice; None below two tokens."""
        return self.gaps_s / self.num_gaps if self.num_gaps else None

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens after the first one, of all choices, per second of generation; None below two tokens."""
        seconds = self.generation_s
        return (self.num_output_tokens - 1) / seconds if seconds else None


@dataclass(slots=True)
class RequestOutput:
    """Everything known of one request. From a stream: the state after the newest token."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    is_finished: bool = False
    num_cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    explanation: Explanation | None = None
    """Where the time went, once finished, if `SamplingParams.explain` asks for it."""

    @property
    def finished(self) -> bool:
        """vLLM's spelling of `is_finished`."""
        return self.is_finished


@dataclass(slots=True)
class BeamSearchSequence:
    """One sequence that a beam search found, as vLLM has it: `tokens` and `text` begin with the prompt.

    `logprobs` has an entry per generated token, that of the end token too, which is in `tokens` only if asked for.
    """

    tokens: list[int]
    logprobs: list[TokenLogprobs]
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class BeamSearchOutput:
    """What a beam search found for one prompt, the best sequence first."""

    sequences: list[BeamSearchSequence]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text of one choice. Concatenated deltas are the whole text."""

    index: int
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The one terminal event of a choice."""

    index: int
    reason: FinishReason
    stop_reason: int | str | None = None
    error: str | None = None
    error_code: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request. The end token that stopped a choice is counted, its text is not shown."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt plus completion."""
        return self.prompt_tokens + self.completion_tokens
