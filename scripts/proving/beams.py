"""Beam search: equal to the search by hand, one token computed per beam and step, the prompt's blocks held once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from scripts.proving.rows import SMALL, Paths, Row

from octavo import LLM, BeamSearchParams, SamplingParams
from octavo.api.options import engine_config
from octavo.api.runtime import load_runtime
from octavo.engine.client import InProcessClient
from octavo.kv_layout import BLOCK_SIZE
from octavo.messages import AddRequest, StepOutputs

_WIDTH, _NUM_TOKENS = (3, 4) if SMALL else (4, 8)
_PROMPT_LENGTH = 200 if SMALL else 400
_LONG = 20 if SMALL else 60
_MODEL_LEN = _PROMPT_LENGTH + _LONG + BLOCK_SIZE
_BLOCK_BYTES = 368_640
"""Of smollm2: 16 tokens, 30 layers, keys and values of 3 heads of 64 channels, 2 bytes each."""

_Found = list[tuple[list[int], float]]


def beam_search(paths: Paths) -> Iterator[Row]:
    """Beams found, log-probabilities with and without a cache, and what the engine did for them, counted."""
    rng = np.random.default_rng(4)
    prompt: list[int] = rng.integers(1000, 40_000, _PROMPT_LENGTH).tolist()
    params = BeamSearchParams(beam_width=_WIDTH, max_tokens=_NUM_TOKENS, ignore_eos=True)
    options = {"max_model_len": _MODEL_LEN, "num_threads": 2}
    with LLM(paths["smollm2"], **options) as llm:  # type: ignore[arg-type]
        found = _search(llm, prompt, params)
        yield _equal(
            "smollm2: beams = the search by hand, request by request", found, _by_hand(llm, prompt)
        )
    with LLM(paths["smollm2"], enable_prefix_caching=False, **options) as llm:  # type: ignore[arg-type]
        uncached = _search(llm, prompt, params)
        yield _equal("smollm2: beams without a cache, ids and bits", uncached, found)
    # Too few blocks for a copy of the prompt per beam: enough for one, and what each beam has of its own.
    num_prompt_blocks = _PROMPT_LENGTH // BLOCK_SIZE
    num_blocks = num_prompt_blocks + _WIDTH * (_LONG // BLOCK_SIZE + 2)
    config = engine_config(
        paths["smollm2"], options | {"kv_cache_memory_bytes": num_blocks * _BLOCK_BYTES}
    )
    runtime = load_runtime(config)
    client = _Counting(InProcessClient(runtime.engine))
    with LLM.from_client(client, runtime.processor) as llm:
        yield from _counted(llm, client, prompt)


def _equal(what: str, got: _Found, expected: _Found) -> Row:
    num_different = sum(a != b for a, b in zip(got, expected, strict=True))
    return Row(what, f"{num_different} of {len(expected)} differ", "0 differ", num_different == 0)


def _search(llm: LLM, prompt: list[int], params: BeamSearchParams) -> _Found:
    [output] = llm.beam_search([prompt], params)
    return [(one.tokens, one.cum_logprob) for one in output.sequences]


def _by_hand(llm: LLM, prompt: list[int]) -> _Found:
    """The search once more, by ordinary requests for one token and its best alternatives.

    Of one beam's continuations only the `_WIDTH` best can be among the `_WIDTH` best of all.
    """
    one = SamplingParams(temperature=0, max_tokens=1, logprobs=_WIDTH, ignore_eos=True)
    beams: _Found = [(prompt, 0.0)]
    for _ in range(_NUM_TOKENS):
        outputs = llm.generate([tokens for tokens, _ in beams], one, use_tqdm=False)
        grown: _Found = []
        for (tokens, total), output in zip(beams, outputs, strict=True):
            [position] = output.outputs[0].logprobs or []
            grown += [([*tokens, token_id], total + p.logprob) for token_id, p in position.items()]
        beams = sorted(grown, key=lambda beam: -beam[1])[:_WIDTH]
    return beams


class _Counting:
    """A client that counts the tokens computed for each request."""

    def __init__(self, inner: InProcessClient) -> None:
        self.computed: dict[str, int] = {}
        self._inner = inner
        self._num_known: dict[str, int] = {}
        for name in ("abort", "reset_prefix_cache", "stats", "predict_first_token_s", "close"):
            setattr(self, name, getattr(inner, name))
        self.info = inner.info

    def add(self, message: AddRequest) -> None:
        known = sum(map(len, message.output_token_ids))
        self._num_known[message.request_id] = len(message.prompt_token_ids) + known
        self._inner.add(message)

    def outputs(self) -> StepOutputs:
        outputs = self._inner.outputs()
        for output in outputs.outputs:
            num_known = self._num_known[output.request_id]
            self.computed[output.request_id] = num_known - output.num_cached_tokens
        return outputs


def _counted(llm: LLM, client: _Counting, prompt: Sequence[int]) -> Iterator[Row]:
    """What a search computes, in how many engine steps, with blocks for one copy of the prompt."""
    params = BeamSearchParams(beam_width=_WIDTH, max_tokens=_LONG, ignore_eos=True)
    llm.beam_search([list(prompt)], params)
    first, *computed = client.computed.values()
    num_beams = (_LONG - 1) * _WIDTH
    yield Row(
        f"smollm2, width {_WIDTH}, {_LONG} tokens: computed per beam and step",
        f"{first} for the prompt, then {sum(computed):,} for {num_beams:,}, {max(computed)} at most",
        "the prompt once, then 1 each",
        first == len(prompt) and len(computed) == num_beams and max(computed) == 1,
    )
    before = llm.stats()
    llm.beam_search([list(prompt)], params)
    after = llm.stats()
    num_prompt_blocks = len(prompt) // BLOCK_SIZE
    num_steps = after.num_steps - before.num_steps
    yield Row(
        f"... in {after.num_blocks} blocks; {_WIDTH} copies of the prompt: {_WIDTH * num_prompt_blocks}",
        f"{num_steps} engine steps, {after.num_preemptions} preemptions",
        f"{_LONG}, none: held once",
        num_steps == _LONG
        and after.num_preemptions == 0
        and after.num_blocks < _WIDTH * num_prompt_blocks,
    )
