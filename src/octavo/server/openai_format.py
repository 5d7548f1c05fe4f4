"""Results -> the JSON shapes of the OpenAI API."""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from octavo.api.logprobs import best
from octavo.api.outputs_processor import RequestState
from octavo.outputs import Logprob, RequestMetrics, TokenLogprobs

_LOWEST: Final = -9999.0
"""Stands for minus infinity, which JSON does not have."""


def usage_of(states: Iterable[RequestState]) -> dict[str, Any]:
    """Token counts of the requests together."""
    usages = [state.usage for state in states]
    return usage_object(
        sum(usage.prompt_tokens for usage in usages),
        sum(usage.completion_tokens for usage in usages),
        sum(usage.cached_tokens for usage in usages),
    )


def usage_object(prompt: int, completion: int, cached: int) -> dict[str, Any]:
    """`usage` of an answer. This version has no model that thinks apart from its answer: no reasoning tokens."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def metrics_of(states: Sequence[RequestState]) -> dict[str, Any]:
    """The field `metrics` of an answer: an object, or one for each prompt if there are several."""
    found = [_metrics(state.metrics) for state in states]
    return {"metrics": found[0] if len(found) == 1 else found}


def _metrics(metrics: RequestMetrics) -> dict[str, Any]:
    rate = metrics.tokens_per_second
    return {
        "time_to_first_token_ms": _ms(metrics.first_token_s),
        "generation_time_ms": _ms(metrics.generation_s),
        "queue_time_ms": _ms(metrics.queue_s),
        "mean_itl_ms": _ms(metrics.mean_itl_s),
        "tokens_per_second": None if rate is None else round(rate, 3),
        "num_preemptions": metrics.num_preemptions,
        "num_recomputed_tokens": metrics.num_recomputed_tokens,
        "num_cached_tokens": metrics.num_cached_tokens,
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 3)


def chat_logprobs(positions: Sequence[TokenLogprobs], num_top: int) -> dict[str, Any]:
    """`logprobs` of a chat choice. `bytes` is what the token adds to the content: nothing for a hidden control token."""
    return {
        "content": [
            _chat_entry(_chosen(position))
            | {
                "top_logprobs": [
                    _chat_entry(p) for _, p in best(position, num_top, with_chosen=False)
                ]
            }
            for position in positions
        ]
    }


def prompt_logprobs(
    positions: Sequence[TokenLogprobs | None] | None,
) -> list[dict[str, Any] | None] | None:
    """vLLM's `prompt_logprobs`: per prompt token the tokens by id; null for the first."""
    if positions is None:
        return None
    return [None if position is None else _by_id(position) for position in positions]


class CompletionLogprobs:
    """Builds the `logprobs` of one completion, part by part: offsets go on where the last part ended."""

    def __init__(self, num_top: int) -> None:
        self._num_top = num_top
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0

    def prompt(self, state: RequestState) -> dict[str, Any]:
        """The part of an echoed prompt; its first token has no score."""
        first, first_bytes = state.first_prompt_token
        part = self._part([None], [first], [first_bytes])
        rest = self.answer([p for p in state.prompt_logprobs or () if p is not None])
        return {name: part[name] + rest[name] for name in part}

    def answer(self, positions: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """The part of generated tokens."""
        chosen = [_chosen(position) for position in positions]
        return self._part(
            positions, [one.decoded_token for one in chosen], [one.token_bytes for one in chosen]
        )

    def _part(
        self, positions: Sequence[TokenLogprobs | None], tokens: list[str], data: list[bytes]
    ) -> dict[str, Any]:
        offsets = []
        for one in data:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(one))
        return {
            "tokens": tokens,
            "token_logprobs": [
                None if p is None else _finite(_chosen(p).logprob) for p in positions
            ],
            "top_logprobs": [None if p is None else self._top(p) for p in positions],
            "text_offset": offsets,
        }

    def _top(self, position: TokenLogprobs) -> dict[str, float]:
        top: dict[str, float] = {}
        for _, entry in best(position, self._num_top, with_chosen=True):
            top.setdefault(
                entry.decoded_token, _finite(entry.logprob)
            )  # equal texts: the better one
        return top


def _chosen(position: TokenLogprobs) -> Logprob:
    return next(iter(position.values()))


def _chat_entry(entry: Logprob) -> dict[str, Any]:
    return {
        "token": entry.decoded_token,
        "logprob": _finite(entry.logprob),
        "bytes": list(entry.token_bytes),
    }


def _by_id(position: TokenLogprobs) -> dict[str, Any]:
    return {
        str(token_id): {
            "logprob": _finite(entry.logprob),
            "rank": entry.rank,
            "decoded_token": entry.decoded_token,
        }
        for token_id, entry in position.items()
    }


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _LOWEST
