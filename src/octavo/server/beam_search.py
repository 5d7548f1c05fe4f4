"""`use_beam_search` in a request body: what goes with it, and what it becomes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from octavo.errors import InvalidRequest
from octavo.params import MAX_BEAM_WIDTH, BeamSearchParams, SamplingParams

if TYPE_CHECKING:
    from octavo.server.openai_models import SamplingFields

_GREEDY_OR_DEFAULT: Final = (0.0, 1.0)
_NOT_IN_A_SEARCH: Final = (
    "top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "logit_bias", "min_tokens", "stop", "stop_token_ids", "explain",
)  # fmt: skip
"""Fields of the sampler, or of single requests, that a search has no place for."""


def as_search(body: SamplingFields, params: SamplingParams) -> SamplingParams:
    """The same request as one for the `n` best sequences of a search. Raises: InvalidRequest, naming the field.

    `params` is what the body asks of the sampler.
    """
    if params.temperature not in _GREEDY_OR_DEFAULT:
        raise InvalidRequest(
            f"temperature must be 0 or left out with use_beam_search, got {params.temperature}",
            param="temperature",
        )
    default = SamplingParams()
    for name in _NOT_IN_A_SEARCH:
        if getattr(params, name) != getattr(default, name):
            raise InvalidRequest(f"{name} has no place in a beam search", param=name)
    if params.prompt_logprobs is not None:
        param = "echo" if body.prompt_logprobs is None else "prompt_logprobs"
        raise InvalidRequest(f"{param}: a beam search does not score the prompt", param=param)
    if body.best_of is not None and body.best_of < body.n:
        raise InvalidRequest(f"best_of {body.best_of} is less than n {body.n}", param="best_of")
    return replace(params, n=body.n, temperature=0.0)


def search_params(body: SamplingFields) -> BeamSearchParams | None:
    """How to search, if the body wants a search. Raises: InvalidRequest, naming the field of the body."""
    if not body.use_beam_search:
        return None
    width = body.n if body.best_of is None else body.best_of
    if not 1 <= width <= MAX_BEAM_WIDTH:
        name = "n" if body.best_of is None else "best_of"
        raise InvalidRequest(
            f"{name}: a beam search is 1 to {MAX_BEAM_WIDTH} wide, got {width}", param=name
        )
    return BeamSearchParams(
        beam_width=width,
        max_tokens=body.max_tokens,
        length_penalty=body.length_penalty,
        early_stopping=body.early_stopping,  # type: ignore[arg-type]  # checked there
    )


def search_warnings(body: SamplingFields) -> list[str]:
    """Fields of a search in a body that asks for none."""
    given = {
        "length_penalty": body.length_penalty != 1.0,
        "early_stopping": body.early_stopping is not False,
    }
    return [
        f"{name} has no effect without use_beam_search"
        for name, is_given in given.items()
        if is_given and not body.use_beam_search
    ]
