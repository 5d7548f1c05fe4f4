"""`LLM`: the blocking interface. The engine runs in the caller's thread."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack, cast

from octavo.api.beam_search import search_output, search_sampling
from octavo.api.collect import OutputCollector
from octavo.api.options import LLMOptions, engine_config
from octavo.api.outputs_processor import Event
from octavo.api.processor import (
    ChatOptions,
    Message,
    Prepared,
    Processor,
    Prompt,
    RequestOptions,
)
from octavo.api.progress import RequestProgress
from octavo.api.router import Router
from octavo.api.runtime import load_runtime
from octavo.config import EngineConfig
from octavo.engine.client import EngineClient, InProcessClient
from octavo.errors import EngineDead, InvalidRequest
from octavo.messages import EngineInfo, EngineStats
from octavo.outputs import BeamSearchOutput, RequestOutput
from octavo.params import BeamSearchParams, SamplingParams
from octavo.tokenization.tokenizer import Tokenizer

_DEFAULT_PARAMS = SamplingParams(max_tokens=None)
_DEFAULT_MAX_TOKENS = 16  # vLLM's default; shorter where less fits


class LLM:
    """A model, loaded and ready to answer.

        with LLM("smollm2") as llm:
            for output in llm.generate(["The capital of France is"], SamplingParams(temperature=0)):
                print(output.outputs[0].text)

    `model` is a catalog name or the path of a .gguf file; keyword arguments are those of `LLMOptions`. Threads may
    share one LLM: their requests are decoded together. `close`, `with` or `del` free threads and memory at once.
    Raises: TypeError for an unknown keyword, ModelError, StoreError, CapacityError.
    """

    def __init__(self, model: str | Path, **options: Unpack[LLMOptions]) -> None:
        config = engine_config(model, cast(Mapping[str, object], options))
        runtime = load_runtime(config, tokenizer=options.get("tokenizer"), seed=options.get("seed"))
        self._start(InProcessClient(runtime.engine), runtime.processor)

    @classmethod
    def from_config(
        cls,
        config: EngineConfig,
        *,
        tokenizer: str | Path | Tokenizer | None = None,
        seed: int | None = None,
    ) -> Self:
        """Load what `config` describes."""
        runtime = load_runtime(config, tokenizer=tokenizer, seed=seed)
        return cls.from_client(InProcessClient(runtime.engine), runtime.processor)

    @classmethod
    def from_client(cls, client: EngineClient, processor: Processor) -> Self:
        """Speak to an engine that is already there. `client.outputs` runs a step, and is called until all is done."""
        llm = cls.__new__(cls)
        llm._start(client, processor)
        return llm

    def _start(self, client: EngineClient, processor: Processor) -> None:
        self._client: EngineClient | None = client
        self._processor = processor
        self._router = Router(client, processor.tokenizer)
        self._ids = itertools.count()
        self._lock = (
            threading.Lock()
        )  # guards client and router: one thread steps the engine for all

    # ---- answers ----

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete one prompt or many; results are in the order of the prompts.

        `sampling_params` is one for all prompts or one for each. Raises: InvalidRequest if a prompt cannot be served;
        then none is started.
        """
        batch = _as_list(prompts)
        params, options = _params_for(sampling_params, len(batch))
        ids = self._new_ids(len(batch))
        return self._finish(
            self._processor.prepare_all(batch, params, ids, options=options), use_tqdm
        )

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or many; results are in their order.

        Raises: InvalidRequest if one cannot be served (then none is started), or the model has no chat template.
        """
        conversations = _conversations(messages)
        params, options = _params_for(sampling_params, len(conversations))
        chat = ChatOptions(
            tools=tools,
            chat_template=chat_template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            chat_template_kwargs=chat_template_kwargs,
        )
        ids = self._new_ids(len(conversations))
        prepared = [
            self._processor.prepare_chat(one, p, request_id, chat=chat, options=options)
            for one, p, request_id in zip(conversations, params, ids, strict=True)
        ]
        return self._finish(prepared, use_tqdm)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """Complete one prompt, yielding the state after each step. Closing the iterator stops the request."""
        params, options = _params_for(sampling_params, 1, is_streamed=True)
        [request_id] = self._new_ids(1)
        return self._stream(self._processor.prepare(prompt, params[0], request_id, options=options))

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        chat: ChatOptions | None = None,
    ) -> Iterator[RequestOutput]:
        """Answer one conversation, yielding the state after each step."""
        params, options = _params_for(sampling_params, 1, is_streamed=True)
        [request_id] = self._new_ids(1)
        return self._stream(
            self._processor.prepare_chat(
                messages, params[0], request_id, chat=chat or ChatOptions(), options=options
            )
        )

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        *,
        use_tqdm: bool = False,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """Find the `beam_width` best sequences of each prompt; results are in the order of the prompts.

        At most `concurrency_limit` prompts are searched at a time. Raises: InvalidRequest if a prompt cannot be served
        (then none is started). A search that fails has finish reason "error" for all of its sequences.
        """
        batch = _as_list(prompts)
        prepared = self._processor.prepare_all(
            batch,
            [search_sampling(params)] * len(batch),
            self._new_ids(len(batch)),
            options=RequestOptions(search=params),
        )
        limit = concurrency_limit or max(1, len(batch))
        found: list[BeamSearchOutput] = []
        for first in range(0, len(batch), limit):
            outputs = self._finish(prepared[first : first + limit], use_tqdm)
            found += [search_output(one, params, self._processor.tokenizer) for one in outputs]
        return found

    # ---- facts ----

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._processor.tokenizer

    @property
    def has_chat_template(self) -> bool:
        """Whether `chat` works without a template of the caller's."""
        return self._processor.chat_template is not None

    @property
    def info(self) -> EngineInfo:
        """Facts of the loaded engine."""
        return self._processor.info

    def stats(self) -> EngineStats:
        """Counters and gauges of the engine now."""
        with self._lock:
            return self._open_client().stats()

    def reset_prefix_cache(self) -> None:
        """Forget what is stored of earlier prompts. Raises: EngineDead."""
        with self._lock:
            self._open_client().reset_prefix_cache()

    # ---- end ----

    def close(self) -> None:
        """Free the model's memory and threads. Idempotent; requests of other threads end with EngineDead."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

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
        if hasattr(self, "_lock"):  # absent if loading failed
            self.close()

    # ---- inside ----

    def _new_ids(self, count: int) -> list[str]:
        return [str(next(self._ids)) for _ in range(count)]

    def _open_client(self) -> EngineClient:
        if self._client is None:
            raise EngineDead("this LLM is closed")
        return self._client

    def _finish(self, prepared: Sequence[Prepared], shows_progress: bool) -> list[RequestOutput]:
        calls: list[_Call] = []
        with RequestProgress(len(prepared), is_wanted=shows_progress) as progress:
            for _ in self._drive(prepared, calls):
                if progress.is_drawn:
                    progress.show(
                        sum(call.state.is_finished for call in calls),
                        sum(call.state.usage.completion_tokens for call in calls),
                    )
        return [call.collector.snapshot() for call in calls]

    def _stream(self, prepared: Prepared) -> Iterator[RequestOutput]:
        calls: list[_Call] = []
        num_seen = 0
        for _ in self._drive([prepared], calls):
            if calls[0].num_events != num_seen:
                num_seen = calls[0].num_events
                trace = calls[0].state.trace
                yielded_s = trace.age_s
                yield calls[0].collector.snapshot()
                trace.paused_s += trace.age_s - yielded_s

    def _drive(self, prepared: Sequence[Prepared], calls: list[_Call]) -> Iterator[None]:
        """Step the engine until these requests have ended; `calls` gets one entry each. Yields after each step.

        Requests of other threads advance too: whoever holds the lock steps for all.
        """
        try:
            with self._lock:
                self._open_client()
                for one in prepared:
                    calls.append(_Call(self._router, one))
                still_open = calls
            while still_open:
                with self._lock:
                    client = self._open_client()
                    still_open = [call for call in still_open if not call.state.is_finished]
                    if still_open:
                        self._router.route(client.outputs())
                yield
        finally:
            with self._lock:
                if self._client is not None:
                    self._router.forget(one.request.request_id for one in prepared)


class _Call:
    """One request of a blocking call, with what came back so far."""

    def __init__(self, router: Router, prepared: Prepared) -> None:
        self.num_events = 0
        self.state = router.add(prepared, self._take)
        self.collector = OutputCollector(self.state)

    def _take(self, events: list[Event]) -> None:
        self.num_events += len(events)
        self.collector.add(events)


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str | Mapping):
        return [cast(Prompt, prompts)]
    if not isinstance(prompts, Sequence):
        raise InvalidRequest(
            f"prompts are texts, lists of token ids or a list of them, not {type(prompts).__name__}",
            param="prompt",
        )
    if prompts and all(isinstance(item, int) for item in prompts):
        return [cast(Prompt, prompts)]
    return list(cast(Sequence[Prompt], prompts))


def _conversations(
    messages: Sequence[Message] | Sequence[Sequence[Message]],
) -> list[Sequence[Message]]:
    if messages and isinstance(messages[0], Mapping):
        return [cast(Sequence[Message], messages)]
    return list(cast(Sequence[Sequence[Message]], messages))


def _params_for(
    sampling_params: SamplingParams | Sequence[SamplingParams] | None,
    count: int,
    *,
    is_streamed: bool = False,
) -> tuple[list[SamplingParams], RequestOptions]:
    options = RequestOptions(is_streamed=is_streamed)
    if sampling_params is None:
        options = replace(options, default_max_tokens=_DEFAULT_MAX_TOKENS)
        return [_DEFAULT_PARAMS] * count, options
    if isinstance(sampling_params, SamplingParams):
        return [sampling_params] * count, options
    if len(sampling_params) != count:
        raise InvalidRequest(
            f"{len(sampling_params)} sampling params for {count} prompts", param="sampling_params"
        )
    return list(sampling_params), options
