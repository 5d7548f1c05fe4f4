"""A stand-in for a model: the next token is a hash of the whole history, read back from a fake KV memory.

Any mistake with slots, block tables, copies or freed blocks changes the tokens or trips over poison.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic

import numpy as np

from octavo.cache.block_files import BlockFiles
from octavo.cache.disk_tier import BlockMemory, DiskTier
from octavo.engine.engine import Engine
from octavo.engine.runner import ModelRunner
from octavo.engine.scheduler import SchedulerLimits
from octavo.kv_layout import BLOCK_SIZE
from octavo.messages import AddRequest, ChoiceOutput, EngineInfo, StepOutputs, TokenScore
from octavo.ops.decode_run import decode_by_steps
from octavo.ops.protocol import Batch, DecodeRun, SampleBatch, SampleResult
from octavo.ops.reference_sampling import empty_result, sample_rows
from octavo.params import SamplingParams

VOCAB = 61
EOS = 7
POISON = -(10**9)


class FakeClock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class FakeExecutor:
    """Keeps token ids where a model keeps keys and values."""

    kernel_table = "fake"

    def __init__(self, num_blocks: int, seconds: Callable[[Batch], float] | None = None) -> None:
        self.kv = np.full(num_blocks * BLOCK_SIZE, POISON, np.int64)
        self.clock = FakeClock()
        self.batches: list[Batch] = []
        self.num_closed = 0
        self.num_runs = 0
        self.fault: Exception | None = None
        self._seconds = seconds

    def execute(self, batch: Batch, sample: SampleBatch) -> SampleResult:
        if self.fault is not None:
            raise self.fault
        self.batches.append(batch)
        self._check(batch, sample)
        self.kv[batch.slots] = batch.token_ids
        logits = np.zeros((len(batch.output_rows), VOCAB), np.float32)
        for row, token in enumerate(batch.output_rows):
            logits[row] = _logits(self._history(batch, int(token)))
        result = empty_result(sample)
        sample_rows(logits, sample, 0, result)
        self.clock.now += self._seconds(batch) if self._seconds else 0.01
        return result

    def _history(self, batch: Batch, token: int) -> np.ndarray:
        row = int(np.searchsorted(batch.query_start, token, side="right")) - 1
        positions = np.arange(batch.positions[token] + 1)
        slots = (
            batch.block_tables[row, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        )
        history = self.kv[slots]
        assert (history >= 0).all(), "attention reads a slot that was never written"
        return history

    def _check(self, batch: Batch, sample: SampleBatch) -> None:
        num_tokens = batch.query_start[-1]
        assert len(batch.token_ids) == len(batch.positions) == len(batch.slots) == num_tokens
        assert len(set(batch.slots.tolist())) == num_tokens, "two tokens write the same slot"
        assert (np.diff(batch.query_start) > 0).all()
        assert (np.diff(batch.output_rows) > 0).all(), "output rows must rise"
        for array in vars_of(batch):
            assert array.dtype == np.int32
            assert array.flags.c_contiguous
        for row in range(len(batch.seq_lens)):
            start, end = batch.query_start[row : row + 2]
            own = batch.positions[start:end]
            assert own[-1] + 1 == batch.seq_lens[row]
            assert (np.diff(own) == 1).all()
            expected = batch.block_tables[row, own // BLOCK_SIZE] * BLOCK_SIZE + own % BLOCK_SIZE
            assert (batch.slots[start:end] == expected).all()
        num_rows = len(batch.output_rows)
        for array in vars_of(sample):
            assert array.flags.c_contiguous
        for name in ("temperature", "seeds", "choices", "positions", "targets", "num_logprobs"):
            assert len(getattr(sample, name)) == num_rows
        for name in ("bias", "seen", "made"):
            starts = getattr(sample, f"{name}_start")
            assert len(starts) == num_rows + 1
            assert starts[-1] == len(getattr(sample, f"{name}_ids"))

    def decode(self, batch: Batch, sample: SampleBatch, run: DecodeRun) -> np.ndarray:
        self.num_runs += 1
        return decode_by_steps(self.execute, batch, sample, run)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        blocks = self.kv.reshape(-1, BLOCK_SIZE)
        for source, destination in pairs:
            blocks[destination] = blocks[source]

    def read_block(self, block_id: int) -> np.ndarray:
        block = self.kv.reshape(-1, BLOCK_SIZE)[block_id]
        assert (block >= 0).all(), "a block is stored that was not computed"
        return block.copy().view(np.uint8)

    def write_block(self, block_id: int, data: np.ndarray) -> None:
        self.kv.reshape(-1, BLOCK_SIZE)[block_id] = np.frombuffer(data.tobytes(), np.int64)

    def fill_kv(self, value: float) -> None:
        self.kv[:] = POISON

    def close(self) -> None:
        self.num_closed += 1


def vars_of(struct: object) -> list[np.ndarray]:
    return [getattr(struct, name) for name in type(struct).__slots__]


_POWERS = np.cumprod(np.full(4096, 6364136223846793005, np.uint64))
_WAVES = np.linspace(1.0, 50.0, VOCAB)


def _logits(history: np.ndarray) -> np.ndarray:
    """Spread pseudo-randomly by a hash of the whole history."""
    mixed = np.dot(history.astype(np.uint64) + np.uint64(1), _POWERS[: len(history)])
    phase = float(mixed >> np.uint64(40))
    return (3 * np.sin(_WAVES * phase)).astype(np.float32)


BLOCK_BYTES = 8 * BLOCK_SIZE


def fake_tier(
    directory: Path, max_bytes: int, memory: BlockMemory, clock: Callable[[], float] = monotonic
) -> DiskTier:
    """A disk tier of blocks of the fake model."""
    return DiskTier(BlockFiles(directory, {"model": "fake"}, BLOCK_BYTES), max_bytes, memory, clock)


def fake_engine(
    *,
    num_blocks: int = 64,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 64,
    max_model_len: int = 256,
    max_step_s: float = 1e9,
    seconds: Callable[[Batch], float] | None = None,
    is_caching: bool = True,
    clock: Callable[[], float] | None = None,
    disk: Path | None = None,
    disk_bytes: int = 2**20,
) -> tuple[Engine, FakeExecutor]:
    """An engine over the fake model. Without `clock` time passes in the model only."""
    executor = FakeExecutor(num_blocks, seconds)
    info = EngineInfo(
        model_name="fake",
        architecture="fake",
        vocab_size=VOCAB,
        max_model_len=max_model_len,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_num_seqs=max_num_seqs,
        num_parameters=0,
        kernel_table="fake",
        num_threads=1,
    )
    limits = SchedulerLimits(max_num_seqs, max_num_batched_tokens)
    engine = Engine(
        ModelRunner(executor, clock or executor.clock),
        info,
        limits,
        max_step_s=max_step_s,
        is_caching=is_caching,
        disk=None if disk is None else fake_tier(disk, disk_bytes, executor),
    )
    return engine, executor


def request(request_id: str, prompt: Sequence[int], **params: object) -> AddRequest:
    """A request with params as keywords; `eos`, `known`, `priority` and `tenant` set the fields of the message."""
    eos = params.pop("eos", [EOS])
    known = params.pop("known", [])
    priority = params.pop("priority", 0)
    tenant = params.pop("tenant", "")
    settings = {"temperature": 0.0, "max_tokens": 20, "seed": 1, **params}
    return AddRequest(
        request_id,
        list(prompt),
        SamplingParams(**settings),  # type: ignore[arg-type]
        eos_token_ids=list(eos),  # type: ignore[call-overload]
        output_token_ids=known,  # type: ignore[arg-type]
        priority=priority,  # type: ignore[arg-type]
        tenant=tenant,  # type: ignore[arg-type]
    )


class Collected:
    """Everything an engine said, by (request id, choice). Checks that each choice ends once."""

    def __init__(self) -> None:
        self.token_ids: dict[tuple[str, int], list[int]] = {}
        self.scores: dict[tuple[str, int], list[TokenScore]] = {}
        self.prompt_scores: dict[str, list[TokenScore]] = {}
        self.ends: dict[tuple[str, int], ChoiceOutput] = {}

    def take(self, outputs: Sequence[ChoiceOutput]) -> None:
        for output in outputs:
            key = (output.request_id, output.index)
            assert key not in self.ends, f"{key} speaks after its end"
            self.token_ids.setdefault(key, []).extend(output.token_ids)
            self.scores.setdefault(key, []).extend(output.scores)
            self.prompt_scores.setdefault(output.request_id, []).extend(output.prompt_scores)
            if output.finish_reason is not None:
                self.ends[key] = output

    def reason(self, request_id: str, index: int = 0) -> str | None:
        return self.ends[request_id, index].finish_reason


class Inbox:
    """Collects what a client in another thread delivers, and lets a test wait for it."""

    def __init__(self) -> None:
        self.collected = Collected()
        self.changed = threading.Condition()

    def __call__(self, outputs: StepOutputs) -> None:
        with self.changed:
            self.collected.take(outputs.outputs)
            self.changed.notify_all()

    def wait_until(self, is_there: Callable[[Collected], bool]) -> None:
        """Wait for outputs that make this true."""
        with self.changed:
            assert self.changed.wait_for(lambda: is_there(self.collected), timeout=60)

    def wait_for(self, num_ends: int) -> None:
        """Wait for so many ends of choices, in all."""
        self.wait_until(lambda collected: len(collected.ends) >= num_ends)

    def num_tokens(self, *names: str) -> int:
        """Of the first choices of these requests, the tokens of the one that has fewest."""
        return min(len(self.collected.token_ids.get((name, 0), [])) for name in names)


def run_all(engine: Engine, requests: Sequence[AddRequest], max_steps: int = 20_000) -> Collected:
    """Add all requests, step to the end, check the invariants after every step."""
    collected = Collected()
    for message in requests:
        engine.add(message)
    for _ in range(max_steps):
        if not engine.has_work:
            break
        collected.take(engine.step().outputs)
        engine.check_invariants()
    assert not engine.has_work, "the engine did not come to an end"
    assert engine.stats().num_free_blocks == engine.stats().num_blocks
    return collected
