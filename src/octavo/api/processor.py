"""Prompts and parameters -> validated engine requests. Nothing wrong gets past here, nothing is ever cut."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, TypedDict, cast

from octavo.api.chat import num_characters, render_chat
from octavo.errors import ContextLengthExceeded, InvalidRequest
from octavo.messages import AddRequest, EngineInfo
from octavo.params import MAX_BEAM_WIDTH, BeamSearchParams, SamplingParams
from octavo.tokenization.chat_template import ChatTemplate
from octavo.tokenization.tokenizer import Tokenizer

_MAX_COMPOSED: Final = 4
"""Characters that normalisation makes one of, at most."""


class PromptDict(TypedDict, total=False):
    """A prompt as text or as token ids; exactly one of the two."""

    prompt: str
    prompt_token_ids: list[int]


Prompt = str | Sequence[int] | PromptDict
"""Text, token ids, or a dict that holds one of them."""

Message = Mapping[str, object]
"""One chat message as in the OpenAI API: role, content, and what templates read besides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """How messages become a prompt. `continue_final_message` leaves the last message open for the model to go on."""

    tools: Sequence[Mapping[str, object]] | None = None
    chat_template: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: Mapping[str, object] | None = None


DEFAULT_CHAT: Final = ChatOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """What a request asks besides its text.

    `default_max_tokens` holds where max_tokens is None, as far as it fits. `is_streamed`: read while it is made.
    A request that was not begun after `max_wait_ms` ends with an error.
    With `search` the choices are the best sequences of a beam search, which has the limits of the sampling.
    """

    default_max_tokens: int | None = None
    priority: int = 0
    cache_salt: str | None = None
    tenant: str = ""
    is_streamed: bool = False
    max_wait_ms: int | None = None
    search: BeamSearchParams | None = None


