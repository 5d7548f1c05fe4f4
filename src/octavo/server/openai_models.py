"""Request bodies of the OpenAI API, with vLLM's extra fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from octavo.api.processor import ChatOptions, Message, Prompt, RequestOptions
from octavo.errors import InvalidRequest
from octavo.params import MAX_LOGIT_BIAS, MAX_LOGPROBS, MAX_N, MAX_STOP_STRINGS, SamplingParams
from octavo.server.beam_search import as_search, search_params, search_warnings

MAX_PROMPTS: Final = 1024
MAX_CHOICES: Final = 2048
MAX_MESSAGES: Final = 10_000
MAX_TOOLS: Final = 1024
MAX_SALT: Final = 256
MAX_WAIT_MS: Final = 24 * 3600 * 1000
_RESERVED_TEMPLATE_VARIABLES: Final = frozenset(
    (
        "chat_template",
        "messages",
        "tools",
        "tokenize",
        "add_generation_prompt",
        "continue_final_message",
    )
)


class StreamOptions(msgspec.Struct, kw_only=True):
    """`stream_options` of a request."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: Any = (
        None  # OpenAI's padding against traffic analysis: accepted, never done
    )


class SamplingFields(msgspec.Struct, kw_only=True):
    """What both generating routes take. The last group is accepted and has no effect."""

    model: str | None = None
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[str, float] = {}
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: str | list[str] = []
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    prompt_logprobs: int | None = None
    best_of: int | None = None
    use_beam_search: bool = False
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    priority: int | None = None
    cache_salt: str | None = None
    max_wait_ms: int | None = None
    explain: bool = False
    include_metrics: bool = False

    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def counts_in_every_chunk(self) -> bool:
        """Whether every chunk of a stream tells the tokens so far, as vLLM's continuous_usage_stats."""
        return (
            self.stream_options is not None
            and self.stream_options.include_usage
            and self.stream_options.continuous_usage_stats
        )

    def options(self, default_max_tokens: int | None = None) -> RequestOptions:
        """What the request asks besides its sampling."""
        return RequestOptions(
            default_max_tokens=default_max_tokens,
            priority=self.priority or 0,
            cache_salt=self.cache_salt,
            is_streamed=self.stream,
            max_wait_ms=self.max_wait_ms,
            search=search_params(self),
        )

    def _check(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options needs stream: true", param="stream_options")
        if self.stream and self.prompt_logprobs is not None:
            raise InvalidRequest(
                "prompt_logprobs is not available in a stream", param="prompt_logprobs"
            )
        if self.stream and self.use_beam_search:
            raise InvalidRequest(
                "a beam search cannot be streamed: what it will answer is known at its end only",
                param="stream",
            )
        _at_most(self.n, MAX_N, "n")
        _at_most(len(self.cache_salt or ""), MAX_SALT, "cache_salt", "characters")
        _between("max_wait_ms", self.max_wait_ms, 1, MAX_WAIT_MS)

    def _sampling(
        self, *, n: int, max_tokens: int | None, logprobs: int | None, prompt_logprobs: int | None
    ) -> SamplingParams:
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        if len(stop) > MAX_STOP_STRINGS:
            raise InvalidRequest(
                f"at most {MAX_STOP_STRINGS} stop strings, got {len(stop)}", param="stop"
            )
        params = SamplingParams(
            n=n,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            typical_p=self.typical_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=_bias(self.logit_bias),
            seed=self.seed,
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            stop=tuple(stop),
            stop_token_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            include_stop_str_in_output=self.include_stop_str_in_output,
            skip_special_tokens=self.skip_special_tokens,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            explain=self.explain,
        )
        return as_search(self, params) if self.use_beam_search else params


class CompletionRequest(SamplingFields, kw_only=True):
    """Body of /v1/completions."""

    prompt: str | list[Any]
    echo: bool = False
    logprobs: int | None = None
    suffix: str | None = None

    @property
    def warnings(self) -> list[str]:
        """What the client should know, as texts for a header."""
        return search_warnings(self)

    def prompts(self) -> list[Prompt]:
        """The prompts: one text, one list of ids, a list of texts or a list of lists of ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if not self.prompt:
            raise InvalidRequest("the prompt is empty", param="prompt")
        if all(isinstance(item, int) for item in self.prompt):
            return [self.prompt]
        if not all(isinstance(item, str | list) for item in self.prompt):
            raise InvalidRequest(
                "prompt must be a string, a list of strings, a list of token ids or a list of such lists",
                param="prompt",
            )
        _at_most(len(self.prompt), MAX_PROMPTS, "prompt", "prompts")
        _at_most(len(self.prompt) * self.num_candidates, MAX_CHOICES, "n", "choices in all")
        return list(self.prompt)

    @property
    def num_candidates(self) -> int:
        """Completions generated per prompt; the best `n` are returned."""
        return self.n if self.best_of is None else self.best_of

    def sampling(self) -> SamplingParams:
        """The parameters of the sampler. Raises: InvalidRequest."""
        self._check()
        if self.suffix:
            raise InvalidRequest(
                "suffix is not supported: this model only goes on at the end", param="suffix"
            )
        if self.best_of is not None:
            _at_most(self.best_of, MAX_N, "best_of")
            if self.best_of < self.n:
                raise InvalidRequest(
                    f"best_of {self.best_of} is less than n {self.n}", param="best_of"
                )
            if self.stream and self.best_of > self.n:
                raise InvalidRequest("best_of cannot choose within a stream", param="best_of")
        _between("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        logprobs = 0 if self.logprobs is None and self.num_candidates > self.n else self.logprobs
        asked = [
            x for x in (self.prompt_logprobs, self.logprobs if self.echo else None) if x is not None
        ]
        return self._sampling(
            n=self.num_candidates,
            max_tokens=self.max_tokens,
            logprobs=logprobs,
            prompt_logprobs=_prompt_logprobs(asked),
        )


class ChatRequest(SamplingFields, kw_only=True):
    """Body of /v1/chat/completions."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] = []
    tool_choice: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}

    parallel_tool_calls: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    modalities: Any = None

    @property
    def warnings(self) -> list[str]:
        """What the client should know, as texts for a header."""
        warnings = search_warnings(self)
        if self.best_of is not None and not self.use_beam_search:
            warnings.append("best_of has no effect without use_beam_search")
        if self.max_completion_tokens is not None and self.max_tokens is not None:
            warnings.append("max_completion_tokens wins over max_tokens")
        if _RESERVED_TEMPLATE_VARIABLES & self.chat_template_kwargs.keys():
            warnings.append("ignored reserved names in chat_template_kwargs")
        return warnings

    @property
    def max_tokens_field(self) -> str:
        """The field that limits the answer."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    def chat(self) -> ChatOptions:
        """How the messages become a prompt. Raises: InvalidRequest."""
        opens_turn = self.add_generation_prompt
        variables = {
            name: value
            for name, value in self.chat_template_kwargs.items()
            if name not in _RESERVED_TEMPLATE_VARIABLES
        }
        return ChatOptions(
            tools=self._tools(),
            add_generation_prompt=not self.continue_final_message
            if opens_turn is None
            else opens_turn,
            continue_final_message=self.continue_final_message,
            chat_template_kwargs=variables or None,
        )

    def checked_messages(self) -> list[Message]:
        """The messages, if there are not too many; what is in them is checked where they are rendered."""
        if not self.messages:
            raise InvalidRequest("messages must not be empty", param="messages")
        _at_most(len(self.messages), MAX_MESSAGES, "messages", "messages")
        return list(self.messages)

    def sampling(self) -> SamplingParams:
        """The parameters of the sampler. Raises: InvalidRequest."""
        self._check()
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
        _between("top_logprobs", self.top_logprobs, 0, MAX_LOGPROBS)
        if self.response_format is not None and self.response_format.get("type") != "text":
            raise InvalidRequest(
                "response_format: this version only has type 'text'", param="response_format"
            )
        max_tokens = (
            self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        )
        if max_tokens is not None and max_tokens < 1:
            raise InvalidRequest(
                f"{self.max_tokens_field} must be at least 1, got {max_tokens}",
                param=self.max_tokens_field,
            )
        return self._sampling(
            n=self.n,
            max_tokens=max_tokens,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            prompt_logprobs=self.prompt_logprobs,
        )

    def _tools(self) -> list[dict[str, Any]] | None:
        _at_most(len(self.tools), MAX_TOOLS, "tools", "tools")
        if self.tool_choice not in (None, "auto", "none"):
            raise InvalidRequest(
                "tool_choice: this version has 'auto' and 'none'; it cannot force a call",
                param="tool_choice",
            )
        return self.tools if self.tools and self.tool_choice != "none" else None


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """Body of /tokenize: a text or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] = []
    tools: list[dict[str, Any]] = []
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    return_token_strs: bool = False


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """Body of /detokenize."""

    tokens: list[int]
    model: str | None = None


def _bias(logit_bias: Mapping[str, float]) -> dict[int, float]:
    _at_most(len(logit_bias), MAX_LOGIT_BIAS, "logit_bias", "entries")
    try:
        return {int(token_id[:20]): bias for token_id, bias in logit_bias.items()}
    except ValueError:
        raise InvalidRequest("logit_bias: the keys must be token ids", param="logit_bias") from None


def _prompt_logprobs(asked: list[int]) -> int | None:
    for value in asked:
        _between("prompt_logprobs", value, 0, MAX_LOGPROBS)
    return max(asked, default=None)


def _between(name: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise InvalidRequest(f"{name} must be between {low} and {high}, got {value}", param=name)


def _at_most(count: int, limit: int, param: str, what: str = "") -> None:
    if count > limit:
        raise InvalidRequest(
            f"{param}: at most {limit}{' ' + what if what else ''}, got {count}", param=param
        )
