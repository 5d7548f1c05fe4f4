"""The definition of sampling, checked against hand-made distributions and Random123's known answers."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.ops.philox import philox4x32, uniform
from octavo.ops.protocol import SampleResult
from octavo.ops.reference_sampling import (
    draw,
    empty_result,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    keep_typical,
    penalised,
    pick,
    sample_rows,
)
from tests.ops.batches import make_sample

ONES = 0xFFFFFFFF
INF = float("inf")


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (ONES, ONES, ONES, ONES),
            (ONES, ONES),
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers(counter, key, expected):
    assert philox4x32(counter, key) == expected


def test_uniform_uses_the_first_two_words_as_53_bits():
    r0, r1, _, _ = philox4x32((3, 2, 0, 0), (0x55667788, 0x11223344))
    expected = ((r0 << 21) ^ (r1 >> 11)) / 2**53
    assert uniform(0x1122334455667788, choice=2, position=3) == expected
    assert 0.0 <= expected < 1.0


def test_uniform_is_flat_and_differs_in_every_argument():
    numbers = [uniform(s, c, p) for s in range(20) for c in range(10) for p in range(100)]
    counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
    chi_square = ((counts - 1000) ** 2 / 1000).sum()
    assert len(set(numbers)) == 20_000
    assert chi_square < 43.8  # 19 degrees of freedom, p = 0.001


def test_greedy_takes_the_lowest_of_equal_ids():
    assert draw(np.float32([1, 5, 5, 2]), make_sample(1), 0) == 1


def test_bias_is_added_first_and_minus_infinity_bans():
    logits = np.float32([3.0, 2.0, 1.0])
    assert draw(logits, make_sample(1, bias=[{0: -INF}]), 0) == 1
    assert draw(logits, make_sample(1, bias=[{2: 5.0}]), 0) == 2
    biased_then_halved = make_sample(1, bias=[{1: 2.0}], seen=[[1]], repetition_penalty=2.0)
    assert penalised(logits, biased_then_halved, 0).tolist() == [3.0, 2.0, 1.0]


def test_repetition_penalty_counts_an_id_once_and_never_rewards():
    sample = make_sample(1, seen=[[0, 0, 0, 1, 2]], repetition_penalty=2.0)
    assert penalised(np.float32([4.0, -4.0, 0.0, 1.0]), sample, 0).tolist() == [2.0, -8.0, 0.0, 1.0]


def test_presence_counts_once_and_frequency_every_time():
    sample = make_sample(1, made=[[0, 0, 0, 1]], presence_penalty=1.0, frequency_penalty=0.5)
    assert penalised(np.float32([5.0, 5.0, 5.0]), sample, 0).tolist() == [2.5, 3.5, 5.0]


def test_penalties_of_a_row_come_from_its_own_lists():
    sample = make_sample(3, made=[[0], [], [1, 1]], frequency_penalty=1.0, bias=[{}, {2: 1.0}, {}])
    rows = [penalised(np.float32([9.0, 9.0, 9.0]), sample, i).tolist() for i in range(3)]
    assert rows == [[8.0, 9.0, 9.0], [9.0, 9.0, 10.0], [9.0, 7.0, 9.0]]


def test_the_logits_given_are_left_untouched():
    logits = np.float32([1.0, 2.0])
    draw(logits, make_sample(1, bias=[{0: 5.0}], made=[[1]], presence_penalty=1.0), 0)
    assert logits.tolist() == [1.0, 2.0]


def test_min_p_is_relative_to_the_most_probable():
    probs = np.array([0.5, 0.3, 0.15, 0.05])
    np.testing.assert_allclose(keep_min_p(probs, 0.3), [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0])
    assert keep_min_p(probs, 0.0) is probs


def test_top_k_prefers_low_ids_among_equals():
    probs = np.array([0.2, 0.3, 0.2, 0.3])
    np.testing.assert_allclose(keep_top_k(probs, 3), [0.25, 0.375, 0, 0.375])
    np.testing.assert_allclose(keep_top_k(probs, 1), [0, 1, 0, 0])
    np.testing.assert_allclose(keep_top_k(probs, 99), probs)


def test_top_p_keeps_the_token_that_reaches_the_mass():
    probs = np.array([0.125, 0.5, 0.25, 0.125])
    np.testing.assert_allclose(keep_top_p(probs, 0.75), [0, 2 / 3, 1 / 3, 0])
    np.testing.assert_allclose(keep_top_p(probs, 0.76), [1 / 7, 4 / 7, 2 / 7, 0])
    np.testing.assert_allclose(keep_top_p(probs, 1e-9), [0, 1, 0, 0])


def test_typical_p_prefers_average_surprise_to_high_probability():
    probs = np.array([0.4] + [0.06] * 10)
    kept = keep_typical(probs, 0.5)  # the entropy, 2.05, is nearer to 2.81 than to 0.92
    assert kept[0] == 0.0
    assert np.count_nonzero(kept) == 9


def test_typical_p_ignores_ids_without_probability():
    kept = keep_typical(np.array([0.5, 0.0, 0.5]), 0.9)
    np.testing.assert_allclose(kept, [0.5, 0, 0.5])


def test_pick_takes_the_first_id_whose_cumulative_probability_exceeds_u():
    probs = np.array([0.0, 0.25, 0.0, 0.5, 0.25])
    assert [pick(probs, u) for u in (0.0, 0.2499, 0.25, 0.7499, 0.75, 1 - 2**-53)] == [
        1,
        1,
        3,
        3,
        4,
        4,
    ]


def test_pick_survives_a_sum_rounded_below_one():
    assert pick(np.array([0.3, 0.3, 0.0]), 0.999) == 1


def test_filters_apply_to_what_the_one_before_kept():
    # top_k leaves 0.5 and 0.5; top_p 0.5 is then reached by the first alone
    logits = np.log(np.float32([0.3, 0.3, 0.2, 0.2]))
    tokens = {
        draw(logits, make_sample(1, temperature=1, top_k=2, top_p=0.5, positions=i), 0)
        for i in range(50)
    }
    assert tokens == {0}


def test_temperature_scales_before_min_p():
    logits = np.log(np.float32([0.8, 0.2]))
    cold = {
        draw(logits, make_sample(1, temperature=0.5, min_p=0.1, positions=i), 0) for i in range(99)
    }
    warm = {
        draw(logits, make_sample(1, temperature=1.0, min_p=0.1, positions=i), 0) for i in range(99)
    }
    assert cold == {0}
    assert warm == {0, 1}


@pytest.mark.parametrize("logits", [[-INF, -INF], [np.nan, np.nan]])
def test_a_row_without_candidates_gives_id_zero(logits):
    assert draw(np.float32(logits), make_sample(1, temperature=1.0), 0) == 0


def test_a_logit_that_is_no_number_is_never_chosen():
    logits = np.float32([np.nan, 1.0, 2.0])
    assert draw(logits, make_sample(1), 0) == 2


def test_extreme_temperatures_stay_finite():
    logits = np.float32([1e30, -1e30, 0.0])
    assert draw(logits, make_sample(1, temperature=1e-30), 0) == 0
    assert 0 <= draw(logits, make_sample(1, temperature=100.0), 0) < 3


def test_draws_follow_the_distribution():
    probs = np.array([0.4, 0.3, 0.2, 0.1])
    logits = np.log(probs).astype(np.float32)
    sample = make_sample(4000, temperature=1.0, seeds=11, positions=np.arange(4000))
    counts = np.bincount([draw(logits, sample, i) for i in range(4000)], minlength=4)
    chi_square = ((counts - 4000 * probs) ** 2 / (4000 * probs)).sum()
    assert chi_square < 16.3  # 3 degrees of freedom, p = 0.001


def test_a_draw_depends_on_seed_choice_and_position_only():
    logits = np.zeros(1000, np.float32)
    alone = draw(logits, make_sample(1, temperature=1.0, seeds=5, choices=2, positions=9), 0)
    row = {"seeds": [1, 5], "choices": [0, 2], "positions": [3, 9]}
    assert draw(logits, make_sample(2, temperature=1.0, **row), 1) == alone
    others = [
        draw(logits, make_sample(1, temperature=1.0, seeds=s, choices=c, positions=p), 0)
        for s, c, p in ((6, 2, 9), (5, 3, 9), (5, 2, 10), (5 + 2**32, 2, 9))
    ]
    assert alone not in others


def _sample(logits: list[list[float]], **sampling: object) -> SampleResult:
    rows = np.float32(logits)
    batch = make_sample(len(rows), **sampling)
    result = empty_result(batch)
    sample_rows(rows, batch, 0, result)
    return result


def test_lgp_10_logprobs_are_those_of_the_raw_distribution():
    logits = np.log([[0.5, 0.3, 0.2]]).tolist()
    bent = {"temperature": 0.5, "top_k": 1, "bias": [{2: 50.0}], "made": [[0]]}
    for sampling in ({}, bent | {"presence_penalty": 2.0}):
        result = _sample(logits, num_logprobs=2, **sampling)
        assert result.top_ids.tolist() == [[0, 1]]
        np.testing.assert_allclose(np.exp(result.top_logprobs), [[0.5, 0.3]], rtol=1e-6)
        np.testing.assert_allclose(
            np.exp(result.logprobs), [[0.5, 0.3, 0.2][result.token_ids[0]]], rtol=1e-6
        )


def test_alternatives_are_sorted_ties_by_id_and_rank_counts_greater_logits():
    result = _sample(
        [[1.0, 3.0, 3.0, 2.0]] * 4, is_scored=True, targets=[0, 1, 2, 3], num_logprobs=4
    )
    assert result.token_ids.tolist() == [0, 1, 2, 3]
    assert result.top_ids[0].tolist() == [1, 2, 3, 0]
    assert result.ranks.tolist() == [4, 1, 1, 3]


def test_only_what_was_asked_is_reported():
    result = _sample([[1.0, 2.0]] * 3, num_logprobs=[-1, 0, 1])
    assert np.isnan(result.logprobs).tolist() == [True, False, False]
    assert result.top_ids.tolist() == [[-1], [-1], [1]]
    assert np.isnan(result.top_logprobs[:, 0]).tolist() == [True, True, False]


def test_more_alternatives_than_ids_are_padded():
    result = _sample([[1.0, 2.0]], num_logprobs=4)
    assert result.top_ids.tolist() == [[1, 0, -1, -1]]


def test_slabs_fill_their_part_of_the_result():
    logits = np.eye(5, 7, dtype=np.float32)
    batch = make_sample(5, num_logprobs=0)
    whole, parts = empty_result(batch), empty_result(batch)
    sample_rows(logits, batch, 0, whole)
    sample_rows(logits[:2], batch, 0, parts)
    sample_rows(logits[2:], batch, 2, parts)
    np.testing.assert_array_equal(parts.token_ids, whole.token_ids)
    np.testing.assert_array_equal(parts.logprobs, whole.logprobs)