DEFAULT_OPTIONS: Final = RequestOptions()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request ready for the engine, with the text it came from, if it came as text.

    With `search` it is not one request to the engine but many: those of the steps of a beam search.
    """

    request: AddRequest
    prompt: str | None
    search: BeamSearchParams | None = None


class Processor:
    """Builds requests for one loaded model. Stateless but for its source of seeds; threads may share it."""

    def __init__(
        self,
        info: EngineInfo,
        tokenizer: Tokenizer,
        *,
        chat_template: ChatTemplate | None = None,
        seed: int | None = None,
    ) -> None:
        self.info = info
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self._seeds = random.SystemRandom() if seed is None else random.Random(seed)

    def prepare(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str,
        *,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> Prepared:
        """Tokenise and check one prompt. Control tokens typed in the text are parsed, as in every raw completion.

        Raises: InvalidRequest, ContextLengthExceeded.
        """
        text, ids = split_prompt(prompt)
        if ids is None:
            ids = self.encode(text or "", add_special=True)
        else:
            self.check_token_ids(ids)
        if not ids:
            raise InvalidRequest("the prompt is empty: it has no tokens", param="prompt")
        request = self._request(ids, params, request_id, options, "prompt")
        return Prepared(request, text, options.search)

    def prepare_all(
        self,
        prompts: Sequence[Prompt],
        params: Sequence[SamplingParams],
        request_ids: Sequence[str],
        *,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> list[Prepared]:
        """`prepare` for each; an error says which prompt is at fault, when there are several."""
        prepared = []
        for i, (prompt, one, request_id) in enumerate(
            zip(prompts, params, request_ids, strict=True)
        ):
            try:
                prepared.append(self.prepare(prompt, one, request_id, options=options))
            except InvalidRequest as error:
                if len(prompts) > 1:
                    error.message = f"prompt at index {i}: {error.message}"
                    error.args = (error.message,)
                raise
        return prepared

    def prepare_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams,
        request_id: str,
        *,
        chat: ChatOptions = DEFAULT_CHAT,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> Prepared:
        """Render and tokenise one conversation. Raises: InvalidRequest, ContextLengthExceeded."""
        ids = self.render(messages, chat)
        request = self._request(ids, params, request_id, options, "messages")
        return Prepared(request, None, options.search)

    def render(self, messages: Sequence[Message], chat: ChatOptions = DEFAULT_CHAT) -> list[int]:
        """Token ids of a conversation. Raises: InvalidRequest, also where the model has no chat template."""
        if chat.continue_final_message and chat.add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message and add_generation_prompt exclude each other",
                param="add_generation_prompt",
            )
        self._check_size(num_characters([messages, chat.tools]), "messages")
        ids = render_chat(
            self.chat_template if chat.chat_template is None else chat.chat_template,
            self.tokenizer,
            messages,
            tools=chat.tools,
            add_generation_prompt=chat.add_generation_prompt,
            continue_final_message=chat.continue_final_message,
            chat_template_kwargs=chat.chat_template_kwargs,
        )
        if not ids:
            raise InvalidRequest("the messages render to an empty prompt", param="messages")
        return ids

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        """Ids of a raw text, control tokens parsed. Raises: InvalidRequest if it is not valid Unicode, or far too long."""
        self._check_size(len(text), "prompt")
        return self.tokenizer.encode(text, add_special=add_special, parse_special=True)

    def _check_size(self, num_characters: int, param: str) -> None:
        """Refuse what cannot fit, whatever its tokens are: counting those of a huge text takes long."""
        limit = self.info.max_model_len
        most = limit * _MAX_COMPOSED
        if num_characters > most and num_characters > most * self._longest_token:
            raise ContextLengthExceeded(
                f"this model's maximum context length is {limit} tokens, but the prompt has "
                f"{num_characters} characters, which are more tokens in any case",
                param=param,
            )

    @cached_property
    def _longest_token(self) -> int:
        """Bytes of the longest token: no token stands for more characters of a normalised text."""
        sizes = (len(self.tokenizer.token_bytes(i)) for i in range(self.tokenizer.vocab_size))
        return max(sizes, default=1)

    def check_token_ids(self, ids: Sequence[int], param: str = "prompt") -> None:
        """Raise InvalidRequest unless all are ids of the vocabulary."""
        for token_id in ids:
            if not 0 <= token_id < self.info.vocab_size:
                raise InvalidRequest(
                    f"token id {token_id} is not in the vocabulary (0 to {self.info.vocab_size - 1})",
                    param=param,
                )

    def _request(
        self,
        ids: list[int],
        params: SamplingParams,
        request_id: str,
        options: RequestOptions,
        param: str,
    ) -> AddRequest:
        self.check_token_ids(params.stop_token_ids, "stop_token_ids")
        self.check_token_ids(tuple(params.logit_bias), "logit_bias")
        max_tokens = self._max_tokens(len(ids), params.max_tokens, options, param)
        if params.min_tokens > max_tokens:
            raise InvalidRequest(
                f"min_tokens {params.min_tokens} is more than the {max_tokens} tokens that can be generated",
                param="min_tokens",
            )
        if options.search is not None:
            self._check_search(options.search, params)
        seed = self._seeds.getrandbits(64) if params.seed is None else params.seed % 2**64
        return AddRequest(
            request_id=request_id,
            prompt_token_ids=ids,
            params=replace(params, max_tokens=max_tokens, seed=seed),
            eos_token_ids=sorted(self.tokenizer.eos_token_ids),
            priority=options.priority,
            cache_salt=options.cache_salt,
            tenant=options.tenant,
            is_streamed=options.is_streamed,
            max_wait_ms=options.max_wait_ms,
        )

    def _check_search(self, search: BeamSearchParams, params: SamplingParams) -> None:
        num_ends = 0 if params.ignore_eos else len(self.tokenizer.eos_token_ids)
        most = min(MAX_BEAM_WIDTH, self.info.vocab_size - num_ends)
        if search.beam_width > most:
            raise InvalidRequest(
                f"beam_width must be at most {most} with this model, got {search.beam_width}",
                param="beam_width",
            )
        if params.n > search.beam_width:
            raise InvalidRequest(
                f"n must be at most the width {search.beam_width} of the beam search, got {params.n}",
                param="n",
            )

    def _max_tokens(
        self, num_prompt: int, max_tokens: int | None, options: RequestOptions, param: str
    ) -> int:
        limit = self.info.max_model_len
        room = limit - num_prompt
        if room < 0 or (room == 0 and max_tokens is None):
            raise ContextLengthExceeded(
                f"this model's maximum context length is {limit} tokens, but the prompt has "
                f"{num_prompt} tokens"
                + (", which leaves no room for an answer" if room == 0 else ""),
                param=param,
            )
        if max_tokens is None:
            return (
                room
                if options.default_max_tokens is None
                else min(room, options.default_max_tokens)
            )
        if max_tokens > room:
            raise ContextLengthExceeded(
                f"this model's maximum context length is {limit} tokens, but {max_tokens} output tokens were "
                f"asked for after a prompt of {num_prompt} tokens: at most {room} fit",
                param="max_tokens",
            )
        return max_tokens


def split_prompt(prompt: Prompt) -> tuple[str | None, list[int] | None]:
    """(text, None) or (None, ids). Raises: InvalidRequest for anything that is neither."""
    if isinstance(prompt, str):
        return prompt, None
    if isinstance(prompt, Mapping):
        unknown = sorted(set(prompt) - {"prompt", "prompt_token_ids"})
        if unknown:
            raise InvalidRequest(
                f"a prompt has 'prompt' or 'prompt_token_ids', not {unknown[0]!r}: this model takes text only",
                param="prompt",
            )
        text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
        if ids is not None:
            return text, _checked_ids(ids)
        if isinstance(text, str):
            return text, None
    elif isinstance(prompt, Sequence) and not isinstance(prompt, bytes):
        return None, _checked_ids(cast(Sequence[int], prompt))
    raise InvalidRequest(
        "a prompt is a text, a list of token ids, or a dict with 'prompt' or 'prompt_token_ids'; "
        f"got {type(prompt).__name__}",
        param="prompt",
    )


def _checked_ids(ids: Sequence[int]) -> list[int]:
    for token_id in ids:
        if not isinstance(token_id, int) or isinstance(token_id, bool):
            raise InvalidRequest(
                f"token ids are whole numbers, got {type(token_id).__name__}", param="prompt"
            )
    return list(ids)
