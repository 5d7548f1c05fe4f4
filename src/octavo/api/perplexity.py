"""Perplexity over windows of a text: the definition all quality figures use."""

from __future__ import annotations

import math
from dataclasses import dataclass

from octavo.api.llm import LLM
from octavo.errors import InvalidRequest
from octavo.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Perplexity:
    """exp of the mean negative log-probability (natural log) of the scored tokens."""

    perplexity: float
    num_tokens: int


def measure_perplexity(llm: LLM, text: str, *, ctx: int, max_windows: int | None) -> Perplexity:
    """Score the second half of every whole window of `ctx` tokens, each token given all before it in its window.

    The text is tokenised once without special tokens; where the model adds BOS it replaces a window's first token.
    Raises: InvalidRequest if the text has no whole window.
    """
    if ctx < 4:
        raise InvalidRequest(f"ctx must be at least 4, got {ctx}", param="ctx")
    tokenizer = llm.get_tokenizer()
    ids = tokenizer.encode(text, add_special=False)
    windows = [ids[i : i + ctx] for i in range(0, len(ids) - ctx + 1, ctx)][:max_windows]
    if not windows:
        raise InvalidRequest(f"the text has {len(ids)} tokens, a window needs {ctx}", param="ctx")
    if tokenizer.adds_bos and tokenizer.bos_token_id is not None:
        windows = [[tokenizer.bos_token_id, *window[1:]] for window in windows]
    params = SamplingParams(max_tokens=0, prompt_logprobs=0, temperature=0.0)
    results = llm.generate(windows, params, use_tqdm=True)
    scores = [
        position[token_id].logprob
        for window, result in zip(windows, results, strict=True)
        for token_id, position in zip(
            window[ctx // 2 :], (result.prompt_logprobs or [])[ctx // 2 :], strict=True
        )
        if position is not None
    ]
    return Perplexity(math.exp(-math.fsum(scores) / len(scores)), len(scores))
