"""What one request asks of the sampler. Valid by construction."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Final, Literal

from octavo.errors import InvalidRequest

MAX_N: Final = 128
MAX_LOGPROBS: Final = 20
MAX_STOP_STRINGS: Final = 64
MAX_STOP_CHARACTERS: Final = 1024
"""Of one stop string: what may be its beginning is held back from the reader."""
MAX_STOP_TOKEN_IDS: Final = 1024
MAX_LOGIT_BIAS: Final = 4096
MAX_BEAM_WIDTH: Final = 64
MAX_LENGTH_PENALTY: Final = 10.0


def _help(text: str) -> dict[str, str]:
    return {"help": text}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are chosen. Names and defaults follow vLLM.

    Raises: InvalidRequest, naming the field, for a value out of range.
    """

    n: int = field(default=1, metadata=_help("completions per prompt"))
    temperature: float = field(default=1.0, metadata=_help("0 is greedy; ties go to the lowest id"))
    top_k: int = field(
        default=0, metadata=_help("keep the k most probable tokens; 0 or -1 keeps all")
    )
    top_p: float = field(default=1.0, metadata=_help("keep the smallest set with this probability"))
    min_p: float = field(
        default=0.0, metadata=_help("drop tokens below this share of the best one")
    )
    typical_p: float = field(
        default=1.0, metadata=_help("keep the locally typical set of this mass")
    )
    repetition_penalty: float = field(
        default=1.0,
        metadata=_help("divides positive and multiplies negative logits of seen tokens"),
    )
    presence_penalty: float = field(
        default=0.0, metadata=_help("subtracted once from generated tokens")
    )
    frequency_penalty: float = field(
        default=0.0, metadata=_help("subtracted per generated occurrence")
    )
    logit_bias: dict[int, float] = field(
        default_factory=dict, metadata=_help("added to the logits of these ids, -100 to 100")
    )
    seed: int | None = field(default=None, metadata=_help("makes sampling reproducible"))
    max_tokens: int | None = field(default=16, metadata=_help("most tokens to generate"))
    min_tokens: int = field(default=0, metadata=_help("no end or stop token before this many"))
    stop: tuple[str, ...] = field(
        default=(), metadata=_help("texts that end the answer; not returned")
    )
    stop_token_ids: tuple[int, ...] = field(default=(), metadata=_help("ids that end the answer"))
    ignore_eos: bool = field(default=False, metadata=_help("go on after the end-of-text token"))
    include_stop_str_in_output: bool = field(default=False, metadata=_help("keep the stop text"))
    skip_special_tokens: bool = field(
        default=True, metadata=_help("leave control tokens out of text")
    )
    logprobs: int | None = field(
        default=None,
        metadata=_help("alternatives reported per token; 0 reports the chosen one only"),
    )
    prompt_logprobs: int | None = field(default=None, metadata=_help("the same for prompt tokens"))
    explain: bool = field(default=False, metadata=_help("tell where the request's time went"))

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        if isinstance(self.stop, str):
            set_(self, "stop", (self.stop,))
        set_(self, "stop", tuple(self.stop or ()))
        set_(self, "stop_token_ids", tuple(self.stop_token_ids or ()))
        set_(self, "logit_bias", {int(k): float(v) for k, v in (self.logit_bias or {}).items()})
        if self.top_k == -1:
            set_(self, "top_k", 0)
        self._check_numbers()
        self._check_limits()

    @property
    def is_greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature == 0.0

    def _check_numbers(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if f.type in ("int", "float", "int | None"):
                if value is None and f.type == "int | None":
                    continue
                ok = isinstance(value, (int, float) if f.type == "float" else int)
                if not ok or isinstance(value, bool):
                    raise InvalidRequest(f"{f.name} must be a number, got {value!r}", param=f.name)
                if not math.isfinite(value):
                    raise InvalidRequest(f"{f.name} must be finite, got {value!r}", param=f.name)
            elif f.type == "bool" and not isinstance(value, bool):
                raise InvalidRequest(f"{f.name} must be true or false, got {value!r}", param=f.name)
        _between("n", self.n, 1, MAX_N)
        _between("temperature", self.temperature, 0.0, 100.0)
        _between("top_k", self.top_k, 0, 2**31 - 1)
        _between("min_p", self.min_p, 0.0, 1.0)
        for name in ("top_p", "typical_p"):
            value = getattr(self, name)
            if not 0.0 < value <= 1.0:
                raise InvalidRequest(f"{name} must be in (0, 1], got {value}", param=name)
        if not 0.0 < self.repetition_penalty <= 100.0:
            raise InvalidRequest(
                f"repetition_penalty must be in (0, 100], got {self.repetition_penalty}",
                param="repetition_penalty",
            )
        _between("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _between("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.seed is not None:
            _between("seed", self.seed, -(2**63), 2**64 - 1)

    def _check_limits(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 0:
            raise InvalidRequest(
                f"max_tokens must be >= 0, got {self.max_tokens}", param="max_tokens"
            )
        if self.min_tokens < 0:
            raise InvalidRequest(
                f"min_tokens must be >= 0, got {self.min_tokens}", param="min_tokens"
            )
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens {self.min_tokens} is greater than max_tokens {self.max_tokens}",
                param="min_tokens",
            )
        if any(not isinstance(s, str) or not s for s in self.stop):
            raise InvalidRequest("stop must be non-empty strings", param="stop")
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidRequest(f"at most {MAX_STOP_STRINGS} stop strings", param="stop")
        if any(len(s) > MAX_STOP_CHARACTERS for s in self.stop):
            raise InvalidRequest(
                f"a stop string has at most {MAX_STOP_CHARACTERS} characters", param="stop"
            )
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise InvalidRequest(
                f"at most {MAX_STOP_TOKEN_IDS} stop_token_ids", param="stop_token_ids"
            )
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise InvalidRequest(f"at most {MAX_LOGIT_BIAS} logit_bias entries", param="logit_bias")
        for token_id, bias in self.logit_bias.items():
            if not -100.0 <= bias <= 100.0:
                raise InvalidRequest(
                    f"logit_bias of {token_id} must be between -100 and 100, got {bias}",
                    param="logit_bias",
                )
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                _between(name, value, 0, MAX_LOGPROBS)


EarlyStopping = bool | Literal["never"]
"""When a search ends that has found as many ended sequences as it is wide (Hugging Face's three values).

True: at once. False: when the best live beam, ended as it is, would be worse than all of them. "never": when it could not
become better at any length up to the longest.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchParams:
    """How a beam search goes. Names and defaults follow vLLM; `early_stopping` is Hugging Face's.

    A sequence's score is its log-probability / its tokens ** length_penalty, the end token counted.
    Raises: InvalidRequest, naming the field, for a value out of range.
    """

    beam_width: int = field(metadata=_help("sequences kept at every step"))
    max_tokens: int | None = field(
        metadata=_help("most tokens to generate; None: as many as the context has room for")
    )
    ignore_eos: bool = field(default=False, metadata=_help("go on after the end-of-text token"))
    temperature: float = field(default=0.0, metadata=_help("0: a search does not sample"))
    length_penalty: float = field(
        default=1.0, metadata=_help("above 0 favours long sequences, below 0 short ones")
    )
    early_stopping: EarlyStopping = field(
        default=False, metadata=_help('True, False or "never": when enough have ended')
    )
    include_stop_str_in_output: bool = field(default=False, metadata=_help("keep the end token"))

    def __post_init__(self) -> None:
        for name, kinds in (
            ("beam_width", (int,)),
            ("max_tokens", (int,)),
            ("temperature", (int, float)),
            ("length_penalty", (int, float)),
        ):
            value = getattr(self, name)
            if name == "max_tokens" and value is None:
                continue
            if not isinstance(value, kinds) or isinstance(value, bool) or not math.isfinite(value):
                raise InvalidRequest(f"{name} must be a number, got {value!r}", param=name)
        for name in ("ignore_eos", "include_stop_str_in_output"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequest(f"{name} must be true or false", param=name)
        _between("beam_width", self.beam_width, 1, MAX_BEAM_WIDTH)
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InvalidRequest(
                f"max_tokens must be at least 1, got {self.max_tokens}", param="max_tokens"
            )
        if self.temperature != 0:
            raise InvalidRequest(
                f"temperature must be 0 in a beam search, got {self.temperature}",
                param="temperature",
            )
        _between("length_penalty", self.length_penalty, -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY)
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise InvalidRequest(
                f'early_stopping must be true, false or "never", got {self.early_stopping!r}',
                param="early_stopping",
            )

    def sampling(self, n: int, logprobs: int | None = None) -> SamplingParams:
        """The same as a request for the `n` best sequences."""
        return SamplingParams(
            n=n,
            temperature=0.0,
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
            include_stop_str_in_output=self.include_stop_str_in_output,
            logprobs=logprobs,
        )


def _between(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise InvalidRequest(f"{name} must be between {low} and {high}, got {value}", param=name)
