"""What a front end notes of each request's time, and the log of those that ended last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from octavo.messages import AddRequest, ChoiceOutput, EngineTimeline
from octavo.observability.explain import Explanation, explain, time_parts
from octavo.observability.request_record import RequestRecord
from octavo.outputs import Usage
from octavo.tokenization.tokenizer import Tokenizer

MAX_TRACES: Final = 1000
"""Requests that can be explained after their end."""

_MAX_SHOWN_TOKENS: Final = 16


class RequestTrace:
    """The times of one request. Keeps no prompt: of one that was not all cached, the few tokens where it was not.

    It may still change after the request ended here: the reader takes the last events, and the engine tells the end of
    a choice that was cut off.
    """

    __slots__ = (
        "_clock",
        "_delivered_s",
        "_finish_reason",
        "_has_prompt_logprobs",
        "_miss_ids",
        "_num_preemptions",
        "_prefill_s",
        "_prompt_ids",
        "_timelines",
        "_tokenizer",
        "_told_s",
        "_usage",
        "arrived_s",
        "detokenise_s",
        "event_wait_s",
        "paused_s",
        "request_id",
        "tenant",
    )

    def __init__(
        self, request: AddRequest, tokenizer: Tokenizer, clock: Callable[[], float]
    ) -> None:
        """The clock must be the engine's: the machine's monotonic one."""
        self.request_id = request.request_id
        self.tenant = request.tenant
        self.detokenise_s = 0.0
        self.event_wait_s = 0.0
        self.paused_s = 0.0
        self._tokenizer = tokenizer
        self._clock = clock
        self.arrived_s = clock()
        self._prefill_s: float | None = None
        self._told_s: float | None = None
        self._delivered_s: float | None = None
        self._finish_reason: str | None = None
        self._usage = Usage(len(request.prompt_token_ids), 0)
        self._num_preemptions = 0
        self._has_prompt_logprobs = request.params.prompt_logprobs is not None
        self._timelines: dict[int, EngineTimeline] = {}
        self._prompt_ids: list[int] | None = request.prompt_token_ids
        self._miss_ids: list[int] = []

    @property
    def age_s(self) -> float:
        """Seconds since the request came."""
        return self._clock() - self.arrived_s

    @property
    def is_delivered(self) -> bool:
        """Whether nothing of its time is still to come."""
        return self._delivered_s is not None

    @property
    def queue_s(self) -> float | None:
        """Seconds until its first step, or until its end if it had none; None if the engine told nothing."""
        timeline = self._first()
        if timeline is None:
            return None
        came_s = timeline.added_s - timeline.replayed_s
        return max(0.0, came_s - self.arrived_s) + timeline.queue_s

    @property
    def prefill_s(self) -> float:
        """Seconds from its first step to its first token, or to its end if that came before."""
        return self._prefill_s or 0.0

    @property
    def inference_s(self) -> float:
        """Seconds from its first step to the end of its last choice; in engines that died, too."""
        first, last = self._first(), self._last()
        if first is None or last is None:
            return 0.0
        return max(0.0, last.until_s - first.added_s + first.replayed_s - first.queue_s)

    @property
    def num_computed_tokens(self) -> int | None:
        """Prompt tokens that were computed, each once; None if the engine told nothing."""
        timeline = self._first()
        if timeline is None:
            return None
        num_tokens = timeline.num_computed_tokens - timeline.num_recomputed_tokens
        return min(num_tokens, self._usage.prompt_tokens)

    @property
    def num_recomputed_tokens(self) -> int:
        """Tokens that were computed again after preemptions, of all choices."""
        return sum(timeline.num_recomputed_tokens for timeline in self._timelines.values())

    def parts(self) -> dict[str, float]:
        """Where its time went, in seconds by name."""
        return time_parts(self._record())

    def take(self, output: ChoiceOutput) -> None:
        """Note what the engine tells of a choice's time."""
        if output.timeline is None:
            return
        self._timelines[output.index] = output.timeline
        first = self._first()
        if first is output.timeline and self._prefill_s is None and not first.num_decode_steps:
            self._prefill_s = first.until_s - first.added_s - first.queue_s
        if output.num_preemptions > self._num_preemptions:
            self._num_preemptions = output.num_preemptions
        if self._prompt_ids is not None and output.timeline.miss_reason is not None:
            at = output.timeline.miss_at
            self._miss_ids = self._prompt_ids[at : at + _MAX_SHOWN_TOKENS]

    def finish(self, reason: str, usage: Usage) -> None:
        """The front end told the last event."""
        self._told_s = self._clock()
        self._finish_reason, self._usage = reason, usage
        self._prompt_ids = None

    def deliver(self) -> None:
        """The reader took the last event. Nothing before `finish`, and when it was noted already."""
        if self._told_s is not None and self._delivered_s is None:
            self._delivered_s = self._clock()

    def explanation(self) -> Explanation:
        """Where the time went, as far as it is known."""
        return explain(self._record())

    def _first(self) -> EngineTimeline | None:
        """The timeline of the choice that had its first token, or its end, before the others."""
        return next(iter(self._timelines.values()), None)

    def _last(self) -> EngineTimeline | None:
        return max(self._timelines.values(), key=lambda one: one.until_s, default=None)

    def _record(self) -> RequestRecord:
        told_s = self._clock() if self._told_s is None else self._told_s
        timeline = self._last()
        others = [] if timeline is None else timeline.miss_others
        return RequestRecord(
            request_id=self.request_id,
            arrived_s=self.arrived_s,
            told_s=told_s,
            delivered_s=told_s if self._delivered_s is None else self._delivered_s,
            timeline=timeline,
            finish_reason=self._finish_reason,
            num_prompt_tokens=self._usage.prompt_tokens,
            num_cached_tokens=self._usage.cached_tokens,
            num_output_tokens=self._usage.completion_tokens,
            num_preemptions=self._num_preemptions,
            detokenise_s=self.detokenise_s,
            event_wait_s=self.event_wait_s,
            paused_s=self.paused_s,
            has_prompt_logprobs=self._has_prompt_logprobs,
            miss_text=self._text(self._miss_ids),
            others_text=self._text(others),
        )

    def _text(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids[:_MAX_SHOWN_TOKENS], skip_special_tokens=False)


class TraceLog:
    """The requests that ended last, by id. An id that comes again stands for the newer request."""

    def __init__(self, max_traces: int = MAX_TRACES) -> None:
        self._max_traces = max_traces
        self._traces: OrderedDict[str, RequestTrace] = OrderedDict()

    def add(self, trace: RequestTrace) -> None:
        """Keep a request that ended; the oldest one goes."""
        self._traces.pop(trace.request_id, None)
        self._traces[trace.request_id] = trace
        if len(self._traces) > self._max_traces:
            self._traces.popitem(last=False)

    def find(self, request_id: str) -> RequestTrace | None:
        """The trace of this id, if it is there."""
        return self._traces.get(request_id)
