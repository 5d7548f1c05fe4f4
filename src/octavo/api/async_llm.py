"""`AsyncLLM`: the asyncio interface. The engine runs in a thread of its own."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self, Unpack, cast

from octavo.api.beam_search import search_output, search_sampling
from octavo.api.collect import OutputCollector
from octavo.api.options import LLMOptions, engine_config
from octavo.api.outputs_processor import Event
from octavo.api.processor import (
    DEFAULT_CHAT,
    DEFAULT_OPTIONS,
    ChatOptions,
    Message,
    Prepared,
    Processor,
    Prompt,
    RequestOptions,
    split_prompt,
)
from octavo.api.router import Router
from octavo.api.runtime import Runtime, load_runtime, nothing, start_engine_process
from octavo.api.submission import Inbox, Submission
from octavo.api.watch import Watcher
from octavo.config import NO_LIMITS, EngineConfig, QueueLimits
from octavo.engine.client import EngineClient, ThreadedClient
from octavo.engine.process_client import SupervisionStats
from octavo.engine.spawn import EarlyProcess
from octavo.messages import EngineInfo, EngineStats, StepOutputs
from octavo.observability.explain import Explanation
from octavo.outputs import BeamSearchOutput, FinishReason, RequestOutput
from octavo.params import BeamSearchParams, SamplingParams
from octavo.tokenization.tokenizer import Tokenizer

MAX_INLINE_CHARACTERS: Final = 8192
"""Longer texts are tokenised in a thread: the event loop must not wait for them."""

ClientFactory = Callable[[Callable[[StepOutputs], None]], EngineClient]
"""Makes a client that calls the given function, from any thread, with the outputs of each step."""


class AsyncLLM:
    """A model, loaded and ready to answer many callers of one event loop.

        llm = AsyncLLM("smollm2")
        async for output in llm.generate("Once upon a time", SamplingParams(max_tokens=64)):
            print(output.outputs[0].text)

    Keyword arguments are those of `LLMOptions`. Cancelling or leaving an iterator stops its request in the engine.
    Loading blocks; make it in a thread where that matters. Raises: as `LLM`.
    """

    def __init__(self, model: str | Path, **options: Unpack[LLMOptions]) -> None:
        config = engine_config(model, cast(Mapping[str, object], options))
        runtime = load_runtime(config, tokenizer=options.get("tokenizer"), seed=options.get("seed"))
        self._start(*_threaded(runtime))

    @classmethod
    def from_config(
        cls,
        config: EngineConfig,
        *,
        tokenizer: str | Path | Tokenizer | None = None,
        seed: int | None = None,
        queue: QueueLimits = NO_LIMITS,
    ) -> Self:
        """Load what `config` describes. More requests than `queue` lets wait raise QueueFull."""
        runtime = load_runtime(config, tokenizer=tokenizer, seed=seed)
        return cls.from_client(*_threaded(runtime, queue))

    @classmethod
    def supervised(
        cls,
        config: EngineConfig,
        *,
        tokenizer: str | Path | Tokenizer | None = None,
        seed: int | None = None,
        queue: QueueLimits = NO_LIMITS,
        replays: bool = True,
        early: EarlyProcess | None = None,
        on_lost: Callable[[], None] = nothing,
    ) -> Self:
        """Load what `config` describes in a process of its own, which is replaced when it dies.

        Requests in flight go on in the next engine, with the same tokens, unless `replays` is false: they end with an
        error then. `early` is a process that waits to be the engine. `on_lost` is called, in another thread, when no
        engine can be started any more.
        """
        client, processor = start_engine_process(
            config,
            tokenizer=tokenizer,
            seed=seed,
            queue=queue,
            replays=replays,
            early=early,
            on_lost=on_lost,
        )

        def connect(deliver: Callable[[StepOutputs], None]) -> EngineClient:
            client.connect(deliver)
            return client

        llm = cls.from_client(connect, processor, lambda: client.is_alive)
        llm._supervision = client.supervision_stats
        return llm

    @classmethod
    def from_client(
        cls, make_client: ClientFactory, processor: Processor, is_alive: Callable[[], bool]
    ) -> Self:
        """Speak to an engine that is already there. `is_alive` says whether it still takes requests."""
        llm = cls.__new__(cls)
        llm._start(make_client, processor, is_alive)
        return llm

    def _start(
        self, make_client: ClientFactory, processor: Processor, is_alive: Callable[[], bool]
    ) -> None:
        inbox = (
            Inbox()
        )  # the engine's thread knows the inbox only, so that `del` of this object ends the engine
        self._processor = processor
        self._is_alive = is_alive
        self._supervision = SupervisionStats()
        self._inbox = inbox
        self._client: EngineClient = make_client(inbox.deliver)
        self._router = inbox.router = Router(self._client, processor.tokenizer)
        self._ids = itertools.count()

    # ---- answers ----

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """Complete a prompt, yielding the state after each step. Raises: InvalidRequest, EngineDead."""
        async with self.submit(
            [await self._prepare_one(prompt, sampling_params, request_id)]
        ) as sent:
            collector = OutputCollector(sent.states[0])
            async for batch in sent:
                collector.add(event for _, event in batch)
                yield collector.snapshot()

    async def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
    ) -> AsyncIterator[Event]:
        """Complete a prompt, yielding text deltas and, once per choice, its end. Raises: InvalidRequest, EngineDead."""
        async with self.submit(
            [await self._prepare_one(prompt, sampling_params, request_id)]
        ) as sent:
            async for batch in sent:
                for _, event in batch:
                    yield event

    async def chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        chat: ChatOptions = DEFAULT_CHAT,
    ) -> AsyncIterator[RequestOutput]:
        """Answer a conversation, yielding the state after each step. Raises: InvalidRequest, EngineDead."""
        params, options = _defaults(sampling_params)
        prepared = await self.prepare_chat(messages, params, request_id, chat=chat, options=options)
        async with self.submit([prepared]) as sent:
            collector = OutputCollector(sent.states[0])
            async for batch in sent:
                collector.add(event for _, event in batch)
                yield collector.snapshot()

    async def beam_search(
        self, prompt: Prompt, params: BeamSearchParams, request_id: str | None = None
    ) -> BeamSearchOutput:
        """Find the `beam_width` best sequences of a prompt. Raises: InvalidRequest, EngineDead."""
        options = RequestOptions(search=params)
        prepared = await self.prepare(
            [prompt], search_sampling(params), options=options, request_id=request_id
        )
        async with self.submit(prepared) as sent:
            collector = OutputCollector(sent.states[0])
            async for batch in sent:
                collector.add(event for _, event in batch)
            return search_output(collector.snapshot(), params, self._processor.tokenizer)

    async def abort(self, request_id: str) -> None:
        """End a request; who reads it gets finish reason "abort". Nothing happens if there is none of this id."""
        self._router.end([request_id], FinishReason.ABORT)

    # ---- the steps of an answer, for servers ----

    async def prepare(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        *,
        options: RequestOptions = DEFAULT_OPTIONS,
        request_id: str | None = None,
    ) -> list[Prepared]:
        """Tokenise and check prompts, long ones in a thread. Raises: InvalidRequest; an error spoils all."""
        first = request_id or self._new_id()
        ids = [first if i == 0 else f"{first}-{i}" for i in range(len(prompts))]

        def work() -> list[Prepared]:
            return self._processor.prepare_all(
                prompts, [params] * len(prompts), ids, options=options
            )

        is_long = sum(_num_characters(prompt) for prompt in prompts) > MAX_INLINE_CHARACTERS
        return await asyncio.to_thread(work) if is_long else work()

    async def prepare_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams,
        request_id: str | None = None,
        *,
        chat: ChatOptions = DEFAULT_CHAT,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> Prepared:
        """Render and tokenise a conversation, in a thread: a template may take its time. Raises: InvalidRequest."""
        return await asyncio.to_thread(
            self._processor.prepare_chat,
            messages,
            params,
            request_id or self._new_id(),
            chat=chat,
            options=options,
        )

    def submit(self, prepared: Sequence[Prepared]) -> Submission:
        """Requests to be started together by `async with`, and stopped when it is left."""
        return Submission(self._router, self._inbox, prepared)

    def watch(self, watcher: Watcher) -> None:
        """Have `watcher` told, in the event loop, what becomes of the requests that come from now on."""
        self._router.watcher = watcher

    # ---- facts ----

    @property
    def processor(self) -> Processor:
        """The checks and conversions of this model's requests."""
        return self._processor

    @property
    def info(self) -> EngineInfo:
        """Facts of the loaded engine."""
        return self._processor.info

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._processor.tokenizer

    @property
    def has_chat_template(self) -> bool:
        """Whether `chat` works without a template of the caller's."""
        return self._processor.chat_template is not None

    @property
    def num_in_flight(self) -> int:
        """Requests that have not ended."""
        return self._router.num_in_flight

    @property
    def is_alive(self) -> bool:
        """Whether the engine still takes requests."""
        return self._is_alive()

    def stats(self) -> EngineStats:
        """Counters and gauges of the engine now. Raises: EngineDead."""
        return self._client.stats()

    @property
    def supervision(self) -> SupervisionStats:
        """Engines that were replaced, and what became of their requests; zeros without `supervised`."""
        return self._supervision

    def explain(self, request_id: str, *, tenant: str = "") -> Explanation | None:
        """Where a request's time went. None unless it is among the last 1,000 that ended, and this tenant's."""
        trace = self._router.trace(request_id)
        return None if trace is None or trace.tenant != tenant else trace.explanation()

    async def reset_prefix_cache(self) -> None:
        """Forget what is stored of earlier prompts. It is done on return."""
        await asyncio.to_thread(self._client.reset_prefix_cache)

    def predict_first_token_s(self, num_tokens: int) -> float | None:
        """Seconds to the first token of a prompt of this length, if it were sent now; None if nothing is known yet."""
        return self._client.predict_first_token_s(num_tokens)

    # ---- end ----

    def end_all(self, error: str) -> None:
        """End every request in flight with an error. Called in the event loop."""
        self._router.end_all(FinishReason.ERROR, error)

    def close(self) -> None:
        """Stop the engine's thread and free the model's memory. Idempotent."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_client"):  # absent if loading failed
            self.close()

    async def _prepare_one(
        self, prompt: Prompt, sampling_params: SamplingParams | None, request_id: str | None
    ) -> Prepared:
        params, options = _defaults(sampling_params)
        [prepared] = await self.prepare([prompt], params, options=options, request_id=request_id)
        return prepared

    def _new_id(self) -> str:
        return str(next(self._ids))


def _threaded(
    runtime: Runtime, queue: QueueLimits = NO_LIMITS
) -> tuple[ClientFactory, Processor, Callable[[], bool]]:
    engine = runtime.engine
    return (
        lambda deliver: ThreadedClient(engine, on_outputs=deliver, limits=queue),
        runtime.processor,
        lambda: not engine.is_dead,
    )


def _num_characters(prompt: Prompt) -> int:
    text, _ = split_prompt(prompt)
    return len(text or "")


def _defaults(sampling_params: SamplingParams | None) -> tuple[SamplingParams, RequestOptions]:
    if sampling_params is None:  # vLLM's default length, shorter where less fits
        return SamplingParams(max_tokens=None), RequestOptions(
            default_max_tokens=16, is_streamed=True
        )
    return sampling_params, RequestOptions(is_streamed=True)
