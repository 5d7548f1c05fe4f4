"""Parameters arrive in the right rows, with the right lists."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.ops.protocol import SampleBatch
from octavo.params import SamplingParams
from octavo.sampling.rows import ChoiceSampling, IdList, SampleRows


def choice(
    index: int = 0,
    prompt: tuple[int, ...] = (5, 3, 5),
    ends: tuple[int, ...] = (),
    **params: object,
) -> ChoiceSampling:
    return ChoiceSampling(SamplingParams(**params), index, np.array(prompt, np.int32), ends)  # type: ignore[arg-type]


def batch(*choices: ChoiceSampling) -> SampleBatch:
    rows = SampleRows()
    for c in choices:
        rows.draw(c)
    return rows.build()


def listed(out: SampleBatch, name: str, row: int) -> list[int]:
    start = getattr(out, f"{name}_start")
    return getattr(out, f"{name}_ids")[start[row] : start[row + 1]].tolist()


def test_every_parameter_reaches_its_field() -> None:
    params = {
        "temperature": 0.5, "top_k": 7, "top_p": 0.25, "min_p": 0.125, "typical_p": 0.75, "repetition_penalty": 1.5,
        "presence_penalty": 0.5, "frequency_penalty": -0.5, "logprobs": 3,
    }  # fmt: skip
    out = batch(choice(), choice(2, seed=-1, **params))
    assert all(getattr(out, k)[1] == v for k, v in params.items() if k != "logprobs")
    assert out.num_logprobs.tolist() == [-1, 3]
    assert out.choices.tolist() == [0, 2]
    assert out.seeds.tolist() == [0, 2**64 - 1]
    assert out.temperature.dtype == np.float32
    assert out.seeds.dtype == np.uint64
    assert out.temperature.tolist() == [1.0, 0.5]
    assert not out.is_scored.any()


def test_position_counts_outputs() -> None:
    c = choice()
    c.accept(9)
    c.accept(9)
    assert batch(c).positions.tolist() == [2]


def test_penalty_lists_are_kept_only_where_needed() -> None:
    plain, repeated, made = choice(), choice(repetition_penalty=1.2), choice(presence_penalty=1.0)
    for c in (plain, repeated, made):
        for token_id in (8, 3, 8):
            c.accept(token_id)
    out = batch(plain, repeated, made)
    assert [listed(out, "seen", row) for row in range(3)] == [[], [3, 5, 8], []]
    assert [listed(out, "made", row) for row in range(3)] == [[], [], [8, 3, 8]]


def test_min_tokens_bans_end_tokens_until_enough_were_made() -> None:
    c = choice(min_tokens=2, max_tokens=9, logit_bias={4: 1.0, 7: 100.0}, ends=(2, 7))
    for num_made in range(4):
        out = batch(choice(), c)
        bias = dict(zip(listed(out, "bias", 1), out.bias_values.tolist(), strict=True))
        expected = {4: 1.0, 7: -np.inf, 2: -np.inf} if num_made < 2 else {4: 1.0, 7: 100.0}
        assert bias == expected
        assert listed(out, "bias", 0) == []
        c.accept(1)


def test_scored_rows_stand_between_drawn_ones_and_draw_nothing() -> None:
    rows = SampleRows()
    rows.draw(choice(logit_bias={1: 2.0}, temperature=0.5))
    rows.score(np.array([11, 12], np.int32), 4)
    rows.draw(choice(logit_bias={3: 4.0}, seed=6, repetition_penalty=2.0))
    out = rows.build()
    assert out.is_scored.tolist() == [False, True, True, False]
    assert out.targets.tolist() == [0, 11, 12, 0]
    assert out.num_logprobs.tolist() == [-1, 4, 4, -1]
    assert out.temperature.tolist() == [0.5, 0.0, 0.0, 1.0]
    assert out.repetition_penalty.tolist() == [1.0, 1.0, 1.0, 2.0]
    assert out.top_p.tolist() == [1.0] * 4
    assert out.seeds.tolist() == [0, 0, 0, 6]
    assert [listed(out, "bias", row) for row in range(4)] == [[1], [], [], [3]]
    assert [listed(out, "seen", row) for row in range(4)] == [[], [], [], [3, 5]]


@pytest.mark.parametrize("num_scored", [0, 3])
def test_no_row_draws(num_scored) -> None:
    rows = SampleRows()
    rows.score(np.arange(num_scored, dtype=np.int32), 0)
    out = rows.build()
    assert out.temperature.shape == (num_scored,)
    assert out.bias_start.tolist() == [0] * (num_scored + 1)


def test_id_list_grows() -> None:
    ids = IdList([1, 2])
    for i in range(100):
        ids.append(i)
    assert ids.ids.tolist() == [1, 2, *range(100)]
