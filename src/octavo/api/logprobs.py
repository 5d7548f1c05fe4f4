"""Engine scores -> log-probabilities with text and bytes."""

from __future__ import annotations

from octavo.messages import TokenScore
from octavo.outputs import Logprob, TokenLogprobs
from octavo.tokenization.tokenizer import Tokenizer


class LogprobReader:
    """Reads the scores of one request. Holds no state besides its settings."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skips_special = skip_special_tokens

    def read(self, score: TokenScore, num_top: int) -> TokenLogprobs:
        """The token itself, then the best alternatives, at most `num_top`, best first."""
        result = {score.token_id: self._entry(score.token_id, score.logprob, score.rank)}
        rank = 0
        for token_id, logprob in zip(score.top_ids[:num_top], score.top_logprobs, strict=False):
            rank += 1
            if token_id == score.token_id:
                continue
            if rank == score.rank and score.token_id not in score.top_ids:
                rank += 1  # the token itself has this place, and is not repeated among the best
            result[token_id] = self._entry(token_id, logprob, rank)
        return result

    def _entry(self, token_id: int, logprob: float, rank: int) -> Logprob:
        data = self._tokenizer.token_bytes(token_id)
        is_hidden = self._skips_special and self._tokenizer.is_control(token_id)
        return Logprob(logprob, rank, token_text(data), b"" if is_hidden else data)


def token_text(data: bytes) -> str:
    r"""Text of one token. A token that holds a part of a character is written as OpenAI does: `bytes:\xf0\x9f`."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def best(position: TokenLogprobs, num_top: int, *, with_chosen: bool) -> list[tuple[int, Logprob]]:
    """The `num_top` best tokens of a position in order of rank; `with_chosen` adds the chosen one if it is not there."""
    ranked = sorted(position.items(), key=lambda item: item[1].rank)
    top = ranked[:num_top]
    chosen = next(iter(position.items()))
    return [*top, chosen] if with_chosen and chosen not in top else top
