"""The mutable state of one choice of one request."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

import numpy as np

from octavo.cache.manager import BlockTable, PrefixMiss
from octavo.engine.timeline import Timeline
from octavo.messages import AddRequest
from octavo.ops.protocol import Int32s
from octavo.outputs import FinishReason
from octavo.params import SamplingParams
from octavo.sampling.rows import ChoiceSampling


class RequestStatus(Enum):
    """Where a request stands."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


_LEGAL: Final = {
    RequestStatus.WAITING: {RequestStatus.RUNNING, RequestStatus.FINISHED},
    RequestStatus.RUNNING: {RequestStatus.PREEMPTED, RequestStatus.FINISHED},
    RequestStatus.PREEMPTED: {RequestStatus.RUNNING, RequestStatus.FINISHED},
    RequestStatus.FINISHED: set[RequestStatus](),
}


class Request:
    """One choice of one AddRequest. The scheduler lets `num_computed_tokens` catch up with `num_tokens`.

    Tokens known beforehand (the outputs of a replayed request, or those made before a preemption) are computed like a
    prompt: there is no other resume path.

    Invariants: 0 <= num_computed_tokens <= num_tokens; `table` is set exactly while the request is running.
    """

    __slots__ = (
        "arrival",
        "eos_token_ids",
        "finish_reason",
        "has_asked_disk",
        "index",
        "is_resumed",
        "is_streamed",
        "max_output_tokens",
        "max_wait_s",
        "miss",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_logprobs",
        "num_preemptions",
        "num_scored_tokens",
        "output_token_ids",
        "params",
        "priority",
        "prompt_token_ids",
        "request_id",
        "salt",
        "sampling",
        "siblings",
        "status",
        "stop_reason",
        "table",
        "tenant",
        "timeline",
        "waiting_since_s",
    )

    def __init__(
        self, message: AddRequest, index: int, prompt: Int32s, arrival: int, max_output_tokens: int
    ) -> None:
        """`prompt` is shared by all choices; `arrival` orders requests; outputs end at `max_output_tokens`."""
        self.request_id = message.request_id
        self.index = index
        self.params: SamplingParams = message.params
        self.priority = message.priority
        self.salt = message.cache_salt
        self.tenant = message.tenant
        self.is_streamed = message.is_streamed
        self.waiting_since_s = 0.0
        self.max_wait_s = None if message.max_wait_ms is None else message.max_wait_ms / 1000
        self.arrival = arrival
        self.prompt_token_ids = prompt
        self.eos_token_ids = frozenset(() if message.params.ignore_eos else message.eos_token_ids)
        self.max_output_tokens = max_output_tokens
        self.output_token_ids: list[int] = []
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.miss: PrefixMiss | None = None
        self.has_asked_disk = False
        self.status = RequestStatus.WAITING
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | None = None
        self.table: BlockTable | None = None
        self.timeline = Timeline()
        self.siblings: tuple[Request, ...] = (self,)
        self.num_logprobs = message.num_candidates or message.params.logprobs
        self.sampling = ChoiceSampling(
            message.params, index, prompt, sorted(self.end_token_ids), message.num_candidates
        )
        # Choice 0 reports the prompt's scores; a replayed request has reported them before its first token.
        is_scoring = message.params.prompt_logprobs is not None and index == 0
        known = message.output_token_ids[index] if index < len(message.output_token_ids) else []
        self.num_scored_tokens = 0 if is_scoring and not known else len(prompt) - 1
        self.is_resumed = any(message.output_token_ids)
        for token_id in known:
            self.append(token_id)

    @property
    def rank(self) -> tuple[int, int, int]:
        """Order of service: priority (lower first), then age, then choice."""
        return (self.priority, self.arrival, self.index)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.output_token_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens known so far, prompt and output."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_wanted_tokens(self) -> int:
        """Tokens to compute now: all known ones, but for a request that draws nothing only those that score."""
        return self.num_tokens if self.max_output_tokens > 0 else self.num_prompt_tokens - 1

    @property
    def wanted_tokens(self) -> Sequence[int] | Int32s:
        """The tokens to compute now, computed or not."""
        return self.tokens(0, self.num_wanted_tokens)

    @property
    def num_remaining_tokens(self) -> int:
        """Known tokens that are not computed."""
        return self.num_wanted_tokens - self.num_computed_tokens

    @property
    def num_plain_steps(self) -> int:
        """Decode steps it can take in one call: 0 unless it lacks one token only, draws, and its row is plain."""
        if self.num_remaining_tokens != 1 or self.is_scoring or not self.sampling.is_plain:
            return 0
        return self.max_output_tokens - self.num_output_tokens

    @property
    def end_token_ids(self) -> frozenset[int]:
        """Tokens that end the request, once it has its min_tokens."""
        return self.eos_token_ids.union(self.params.stop_token_ids)

    @property
    def is_finished(self) -> bool:
        """Whether the request has its finish reason."""
        return self.status is RequestStatus.FINISHED

    @property
    def is_scoring(self) -> bool:
        """Whether prompt scores are still owed."""
        return self.num_scored_tokens < self.num_prompt_tokens - 1

    def has_waited_too_long(self, now_s: float) -> bool:
        """Whether none of its choices was begun in the time that it may wait."""
        return (
            self.max_wait_s is not None
            and now_s - self.waiting_since_s > self.max_wait_s
            and all(
                s.status is RequestStatus.WAITING and not s.output_token_ids for s in self.siblings
            )
        )

    @property
    def is_queued(self) -> bool:
        """Whether it waits to be started or resumed."""
        return self.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)

    @property
    def can_be_forked(self) -> bool:
        """Whether its blocks hold all of the prompt that siblings may share: all but the last token."""
        return (
            self.status is RequestStatus.RUNNING
            and self.num_computed_tokens >= self.num_prompt_tokens - 1
        )

    @property
    def can_fork(self) -> bool:
        """Whether it may start on a sibling's blocks. One that owes prompt scores needs the whole prompt's logits."""
        return self.is_queued and not self.is_scoring and len(self.siblings) > 1

    @property
    def fork_source(self) -> Request | None:
        """A running sibling whose blocks hold the prompt, if this request can use them."""
        return next((s for s in self.siblings if s.can_be_forked), None) if self.can_fork else None

    @property
    def is_prompt_coming(self) -> bool:
        """Whether a running sibling is computing the prompt right now, to be forked soon."""
        return self.can_fork and any(
            s.status is RequestStatus.RUNNING and not s.can_be_forked for s in self.siblings
        )

    def move_to(self, status: RequestStatus) -> None:
        """Change status. A transition outside the table is a programmer error."""
        assert status in _LEGAL[self.status], f"{self.request_id}: {self.status} -> {status}"
        self.status = status

    def tokens(self, start: int, end: int) -> Sequence[int] | Int32s:
        """Token ids of positions start .. end - 1."""
        num_prompt = len(self.prompt_token_ids)
        if end <= num_prompt:
            return self.prompt_token_ids[start:end]
        if start >= num_prompt:
            return self.output_token_ids[start - num_prompt : end - num_prompt]
        return np.concatenate(
            [
                self.prompt_token_ids[start:],
                np.array(self.output_token_ids[: end - num_prompt], np.int32),
            ]
        )

    def append(self, token_id: int) -> None:
        """Add an output token."""
        self.output_token_ids.append(token_id)
        self.sampling.accept(token_id)

    def ending(self) -> tuple[FinishReason, int | None] | None:
        """Reason and stop token with which the newest output token, or the lack of any, ends the request; else None."""
        if self.output_token_ids:
            token_id = self.output_token_ids[-1]
            if self.num_output_tokens > self.params.min_tokens:
                if token_id in self.eos_token_ids:
                    return FinishReason.STOP, None
                if token_id in self.params.stop_token_ids:
                    return FinishReason.STOP, token_id
            if self.num_output_tokens >= self.max_output_tokens:
                return FinishReason.LENGTH, None
        elif self.max_output_tokens == 0 and not self.is_scoring:
            return FinishReason.LENGTH, None
        return None
