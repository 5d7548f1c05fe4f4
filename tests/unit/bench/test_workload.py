"""Prompts, lengths and arrivals: made from a seed alone."""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np
import pytest

from octavo.bench.arrivals import poisson_arrivals, read_trace
from octavo.bench.options import PromptKind, WorkloadConfig, WorkloadKind
from octavo.bench.workload import WorkItem, make_workload, random_ids
from octavo.errors import InvalidRequest


def made(count: int = 20, seed: int = 0, **options: object) -> list[WorkItem]:
    config = WorkloadConfig(**options)  # type: ignore[arg-type]
    return make_workload(config, count, np.random.default_rng(seed))


@pytest.mark.parametrize("kind", WorkloadKind)
@pytest.mark.parametrize("prompt_kind", PromptKind)
def test_the_seed_decides_everything(kind: WorkloadKind, prompt_kind: PromptKind) -> None:
    first, again, other = (made(seed=s, workload=kind, prompt_kind=prompt_kind) for s in (1, 1, 2))
    assert first == again
    assert first != other
    assert len({str(item.prompt) for item in first}) == len(first)


def test_a_second_draw_repeats_no_prompt() -> None:
    rng = np.random.default_rng(0)
    first, second = (make_workload(WorkloadConfig(), 10, rng) for _ in range(2))
    assert not {str(i.prompt) for i in first} & {str(i.prompt) for i in second}


def test_random_requests_have_the_lengths_asked_for() -> None:
    for item in made(input_len=33, output_len=5, max_token_id=5000):
        assert len(item.prompt) == 33
        assert item.max_tokens == 5
        assert all(isinstance(i, int) and 1000 <= i < 5000 for i in item.prompt)
    for item in made(input_len=33, prompt_kind=PromptKind.WORDS):
        assert isinstance(item.prompt, str)
        assert len(item.prompt.split()) == 33


def test_small_vocabularies_have_ids_too() -> None:
    ids = random_ids(1000, 320, np.random.default_rng(0))
    assert (min(ids) >= 80, max(ids) < 320) == (True, True)


def test_chat_lengths_have_a_long_tail() -> None:
    items = made(4000, workload=WorkloadKind.SHAREGPT)
    for lengths, median in (
        ([len(i.prompt) for i in items], 100),
        ([i.max_tokens for i in items], 130),
    ):
        assert (min(lengths) >= 4, max(lengths) == 1024) == (True, True)
        assert statistics.median(lengths) == pytest.approx(median, rel=0.1)
        assert 1.3 * median < statistics.fmean(lengths) < 2.5 * median


def test_groups_share_their_prefix_and_nothing_else() -> None:
    items = made(60, workload=WorkloadKind.PREFIX, num_groups=3, prefix_len=40, input_len=10)
    assert len({str(item.prompt[:40]) for item in items}) == 3
    assert len({str(item.prompt[40:]) for item in items}) == 60
    assert {len(item.prompt) for item in items} == {50}
    words = made(9, workload=WorkloadKind.PREFIX, num_groups=1, prompt_kind=PromptKind.WORDS)
    assert len({" ".join(str(i.prompt).split()[:256]) for i in words}) == 1


def test_poisson_arrivals_have_the_rate_and_are_independent() -> None:
    arrivals = poisson_arrivals(5.0, 20_000, np.random.default_rng(0))
    gaps = np.diff(arrivals)
    assert arrivals[0] == 0.0
    assert (gaps >= 0).all()
    assert gaps.mean() == pytest.approx(0.2, rel=0.03)
    assert gaps.std() == pytest.approx(0.2, rel=0.05)  # of an exponential the mean is the deviation
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 0.03
    assert poisson_arrivals(5.0, 0, np.random.default_rng(0)) == []
    assert poisson_arrivals(5.0, 9, np.random.default_rng(0)) == arrivals[:9]


def test_a_trace_starts_at_its_first_time(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trace.write_text("# seconds\n10\n\n10.5  # a comment\n12e0\n")
    assert read_trace(trace) == [0.0, 0.5, 2.0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1\n0.5\n", "line 2"), ("1\nx\n", "'x'"), ("nan", "'nan'"), ("#\n", "no arrival")],
)
def test_a_bad_trace_names_its_line(tmp_path: Path, text: str, expected: str) -> None:
    trace = tmp_path / "trace"
    trace.write_text(text)
    with pytest.raises(InvalidRequest, match=expected):
        read_trace(trace)
