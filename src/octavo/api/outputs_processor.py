"""What the engine produced -> text deltas and ends: the one event stream all interfaces are made from."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from octavo.api.logprobs import LogprobReader, token_text
from octavo.api.stop_strings import StopMatcher
from octavo.api.trace import RequestTrace
from octavo.api.watch import NobodyWatches, Watcher
from octavo.messages import AddRequest, ChoiceOutput
from octavo.outputs import (
    Finished,
    FinishReason,
    RequestMetrics,
    TextDelta,
    TokenLogprobs,
    Usage,
)
from octavo.tokenization.detokenizer import IncrementalDetokenizer
from octavo.tokenization.tokenizer import Tokenizer

Event = TextDelta | Finished

_NOBODY: Final = NobodyWatches()


class RequestState:
    """Everything the front end knows of one request in flight. Has one writer: who routes the engine's outputs.

    Invariant: each choice yields exactly one `Finished`, after all its deltas.
    """

    def __init__(
        self,
        request: AddRequest,
        tokenizer: Tokenizer,
        *,
        prompt: str | None = None,
        clock: Callable[[], float] = time.perf_counter,
        watcher: Watcher = _NOBODY,
    ) -> None:
        self.request_id = request.request_id
        self.prompt = prompt
        self.prompt_token_ids = request.prompt_token_ids
        self.params = request.params
        self.num_cached_tokens = 0
        self.metrics = RequestMetrics()
        self._tokenizer = tokenizer
        self._clock = clock
        self._watcher = watcher
        self.trace = RequestTrace(request, tokenizer, clock)
        # A prompt shows every token it has; an answer leaves control tokens out.
        self._prompt_reader = LogprobReader(tokenizer, skip_special_tokens=False)
        reader = LogprobReader(tokenizer, skip_special_tokens=self.params.skip_special_tokens)
        self._prompt_scores: list[TokenLogprobs | None] = []
        self._choices = [_Choice(i, request, tokenizer, reader) for i in range(self.params.n)]
        self._num_open = len(self._choices)

    @property
    def is_finished(self) -> bool:
        """Whether every choice has ended."""
        return self._num_open == 0

    @property
    def is_engine_done(self) -> bool:
        """Whether the engine too has ended every choice; if not, a finished request must be aborted there."""
        return all(choice.is_engine_done for choice in self._choices)

    @property
    def usage(self) -> Usage:
        """Tokens so far. Tokens after a stop string are not counted."""
        num_generated = sum(choice.num_tokens for choice in self._choices)
        return Usage(len(self.prompt_token_ids), num_generated, self.num_cached_tokens)

    @property
    def finish_reasons(self) -> Sequence[FinishReason]:
        """How each choice ended that has ended."""
        return [choice.finish_reason for choice in self._choices if choice.finish_reason]

    @property
    def num_tokens_by_choice(self) -> Sequence[int]:
        """Tokens of each choice so far."""
        return [choice.num_tokens for choice in self._choices]

    @property
    def prompt_logprobs(self) -> list[TokenLogprobs | None] | None:
        """One entry per prompt token, the first None; None if not asked for. Complete with the first event."""
        return None if self.params.prompt_logprobs is None else [None, *self._prompt_scores]

    @property
    def prompt_text(self) -> str:
        """The prompt as it was written, or as its ids read."""
        if self.prompt is not None:
            return self.prompt
        return self._tokenizer.decode(self.prompt_token_ids, skip_special_tokens=False)

    @property
    def first_prompt_token(self) -> tuple[str, bytes]:
        """Text of the first prompt token, and the bytes it adds to `prompt_text`: none if it is a BOS put in front."""
        tokenizer, token_id = self._tokenizer, self.prompt_token_ids[0]
        data = tokenizer.token_bytes(token_id)
        is_added = tokenizer.adds_bos and token_id == tokenizer.bos_token_id
        return token_text(data), b"" if is_added and self.prompt is not None else data

    def process(self, output: ChoiceOutput) -> list[Event]:
        """Take one message of the engine; return the events it causes."""
        started_s = self._clock()
        events = self._process(output, started_s)
        self.trace.detokenise_s += self._clock() - started_s
        return events

    def take_late(self, output: ChoiceOutput) -> None:
        """Take what the engine tells of a choice after the request ended here."""
        self.trace.take(output)
        if output.finish_reason is not None:
            self._choices[output.index].is_engine_done = True
        self._note_trace()

    def _note_trace(self) -> None:
        metrics, trace = self.metrics, self.trace
        metrics.queue_s = trace.queue_s
        metrics.num_recomputed_tokens = trace.num_recomputed_tokens

    def _process(self, output: ChoiceOutput, now: float) -> list[Event]:
        metrics = self.metrics
        if output.timeline is not None:
            self.trace.take(output)
            self._note_trace()
        if output.num_cached_tokens > self.num_cached_tokens:
            self.num_cached_tokens = metrics.num_cached_tokens = output.num_cached_tokens
        if output.num_preemptions > metrics.num_preemptions:
            metrics.num_preemptions = output.num_preemptions
        if output.prompt_scores and self.params.prompt_logprobs is not None:
            num_top = self.params.prompt_logprobs
            self._prompt_scores += [
                self._prompt_reader.read(score, num_top) for score in output.prompt_scores
            ]
        choice = self._choices[output.index]
        num_before = choice.num_tokens
        events = choice.process(output)
        if choice.num_tokens > num_before:
            self._note_tokens(choice, choice.num_tokens - num_before, now)
        if events and isinstance(events[-1], Finished):
            self._close(events[-1].reason)
        return events

    def _note_tokens(self, choice: _Choice, num_new: int, now: float) -> None:
        """Note when tokens came. Those of one message were computed one after the other since the message before."""
        metrics = self.metrics
        metrics.last_token_s = now - self.trace.arrived_s
        metrics.num_output_tokens += num_new
        if metrics.first_token_s is None:
            metrics.first_token_s = metrics.last_token_s
        before_s, choice.last_token_s = choice.last_token_s, now
        if before_s is not None:
            metrics.num_gaps += num_new
            metrics.gaps_s += now - before_s
            self._watcher.waited(num_new, now - before_s)

    def end_all(self, reason: FinishReason, error: str | None = None) -> list[Event]:
        """End every open choice without the engine: abort, dead engine, shutdown."""
        events: list[Event] = []
        for choice in self._choices:
            if not choice.is_finished:
                events += choice.end(reason, error)
                self._close(reason)
        return events

    def _close(self, reason: FinishReason) -> None:
        """Note that one choice has ended."""
        self._num_open -= 1
        if self.is_finished:
            self.trace.finish(reason.value, self.usage)
            self.metrics.finished_s = self.trace.age_s


class _Choice:
    """One completion of the request: text, stop strings, counts."""

    def __init__(
        self, index: int, request: AddRequest, tokenizer: Tokenizer, reader: LogprobReader
    ) -> None:
        params = request.params
        self.index = index
        self.num_tokens = 0
        self.finish_reason: FinishReason | None = None
        self.is_engine_done = False
        self.last_token_s: float | None = None
        self._params = params
        self._reader = reader
        self._detokenizer = IncrementalDetokenizer(
            tokenizer, skip_special_tokens=params.skip_special_tokens
        )
        self._matcher = StopMatcher(params.stop, keeps_stop=params.include_stop_str_in_output)

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    def process(self, output: ChoiceOutput) -> list[Event]:
        if output.finish_reason is not None:
            self.is_engine_done = True
        if self.is_finished:
            return []  # what the engine made after a stop string is neither counted nor kept
        reason = None if output.finish_reason is None else FinishReason(output.finish_reason)
        text, num_kept, stop = self._take(output.token_ids, reason)
        self.num_tokens += num_kept
        if stop is not None:
            return self._close(
                output, text, num_kept, Finished(self.index, FinishReason.STOP, stop)
            )
        if reason is None:
            return self._delta(output, text, num_kept)
        rest, stop = self._rest(may_stop=self.num_tokens >= self._params.min_tokens)
        if stop is not None:
            return self._close(
                output, text + rest, num_kept, Finished(self.index, FinishReason.STOP, stop)
            )
        end = Finished(self.index, reason, output.stop_reason, output.error, output.error_code)
        return self._close(output, text + rest, num_kept, end)

    def end(self, reason: FinishReason, error: str | None) -> list[Event]:
        rest, _ = self._rest(may_stop=False)
        return self._close(
            ChoiceOutput("", self.index), rest, 0, Finished(self.index, reason, error=error)
        )

    def _take(
        self, token_ids: list[int], reason: FinishReason | None
    ) -> tuple[str, int, str | None]:
        """Text of the new tokens, how many of them count, and the stop string they complete."""
        params = self._params
        hides_last = reason is FinishReason.STOP and not params.include_stop_str_in_output
        if not params.stop:
            shown_ids = token_ids[:-1] if hides_last else token_ids
            return self._detokenizer.push(shown_ids), len(token_ids), None
        shown: list[str] = []
        for i, token_id in enumerate(token_ids):
            if hides_last and i == len(token_ids) - 1:
                break
            text, stop = self._matcher.push(
                self._detokenizer.push((token_id,)),
                may_stop=self.num_tokens + i + 1 >= params.min_tokens,
            )
            shown.append(text)
            if stop is not None:
                return "".join(shown), i + 1, stop
        return "".join(shown), len(token_ids), None

    def _rest(self, *, may_stop: bool) -> tuple[str, str | None]:
        text, stop = self._matcher.push(self._detokenizer.flush(), may_stop=may_stop)
        return (text, stop) if stop is not None else (text + self._matcher.flush(), None)

    def _delta(self, output: ChoiceOutput, text: str, num_kept: int) -> list[Event]:
        if not text and not num_kept:
            return []
        num_top = self._params.logprobs
        scores = () if num_top is None else tuple(
            self._reader.read(score, num_top) for score in output.scores[:num_kept]
        )  # fmt: skip
        return [TextDelta(self.index, text, tuple(output.token_ids[:num_kept]), scores)]

    def _close(self, output: ChoiceOutput, text: str, num_kept: int, end: Finished) -> list[Event]:
        self.finish_reason = end.reason
        return [*self._delta(output, text, num_kept), end]
