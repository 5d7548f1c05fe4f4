"""Runs the requests behind one HTTP request, for every route that generates."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

from octavo.api.collect import OutputCollector
from octavo.api.outputs_processor import Event, RequestState
from octavo.api.processor import Prepared
from octavo.api.submission import Submission
from octavo.outputs import CompletionOutput, Finished, FinishReason, RequestOutput, TextDelta
from octavo.server.errors import ApiError, failed_generation
from octavo.server.keys import Caller
from octavo.server.reporting import note_states
from octavo.server.state import ServerState

Batch = list[tuple[int, Event]]


@asynccontextmanager
async def running(
    server: ServerState, prepared: Sequence[Prepared], caller: Caller | None = None
) -> AsyncIterator[Submission]:
    """Requests in the engine; they are stopped when the block is left. Their tokens are charged to `caller`."""
    async with server.llm.submit(prepared) as sent:
        note_states(sent.states)
        if caller is not None:
            caller.charge(sum(len(one.request.prompt_token_ids) for one in prepared))
        try:
            yield sent
        finally:
            if caller is not None:
                caller.charge(sum(state.usage.completion_tokens for state in sent.states))


async def collect(
    server: ServerState, prepared: Sequence[Prepared], caller: Caller | None = None
) -> list[tuple[RequestState, RequestOutput]]:
    """Answer all, in the order given. Raises: ApiError if one fails."""
    async with running(server, prepared, caller) as sent:
        collectors = [OutputCollector(state) for state in sent.states]
        async for batch in sent:
            raise_failure(batch)
            for position, one in batch:
                collectors[position].add((one,))
        return [(c.state, c.snapshot()) for c in collectors]


async def chunks(
    server: ServerState,
    prepared: Sequence[Prepared],
    encode: Callable[[Sequence[RequestState], Batch], Iterable[bytes]],
    last: Callable[[Sequence[RequestState]], bytes],
    *,
    caller: Caller | None = None,
) -> AsyncGenerator[bytes, None]:
    """The bytes of a stream: what `encode` makes of each batch, then `last`.

    What came while the client, or this process, was behind is one batch: each choice gets one chunk of it.
    An error before the first bytes is raised, as ApiError; a later one is sent as the last event.
    """
    is_started = False
    async with running(server, prepared, caller) as sent:
        async for batch in sent:
            try:
                raise_failure(batch)
            except ApiError as error:
                if not is_started:
                    raise
                yield b"data: " + error.body() + b"\n\n"
                return
            data = b"".join(encode(sent.states, coalesced(batch)))
            if data:
                is_started = True
                yield data
        yield last(sent.states)


def coalesced(batch: Batch) -> Batch:
    """The same events with one delta for each choice, then the ends: the texts and scores in their order.

    Which choice comes first may change, which clients tell apart by the index.
    """
    if len(batch) == 1:
        return batch
    deltas: dict[tuple[int, int], list[TextDelta]] = {}
    ends: Batch = []
    for position, event in batch:
        if isinstance(event, TextDelta):
            deltas.setdefault((position, event.index), []).append(event)
        else:
            ends.append((position, event))
    return [(position, _joined(same)) for (position, _), same in deltas.items()] + ends


def _joined(deltas: Sequence[TextDelta]) -> TextDelta:
    if len(deltas) == 1:
        return deltas[0]
    return TextDelta(
        deltas[0].index,
        "".join(delta.text for delta in deltas),
        tuple(token_id for delta in deltas for token_id in delta.token_ids),
        tuple(position for delta in deltas for position in delta.logprobs),
    )


def raise_failure(batch: Batch) -> None:
    """Raises: ApiError if a choice failed or was aborted."""
    for _, one in batch:
        if isinstance(one, Finished):
            if one.reason is FinishReason.ERROR:
                raise failed_generation(one.error, one.error_code)
            if one.reason is FinishReason.ABORT:
                raise failed_generation(one.error or "the request was aborted")


def best_of(completions: Sequence[CompletionOutput], n: int) -> list[CompletionOutput]:
    """The `n` completions with the highest mean log-probability per token, in that order; all as they are if not more."""
    if len(completions) <= n:
        return list(completions)

    def mean_logprob(completion: CompletionOutput) -> float:
        return (completion.cumulative_logprob or 0.0) / max(1, len(completion.token_ids))

    return sorted(completions, key=mean_logprob, reverse=True)[:n]
