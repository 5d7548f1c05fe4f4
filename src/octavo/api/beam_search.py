"""Beam search: a sequence of steps, in each of which every live beam is one request for one more token.

A step's request is the prompt and what the beam has so far, to be gone on with by one token whose best candidates are
scored. What came before is in the prefix cache, so the engine computes one token of it. Nothing here waits or sends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from octavo.messages import AddRequest, ChoiceOutput, TokenScore
from octavo.outputs import BeamSearchOutput, BeamSearchSequence, FinishReason, RequestOutput
from octavo.params import MAX_LOGPROBS, BeamSearchParams, SamplingParams
from octavo.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Beam:
    """A sequence that begins with the prompt: its generated tokens, the scores of each place, the sum of the chosen."""

    token_ids: tuple[int, ...] = ()
    scores: tuple[TokenScore, ...] = ()
    logprob: float = 0.0
    has_ended: bool = False
    """By an end token, which is its last."""

    def score(self, length_penalty: float) -> float:
        """What sequences are compared by: the log-probability over a power of the length."""
        return float(self.logprob / len(self.token_ids) ** length_penalty)


class _Candidate(NamedTuple):
    """One token more for a live beam. The order of tuples is that of candidates: best first, ties by place."""

    cost: float
    beam: int
    rank: int


class BeamSearch:
    """The state of one search. Scores and ends are those of Hugging Face's `generate(num_beams=...)`.

    Of the candidates of all live beams, best first, those that end a sequence count if they are among the first
    `beam_width`, and the first `beam_width` others live on. Where the longest length is reached, all end.

        search = BeamSearch(request, params)
        while steps := search.next_steps():
            ...                                   each answered by one output: search.take(output)
        search.outputs()
    """

    def __init__(self, request: AddRequest, params: BeamSearchParams, vocab_size: int) -> None:
        """`request` is that of an ordinary answer of `params.n` choices, which `outputs` are in the end."""
        self.request_id = request.request_id
        self.num_cached_tokens = 0
        self._request = request
        self._params = params
        self._max_tokens = request.params.max_tokens or 0
        self._eos_ids = frozenset(() if request.params.ignore_eos else request.eos_token_ids)
        wanted = max(2 * params.beam_width, params.beam_width + len(self._eos_ids))
        self._num_candidates = min(vocab_size, max(wanted, request.params.logprobs or 0))
        self._num_preemptions = 0
        self._live: list[Beam] = [Beam()]
        self._ended: list[Beam] = []
        self._open: dict[str, int] = {}  # live beams without a score, by the id of their request
        self._scores: dict[int, TokenScore] = {}
        self._num_steps = 0

    @property
    def open_ids(self) -> list[str]:
        """Requests of this step that have no output yet."""
        return list(self._open)

    def next_steps(self) -> list[AddRequest]:
        """The requests of the next step, one per live beam; none if the search is over. Each needs an output."""
        assert not self._open, "the step before is not over"
        self._scores = {}
        steps = []
        for index, beam in enumerate(self._live):
            step_id = f"{self.request_id}#{self._num_steps}.{index}"
            self._open[step_id] = index
            steps.append(self._step(step_id, beam))
        self._num_steps += 1
        return steps

    def take(self, output: ChoiceOutput) -> bool:
        """Take the output of one of the step's requests. True if it was the last one: `next_steps` is to be called."""
        index = self._open.pop(output.request_id)
        [self._scores[index]] = output.scores
        self._num_preemptions += output.num_preemptions
        if len(self._live[index].token_ids) == 0:
            self.num_cached_tokens = output.num_cached_tokens
        if self._open:
            return False
        self._advance()
        return True

    def outputs(self) -> list[ChoiceOutput]:
        """What the search found, the best first, as outputs of the request it was asked for with."""
        assert not self._live, "the search is not over"
        return [
            ChoiceOutput(
                self.request_id,
                index,
                token_ids=list(beam.token_ids),
                scores=list(beam.scores),
                finish_reason=(FinishReason.STOP if beam.has_ended else FinishReason.LENGTH).value,
                num_cached_tokens=self.num_cached_tokens,
                num_preemptions=self._num_preemptions,
            )
            for index, beam in enumerate(self._ended[: self._request.params.n])
        ]

    def _step(self, step_id: str, beam: Beam) -> AddRequest:
        request = self._request
        return AddRequest(
            request_id=step_id,
            prompt_token_ids=request.prompt_token_ids,
            params=SamplingParams(
                temperature=0.0, seed=0, max_tokens=len(beam.token_ids) + 1, ignore_eos=True
            ),
            output_token_ids=[list(beam.token_ids)] if beam.token_ids else [],
            priority=request.priority,
            cache_salt=request.cache_salt,
            tenant=request.tenant,
            num_candidates=self._num_candidates,
        )

    def _advance(self) -> None:
        """From the scores of all live beams to the beams of the next step."""
        width, penalty = self._params.beam_width, self._params.length_penalty
        num_tokens = self._num_steps
        is_last = num_tokens >= self._max_tokens
        ended, live = [], []
        for place, candidate in enumerate(self._candidates()):
            beam = self._grown(candidate)
            if not (beam.has_ended or is_last):
                live.append(beam)
            elif place < width:
                ended.append(beam)
            if place >= width - 1 and (is_last or len(live) == width):
                break
        # Stable: of equal scores the one that ended first is the better one.
        self._ended = sorted(
            [*self._ended, *ended], key=lambda beam: beam.score(penalty), reverse=True
        )[:width]
        self._live = [] if is_last or self._is_over(live, num_tokens) else live

    def _candidates(self) -> Iterator[_Candidate]:
        """One more token for each live beam: all that may be needed, the best first."""
        found = []
        for index, beam in enumerate(self._live):
            score = self._scores[index]
            found += [
                _Candidate(-(beam.logprob + logprob), index, rank)
                for rank, (token_id, logprob) in enumerate(
                    zip(score.top_ids, score.top_logprobs, strict=True)
                )
                if token_id >= 0
            ]
        return iter(sorted(found))

    def _grown(self, candidate: _Candidate) -> Beam:
        beam, score = self._live[candidate.beam], self._scores[candidate.beam]
        token_id, logprob = score.top_ids[candidate.rank], score.top_logprobs[candidate.rank]
        chosen = TokenScore(
            token_id, logprob, candidate.rank + 1, score.top_ids, score.top_logprobs
        )
        return Beam(
            (*beam.token_ids, token_id),
            (*beam.scores, chosen),
            beam.logprob + logprob,
            token_id in self._eos_ids,
        )

    def _is_over(self, live: Sequence[Beam], num_tokens: int) -> bool:
        """Whether no live beam is to be gone on with."""
        params = self._params
        if not live:
            return True
        if len(self._ended) < params.beam_width:
            return False
        if params.early_stopping is True:
            return True
        is_patient = params.early_stopping == "never" and params.length_penalty > 0
        length = self._max_tokens if is_patient else num_tokens
        worst = self._ended[-1].score(params.length_penalty)
        return bool(live[0].logprob / length**params.length_penalty <= worst)


def search_sampling(params: BeamSearchParams) -> SamplingParams:
    """The request for all sequences of a search, each token with its best alternatives."""
    return params.sampling(params.beam_width, min(2 * params.beam_width, MAX_LOGPROBS))


def search_output(
    output: RequestOutput, params: BeamSearchParams, tokenizer: Tokenizer
) -> BeamSearchOutput:
    """The answer to `search_sampling` as vLLM has it."""
    sequences = []
    for completion in output.outputs:
        has_ended = completion.finish_reason == FinishReason.STOP.value
        shown = completion.token_ids
        if has_ended and not params.include_stop_str_in_output:
            shown = shown[:-1]
        tokens = [*output.prompt_token_ids, *shown]
        sequences.append(
            BeamSearchSequence(
                tokens=tokens,
                logprobs=completion.logprobs or [],
                cum_logprob=completion.cumulative_logprob or 0.0,
                text=tokenizer.decode(tokens, skip_special_tokens=False),
                finish_reason=completion.finish_reason,
                stop_reason=completion.token_ids[-1] if has_ended else completion.stop_reason,
            )
        )
    return BeamSearchOutput(sequences)
