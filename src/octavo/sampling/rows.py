"""From the SamplingParams of requests to the arrays the sample operation takes: one row per token to draw or score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from octavo.ops.protocol import Floats, Int32s, SampleBatch
from octavo.params import SamplingParams

_SEED_MASK: Final = 2**64 - 1
_NO_IDS: Final = np.zeros(0, np.int32)
_NO_VALUES: Final = np.zeros(0, np.float32)
# A row that draws nothing: greedy, all filters and penalties off, in the order of ChoiceSampling.floats.
_NEUTRAL_FLOATS: Final = (0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0)

_N = TypeVar("_N", bound=np.generic)


class IdList:
    """A growing list of token ids that numpy can read without a conversion."""

    __slots__ = ("_ids", "_size")

    def __init__(self, ids: Sequence[int] | Int32s = ()) -> None:
        self._ids = np.array(ids, np.int32)
        self._size = len(self._ids)

    @property
    def ids(self) -> Int32s:
        """The ids; a view that later growth may leave behind."""
        return self._ids[: self._size]

    def append(self, token_id: int) -> None:
        """Add one id."""
        if self._size == len(self._ids):
            grown = np.zeros(max(16, 2 * self._size), np.int32)
            grown[: self._size] = self._ids
            self._ids = grown
        self._ids[self._size] = token_id
        self._size += 1


class ChoiceSampling:
    """What the sampler must know of one choice: constants of its parameters, and lists that follow its output.

    Lists that no parameter needs are not kept.
    """

    __slots__ = (
        "_banned",
        "_bias",
        "_min_tokens",
        "_seen_set",
        "floats",
        "ints",
        "made",
        "num_made",
        "num_prompt_logprobs",
        "seed",
        "seen",
    )

    def __init__(
        self,
        params: SamplingParams,
        choice: int,
        prompt_token_ids: Int32s,
        end_token_ids: Sequence[int],
        num_candidates: int = 0,
    ) -> None:
        """`end_token_ids` end the choice and are banned below min_tokens. `num_candidates`: as in AddRequest."""
        self.floats = (
            params.temperature,
            params.top_p,
            params.min_p,
            params.typical_p,
            params.repetition_penalty,
            params.presence_penalty,
            params.frequency_penalty,
        )
        num_logprobs = num_candidates or params.logprobs
        self.ints = (params.top_k, choice, -1 if num_logprobs is None else num_logprobs)
        self.seed = (params.seed or 0) & _SEED_MASK
        self.num_prompt_logprobs = -1 if params.prompt_logprobs is None else params.prompt_logprobs
        self.num_made = 0
        self._min_tokens = params.min_tokens if end_token_ids else 0
        self._bias = _bias(params.logit_bias)
        self._banned = _bias(params.logit_bias | dict.fromkeys(end_token_ids, -np.inf))
        self.made: IdList | None = None
        if params.presence_penalty or params.frequency_penalty:
            self.made = IdList()
        self.seen: IdList | None = None
        self._seen_set: set[int] = set()
        if params.repetition_penalty != 1.0:
            self.seen = IdList(np.unique(prompt_token_ids))
            self._seen_set.update(self.seen.ids.tolist())

    @property
    def is_steady(self) -> bool:
        """Whether the row of the next token differs from that of this one by its position alone."""
        return self.num_made >= self._min_tokens and self.made is None and self.seen is None

    @property
    def is_plain(self) -> bool:
        """Whether a row needs nothing but the logits: steady, without bias and log-probabilities."""
        return self.is_steady and not len(self._bias[0]) and self.ints[2] < 0

    @property
    def bias(self) -> tuple[Int32s, Floats]:
        """Ids and what is added to their logits at the next output position."""
        return self._banned if self.num_made < self._min_tokens else self._bias

    def accept(self, token_id: int) -> None:
        """Follow the output: `token_id` was appended."""
        self.num_made += 1
        if self.made is not None:
            self.made.append(token_id)
        if self.seen is not None and token_id not in self._seen_set:
            self._seen_set.add(token_id)
            self.seen.append(token_id)


class SampleRows:
    """Collects the output rows of a step, in batch order, and builds their SampleBatch."""

    def __init__(self) -> None:
        self._num_rows = 0
        self._draws: list[ChoiceSampling] = []
        self._draw_rows: list[int] = []
        self._scores: list[tuple[int, Int32s, int]] = []

    def draw(self, choice: ChoiceSampling) -> None:
        """Add a row that draws the next token of a choice."""
        self._draws.append(choice)
        self._draw_rows.append(self._num_rows)
        self._num_rows += 1

    def score(self, targets: Int32s, num_logprobs: int) -> None:
        """Add rows that draw nothing: each reports the log-probability of its target."""
        self._scores.append((self._num_rows, targets, num_logprobs))
        self._num_rows += len(targets)

    def build(self) -> SampleBatch:
        """The arrays of all rows."""
        draws = self._draws
        floats = self._spread(
            np.array([c.floats for c in draws], np.float32).reshape(-1, 7), _NEUTRAL_FLOATS
        )
        ints = self._spread(np.array([c.ints for c in draws], np.int32).reshape(-1, 3), (0, 0, -1))
        positions = self._spread(
            np.array([[c.num_made] for c in draws], np.int32).reshape(-1, 1), (0,)
        )
        seeds = self._spread(np.array([[c.seed] for c in draws], np.uint64).reshape(-1, 1), (0,))
        is_scored = np.zeros(self._num_rows, np.bool_)
        targets = np.zeros(self._num_rows, np.int32)
        for first, ids, num_logprobs in self._scores:
            is_scored[first : first + len(ids)] = True
            targets[first : first + len(ids)] = ids
            ints[2, first : first + len(ids)] = num_logprobs
        bias = [c.bias for c in draws]
        bias_start, bias_ids = self._ragged([ids for ids, _ in bias])
        seen_start, seen_ids = self._ragged([c.seen.ids if c.seen else _NO_IDS for c in draws])
        made_start, made_ids = self._ragged([c.made.ids if c.made else _NO_IDS for c in draws])
        return SampleBatch(
            temperature=floats[0],
            top_k=ints[0],
            top_p=floats[1],
            min_p=floats[2],
            typical_p=floats[3],
            repetition_penalty=floats[4],
            presence_penalty=floats[5],
            frequency_penalty=floats[6],
            seeds=seeds[0],
            choices=ints[1],
            positions=positions[0],
            is_scored=is_scored,
            targets=targets,
            num_logprobs=ints[2],
            bias_start=bias_start,
            bias_ids=bias_ids,
            bias_values=np.concatenate([_NO_VALUES, *(values for _, values in bias)]),
            seen_start=seen_start,
            seen_ids=seen_ids,
            made_start=made_start,
            made_ids=made_ids,
        )

    def _spread(self, drawn: npt.NDArray[_N], neutral: Sequence[float]) -> npt.NDArray[_N]:
        """[draws, fields] -> [fields, rows], each field contiguous; rows that draw nothing get `neutral`."""
        if not self._scores:
            return np.ascontiguousarray(drawn.T)
        out = np.empty((drawn.shape[1], self._num_rows), drawn.dtype)
        out[:] = np.array(neutral, drawn.dtype)[:, None]
        out[:, self._draw_rows] = drawn.T
        return out

    def _ragged(self, lists: list[Int32s]) -> tuple[Int32s, Int32s]:
        """Start offsets [rows + 1] and the ids of all rows, one after the other."""
        lengths = np.zeros(self._num_rows + 1, np.int32)
        filled = [ids for ids in lists if len(ids)]
        if not filled:
            return lengths, _NO_IDS
        lengths[np.array(self._draw_rows) + 1] = [len(ids) for ids in lists]
        return np.cumsum(lengths, dtype=np.int32), np.concatenate(filled)


def _bias(bias_by_id: dict[int, float]) -> tuple[Int32s, Floats]:
    return (
        np.array(list(bias_by_id), np.int32),
        np.array(list(bias_by_id.values()), np.float32),
    )
