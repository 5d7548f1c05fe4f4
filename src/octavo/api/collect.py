"""Events -> RequestOutput."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from octavo.api.outputs_processor import Event, RequestState
from octavo.outputs import (
    CompletionOutput,
    Finished,
    FinishReason,
    RequestOutput,
    TextDelta,
)


class OutputCollector:
    """Adds up the events of one request, whose `state` it reads."""

    def __init__(self, state: RequestState) -> None:
        self.state = state
        has_logprobs = state.params.logprobs is not None
        self._completions = [
            CompletionOutput(
                index,
                logprobs=[] if has_logprobs else None,
                cumulative_logprob=0.0 if has_logprobs else None,
            )
            for index in range(state.params.n)
        ]

    def add(self, events: Iterable[Event]) -> None:
        """Take new events."""
        for event in events:
            completion = self._completions[event.index]
            match event:
                case TextDelta():
                    _extend(completion, event)
                case Finished():
                    completion.finish_reason = event.reason.value
                    is_error = event.reason is FinishReason.ERROR
                    completion.stop_reason = event.error if is_error else event.stop_reason

    def snapshot(self) -> RequestOutput:
        """The state now; later events do not change it."""
        state = self.state
        is_finished = all(c.is_finished for c in self._completions)
        return RequestOutput(
            request_id=state.request_id,
            prompt=state.prompt,
            prompt_token_ids=state.prompt_token_ids,
            outputs=[_copy(completion) for completion in self._completions],
            is_finished=is_finished,
            num_cached_tokens=state.num_cached_tokens,
            prompt_logprobs=state.prompt_logprobs,
            metrics=replace(state.metrics),
            explanation=state.trace.explanation() if is_finished and state.params.explain else None,
        )


def _extend(completion: CompletionOutput, delta: TextDelta) -> None:
    completion.text += delta.text
    completion.token_ids.extend(delta.token_ids)
    if completion.logprobs is not None and completion.cumulative_logprob is not None:
        completion.logprobs.extend(delta.logprobs)
        for token_id, position in zip(delta.token_ids, delta.logprobs, strict=False):
            completion.cumulative_logprob += position[token_id].logprob


def _copy(completion: CompletionOutput) -> CompletionOutput:
    return CompletionOutput(
        index=completion.index,
        text=completion.text,
        token_ids=list(completion.token_ids),
        logprobs=None if completion.logprobs is None else list(completion.logprobs),
        cumulative_logprob=completion.cumulative_logprob,
        finish_reason=completion.finish_reason,
        stop_reason=completion.stop_reason,
    )
