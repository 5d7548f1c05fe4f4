"""The tree against a list of everything that was ever stored, and its rules one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from octavo.cache.manager import BlockTable, CacheManager
from octavo.cache.radix_tree import key_of
from octavo.kv_layout import BLOCK_SIZE

B = BLOCK_SIZE


class Sequence:
    """A sequence whose tokens are written into a fake memory, block by block."""

    def __init__(
        self, cache: CacheManager, memory: np.ndarray, tokens: list[int], salt: str | None = None
    ) -> None:
        self.cache, self.memory, self.tokens, self.salt = cache, memory, tokens, salt
        match = cache.match(tokens, salt)
        opened = cache.start(match, salt, lambda start, end: self.tokens[start:end])
        assert opened is not None
        self.table: BlockTable = opened.table
        self.num_cached = match.num_tokens
        for source, target in opened.copies:
            memory[target] = memory[source]

    def compute(self) -> bool:
        """All tokens; False if blocks are short."""
        first = self.table.num_committed
        if not self.cache.allocate(self.table, len(self.tokens)):
            return False
        for position in range(first, len(self.tokens)):
            self.memory[self.table.block_ids[position // B], position % B] = self.tokens[position]
        self.cache.commit(self.table, len(self.tokens))
        return True

    def check(self) -> None:
        """What the blocks hold is what was committed."""
        for position in range(self.table.num_committed):
            assert (
                self.memory[self.table.block_ids[position // B], position % B]
                == self.tokens[position]
            )


def fresh(num_blocks: int = 32) -> tuple[CacheManager, np.ndarray]:
    return CacheManager(num_blocks), np.full((num_blocks, B), -1)


def run(cache: CacheManager, memory: np.ndarray, tokens: list[int], salt: str | None = None) -> int:
    """Start, compute and end a sequence; the tokens it found."""
    sequence = Sequence(cache, memory, tokens, salt)
    assert sequence.compute()
    sequence.check()
    cache.free(sequence.table)
    cache.check_invariants()
    return sequence.num_cached


@pytest.mark.parametrize("length", [1, 2, 5, B - 1, B, B + 1, 3 * B, 3 * B + 7])
def test_a_sequence_is_found_again_but_for_its_last_token(length: int) -> None:
    cache, memory = fresh()
    tokens = list(range(length))
    assert run(cache, memory, tokens) == 0
    assert run(cache, memory, tokens) == length - 1


@pytest.mark.parametrize("common", [0, 1, B - 1, B, B + 3, 2 * B + 15])
def test_reuse_ends_at_the_first_token_that_differs(common: int) -> None:
    cache, memory = fresh()
    tokens = list(range(100, 100 + 3 * B))
    run(cache, memory, tokens)
    other = tokens[:common] + [7] * (3 * B - common)
    assert run(cache, memory, other) == common
    assert run(cache, memory, tokens) == 3 * B - 1


def test_the_longest_of_many_continuations_is_taken() -> None:
    cache, memory = fresh(64)
    for own in range(20):
        run(cache, memory, [5] * B + [1] * own + [900 + own] * (B - own))
    assert run(cache, memory, [5] * B + [1] * 11 + [3] * 9) == B + 11


def test_a_longer_last_block_replaces_a_shorter_one() -> None:
    cache, memory = fresh()
    for length in (3, 6, 9, 7, B + 2):
        run(cache, memory, list(range(length)))
    assert cache.num_cached == 2


def test_salts_share_nothing() -> None:
    cache, memory = fresh()
    tokens = list(range(40))
    run(cache, memory, tokens, "a")
    assert run(cache, memory, tokens, "b") == 0
    assert run(cache, memory, tokens) == 0
    assert run(cache, memory, tokens, "a") == 39


def test_blocks_of_a_running_sequence_are_found_and_outlive_it() -> None:
    cache, memory = fresh()
    tokens = list(range(2 * B + 5))
    first = Sequence(cache, memory, tokens)
    assert first.compute()
    second = Sequence(cache, memory, [*tokens[: 2 * B], 7, 7])
    assert second.num_cached == 2 * B
    assert second.compute()
    cache.free(first.table)
    cache.check_invariants()
    second.check()
    cache.free(second.table)
    assert run(cache, memory, tokens) == 2 * B + 4


def test_who_computes_the_same_at_the_same_time_ends_up_with_one_copy() -> None:
    cache, memory = fresh()
    tokens = list(range(3 * B))
    both = [Sequence(cache, memory, tokens) for _ in range(2)]
    assert all(sequence.compute() for sequence in both)
    assert both[0].table.block_ids.tolist() == both[1].table.block_ids.tolist()
    assert both[1].table.num_swaps == 3
    cache.check_invariants()
    for sequence in both:
        sequence.check()
        cache.free(sequence.table)
        cache.check_invariants()
    assert cache.num_cached == 3


def test_what_was_used_least_recently_is_evicted_first_ends_before_beginnings() -> None:
    cache, memory = fresh(6)
    old, new = list(range(3 * B)), list(range(500, 500 + 3 * B))
    run(cache, memory, old)
    run(cache, memory, new)
    run(cache, memory, old[: B + 1])  # its first block is in use again
    assert run(cache, memory, [9] * (2 * B)) == 0
    assert run(cache, memory, old) == B  # its end was older than all of the other


def test_a_block_in_use_is_never_evicted() -> None:
    cache, memory = fresh(4)
    held = Sequence(cache, memory, list(range(2 * B)))
    assert held.compute()
    for token in range(20):
        run(cache, memory, [token] * (2 * B))
        held.check()
    assert not cache.allocate(held.table, 5 * B)
    cache.free(held.table)


def test_reset_forgets_everything_and_disturbs_nobody() -> None:
    cache, memory = fresh()
    tokens = list(range(40))
    run(cache, memory, tokens)
    running = Sequence(cache, memory, tokens)
    assert running.compute()
    cache.reset()
    cache.check_invariants()
    assert cache.num_cached == 0
    running.check()
    assert run(cache, memory, tokens) == 0
    running.tokens = [*tokens, *([1] * 30)]
    assert running.compute()
    running.check()
    cache.free(running.table)
    cache.check_invariants()
    assert run(cache, memory, tokens) == 39


def test_without_sharing_nothing_is_kept() -> None:
    cache, memory = CacheManager(8, is_sharing=False), np.full((8, B), -1)
    assert run(cache, memory, [1] * 40) == run(cache, memory, [1] * 40) == 0
    assert (cache.num_cached, cache.num_free) == (0, 8)


def test_many_salts_leave_nothing_behind() -> None:
    cache, memory = fresh(2)
    for i in range(50):
        run(cache, memory, [1] * 20, f"salt {i}")
    assert len(cache._tree._roots) <= 2


def test_keys_sort_like_tokens() -> None:
    tokens = [0, 1, 255, 256, 65_536, 262_143]
    assert [key_of([t]) for t in tokens] == sorted(key_of([t]) for t in tokens)


class CacheMachine(RuleBasedStateMachine):
    """Random sequences over few tokens, so that prefixes meet; a small pool, so that they are evicted."""

    NUM_BLOCKS = 12

    def __init__(self) -> None:
        super().__init__()
        self.cache, self.memory = fresh(self.NUM_BLOCKS)
        self.running: list[Sequence] = []
        self.stored: list[
            tuple[str | None, list[int]]
        ] = []  # all that was ever computed, or copied

    def longest_ever(self, tokens: list[int], salt: str | None) -> int:
        """No match may be longer than what the naive model finds."""
        best = 0
        for other_salt, other in self.stored:
            if other_salt != salt:
                continue
            common = 0
            while common < min(len(tokens) - 1, len(other)) and tokens[common] == other[common]:
                common += 1
            best = max(best, common)
        return best

    @rule(
        runs=st.lists(
            st.tuples(st.integers(0, 1), st.sampled_from([1, 3, 15, 16, 17, 31])),
            min_size=1,
            max_size=4,
        ),
        salt=st.sampled_from([None, "s"]),
    )
    def start(self, runs: list[tuple[int, int]], salt: str | None) -> None:
        tokens = [token for token, count in runs for _ in range(count)]
        if len(tokens) > self.cache.num_free * B - B:
            return
        sequence = Sequence(self.cache, self.memory, tokens, salt)
        assert sequence.num_cached <= self.longest_ever(tokens, salt)
        sequence.check()
        self.running.append(sequence)
        self.advance(len(self.running) - 1)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 99), more=st.lists(st.integers(0, 1), min_size=1, max_size=20))
    def grow(self, which: int, more: list[int]) -> None:
        at = which % len(self.running)
        self.running[at].tokens = [*self.running[at].tokens, *more]
        self.advance(at)

    def advance(self, at: int) -> None:
        sequence = self.running[at]
        if sequence.compute():
            self.stored.append((sequence.salt, list(sequence.tokens)))
        else:
            sequence.tokens = sequence.tokens[: sequence.table.num_committed]

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 99), part=st.floats(0, 1))
    def fork(self, which: int, part: float) -> None:
        source = self.running[which % len(self.running)]
        num_tokens = int(part * source.table.num_committed)
        child = Sequence.__new__(Sequence)
        child.cache, child.memory, child.salt = self.cache, self.memory, source.salt
        child.tokens = source.tokens[:num_tokens]
        opened = self.cache.fork(source.table, num_tokens, lambda a, b: child.tokens[a:b])
        if opened is None:
            return
        child.table, child.num_cached = opened.table, num_tokens
        for origin, target in opened.copies:
            self.memory[target] = self.memory[origin]
        self.running.append(child)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 99))
    def end(self, which: int) -> None:
        self.cache.free(self.running.pop(which % len(self.running)).table)

    @rule()
    def reset(self) -> None:
        self.cache.reset()
        self.stored.clear()

    @invariant()
    def everything_holds(self) -> None:
        self.cache.check_invariants()
        for sequence in self.running:
            sequence.check()


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
