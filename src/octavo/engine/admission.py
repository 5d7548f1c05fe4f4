"""What the engine asks of a request before it takes it. Front ends check more; this keeps the engine safe from any."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from octavo.cache.manager import blocks_for
from octavo.errors import CapacityError, ContextLengthExceeded, InvalidRequest
from octavo.messages import AddRequest, EngineInfo
from octavo.ops.protocol import Int32s


def check_request(message: AddRequest, info: EngineInfo) -> None:
    """Check a request against the loaded model.

    Raises: InvalidRequest naming the field, ContextLengthExceeded with both numbers, CapacityError if it could not run
    even alone.
    """
    params = message.params
    if not message.prompt_token_ids:
        raise InvalidRequest("the prompt is empty: at least one token is needed", param="prompt")
    _check_ids(message.prompt_token_ids, "prompt", info.vocab_size)
    if len(message.output_token_ids) > params.n:
        raise InvalidRequest(
            f"{len(message.output_token_ids)} lists of output tokens for n = {params.n}",
            param="output_token_ids",
        )
    for known in message.output_token_ids:
        _check_ids(known, "output_token_ids", info.vocab_size)
    if message.num_candidates < 0:
        raise InvalidRequest("num_candidates must not be negative", param="num_candidates")
    _check_ids(message.eos_token_ids, "eos_token_ids", info.vocab_size)
    _check_ids(params.stop_token_ids, "stop_token_ids", info.vocab_size)
    _check_ids(params.logit_bias, "logit_bias", info.vocab_size)
    if params.seed is None and not params.is_greedy:
        raise InvalidRequest("a request that samples needs a seed at the engine", param="seed")
    _check_length(message, info)


def max_output_tokens(message: AddRequest, info: EngineInfo) -> int:
    """Output tokens after which a choice ends: those asked for, or those that fit the context."""
    room = info.max_model_len - len(message.prompt_token_ids)
    asked = message.params.max_tokens
    return room if asked is None else min(asked, room)


def token_array(token_ids: Sequence[int], param: str) -> Int32s:
    """Ids as an array. Raises: InvalidRequest for anything but integers."""
    if not token_ids:
        return np.zeros(0, np.int32)
    try:
        ids = np.array(token_ids)
    except (TypeError, ValueError, OverflowError):
        ids = np.array([None])
    if ids.dtype.kind != "i" or ids.ndim != 1:
        raise InvalidRequest(f"{param} must be a flat list of integers", param=param)
    # Ids too large for 32 bits become the largest one, which no vocabulary has.
    clipped: Int32s = np.clip(ids, -1, 2**31 - 1).astype(np.int32)
    return clipped


def _check_ids(token_ids: Collection[int], param: str, vocab_size: int) -> None:
    ids = token_array(list(token_ids), param)
    if len(ids) and not (ids.min() >= 0 and ids.max() < vocab_size):
        wrong = next(i for i in token_ids if not 0 <= i < vocab_size)
        raise InvalidRequest(
            f"{param}: token id {wrong} is outside the vocabulary (0 to {vocab_size - 1})",
            param=param,
        )


def _check_length(message: AddRequest, info: EngineInfo) -> None:
    num_prompt = len(message.prompt_token_ids)
    limit = info.max_model_len
    wants_output = message.params.max_tokens != 0
    if num_prompt + wants_output > limit:
        raise ContextLengthExceeded(
            f"this model's maximum context length is {limit} tokens, but the prompt has {num_prompt}"
            f"{' and at least one is needed for the answer' if num_prompt == limit else ''}"
        )
    num_most = num_prompt + max_output_tokens(message, info)
    if any(num_prompt + len(known) > num_most for known in message.output_token_ids):
        raise ContextLengthExceeded(
            f"prompt and output so far are longer than the {num_most} tokens asked for",
            param="output_token_ids",
        )
    # The last token is never computed: nothing follows it.
    num_blocks = blocks_for(max(1, num_most - 1))
    if num_blocks > info.num_blocks:
        raise CapacityError(
            f"the KV cache holds {info.num_blocks * info.block_size} tokens, but the request may need {num_most - 1} "
            f"({num_prompt} of the prompt): lower max_tokens, or start with more --kv-cache-memory-bytes"
        )
