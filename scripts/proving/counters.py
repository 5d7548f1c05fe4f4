"""Shares of the machine's limits that the matrices reach, from the counters of the executor."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scripts.proving.loaded import Loaded, OpCount
from scripts.proving.rows import SMALL, Paths, Row, on_quiet, quiet_bar

from octavo.dtypes import QuantFormat
from octavo.observability.limits import MachineCeilings

_BY_NUMBER = {f.value[0]: f.name for f in QuantFormat}
_FLOATS = ("F32", "F16", "BF16")
_NUM_ROUNDS = 8 if SMALL else 15  # neighbours disturb a processor for seconds

Matrices = tuple[tuple[str, int, int], ...]
"""What a stage multiplies with: format, rows and columns of each matrix."""


@dataclass(frozen=True)
class Stage:
    """One kind of multiply stage in one round, and the seconds it took in all."""

    count: OpCount
    seconds: float


@dataclass(frozen=True)
class Round:
    """Multiply stages of some steps, and what the machine allowed meanwhile: limits right before and after."""

    stages: dict[Matrices, Stage]
    ceilings: MachineCeilings

    def int8_share(self, chosen: Sequence[Matrices]) -> float:
        """Of the peak, what these stages reach together."""
        return macs_per_s([self.stages[one] for one in chosen]) / self.ceilings.int8_macs_per_s

    @property
    def bytes_per_s(self) -> float:
        """Packed bytes per second of all stages together: each matrix is read once a step."""
        stages = self.stages.values()
        num_bytes = sum(stage.count.num_bytes * stage.count.calls for stage in stages)
        return num_bytes / sum(stage.seconds for stage in stages)

    @property
    def read_bytes_per_s(self) -> float:
        """The bandwidth of reading the same weights and doing nothing with them."""
        [read] = self.ceilings.reads
        return read.bytes_per_s


def macs_per_s(stages: Sequence[Stage]) -> float:
    """Multiply-accumulates per second of stages together."""
    macs = sum(stage.count.macs_per_row * stage.count.rows for stage in stages)
    return macs / sum(stage.seconds for stage in stages)


def stages_of(counts: Sequence[OpCount], busy: float) -> dict[Matrices, Stage]:
    """The multiply stages by what they multiply with; of their time, the part that the thread had a core."""
    return {
        matrices_of(count): Stage(count, (count.work_ns + count.wait_ns) * 1e-9 * busy)
        for count in counts
        if count.kind == "multiply" and count.rows and count.work_ns
    }


def matrices_of(count: OpCount) -> Matrices:
    """What the counter's matrices are."""
    return tuple((_BY_NUMBER[number], r, c) for number, r, c, _ in count.matrices)


def named(matrices: Matrices) -> str:
    """Such as "Q4_1 960x576"."""
    formats = "+".join(dict.fromkeys(name for name, _, _ in matrices))
    return f"{formats} {sum(r for _, r, _ in matrices)}x{matrices[0][2]}"


def part_of(matrices: Matrices, vocab_size: int) -> str | None:
    """The promise a stage belongs to; None: float weights have none."""
    names = {name for name, _, _ in matrices}
    if names & set(_FLOATS):
        return None
    if any(rows == vocab_size for _, rows, _ in matrices):
        return "head"
    return "Q6_K layer matrices" if "Q6_K" in names else "layer matrices"


def op_shares(paths: Paths) -> Iterator[Row]:
    """GEMM at 32 tokens against the int8 peak; batch 1 against the bandwidth."""
    # One thread in the short version: what the others wait for is not known then, and not needed.
    threads, how = (1, "1 thread, its CPU time, best") if SMALL else (2, "2 threads, medians")
    for model, path in paths.items():
        with Loaded(path, max_model_len=512, num_threads=threads) as loaded:
            gemm = _rounds(loaded, 32, 12)
            gemv = _rounds(loaded, 1, 48)
            vocab_size = loaded.llm.info.vocab_size
        yield from _gemm_rows(model, gemm, vocab_size, how)
        yield _gemv_row(model, gemv)


def _rounds(loaded: Loaded, batch: int, num_tokens: int) -> list[Round]:
    loaded.count_ops(batch, num_tokens)
    rounds: list[Round] = []
    limits = loaded.limits()
    for _ in range(_NUM_ROUNDS):
        counts, busy = loaded.count_ops(batch, num_tokens)
        ceilings = limits.look()
        assert ceilings is not None
        rounds.append(Round(stages_of(counts, busy if SMALL else 1.0), ceilings))
    return rounds


def _gemm_rows(model: str, rounds: Sequence[Round], vocab_size: int, how: str) -> Iterator[Row]:
    parts: dict[str, list[Matrices]] = defaultdict(list)
    for matrices in rounds[0].stages:
        part = part_of(matrices, vocab_size)
        if part is not None:
            parts[part].append(matrices)
    choose = max if SMALL else statistics.median
    for part, members in sorted(parts.items()):

        def share(chosen: Sequence[Matrices]) -> float:
            return choose([round_.int8_share(chosen) for round_ in rounds])

        each = {named(one): share([one]) for one in members}
        worst = min(each, key=each.__getitem__)
        bar = 0.45 if part == "layer matrices" else 0.38
        yield Row(
            f"int8 share of limit, 32 tokens, {model}: {part}",
            f"{share(members):.0%}, lowest {each[worst]:.0%} ({worst}); {how}",
            f">= {bar:.0%}",
            share(members) >= bar,
            {name: [one] for name, one in each.items()},
        )


def _gemv_row(model: str, rounds: Sequence[Round]) -> Row:
    rates = [round_.bytes_per_s for round_ in rounds]
    limits = [round_.read_bytes_per_s for round_ in rounds]
    share = statistics.median(rate / limit for rate, limit in zip(rates, limits, strict=True))
    return Row(
        f"batch-1 matrices of {model}: share of read bandwidth",
        f"{share:.0%} ({_giga(rates)} of {_giga(limits)} GB/s; {len(rounds)} rounds)",
        quiet_bar(">= 85%"),
        on_quiet(share >= 0.85),
        {"bytes_per_s": rates, "read_bytes_per_s": limits},
    )


def _giga(rates: Sequence[float]) -> str:
    return f"{statistics.median(rates) / 1e9:.1f}"
