"""Prefixes outlive the engine on disk, and nothing of it shows in the answers."""

from __future__ import annotations

import random
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from octavo.engine.engine import Engine
from octavo.messages import AddRequest
from tests.engine.fakes import (
    BLOCK_BYTES,
    VOCAB,
    Collected,
    FakeExecutor,
    fake_engine,
    fake_tier,
    request,
    run_all,
)
from tests.engine.test_equality import answers, workload

PROMPT = [(i * i + 3) % VOCAB for i in range(100)]


def asked(name: str = "a", prompt: list[int] = PROMPT, salt: str | None = None) -> AddRequest:
    message = request(name, prompt, max_tokens=20, eos=[])
    message.cache_salt = salt
    return message


def finish(engine: Engine) -> None:
    assert engine._disk is not None
    assert engine._disk.drain(10)


def ran(directory: Path, *messages: AddRequest, num_blocks: int = 64) -> tuple[Collected, Engine]:
    """One life of an engine with this directory."""
    engine, _ = fake_engine(num_blocks=num_blocks, disk=directory)
    got = run_all(engine, messages)
    finish(engine)
    engine.close()
    return got, engine


def blocks_in(directory: Path) -> list[Path]:
    return sorted(directory.glob("*/*/*.kv"))


def test_a_prompt_is_found_after_a_restart(tmp_path: Path) -> None:
    cold, first = ran(tmp_path, asked())
    assert first.stats().num_disk_stored_blocks == 7, "119 tokens were computed"
    assert len(blocks_in(tmp_path)) == 7
    warm, second = ran(tmp_path, asked())
    assert warm.token_ids == cold.token_ids
    assert cold.ends["a", 0].num_cached_tokens == 0
    assert warm.ends["a", 0].num_cached_tokens == 96
    assert second.stats().num_disk_loaded_blocks == 6
    assert second.stats().num_disk_stored_blocks == 0


def test_without_close_what_ended_is_on_disk(tmp_path: Path) -> None:
    engine, _ = fake_engine(disk=tmp_path)
    run_all(engine, [asked()])
    finish(engine)  # by the writer's thread alone: no step, no close
    assert len(blocks_in(tmp_path)) == 7
    warm, _ = ran(tmp_path, asked())
    assert warm.ends["a", 0].num_cached_tokens == 96
    engine.close()


def test_the_next_turn_goes_on_where_the_disk_ends(tmp_path: Path) -> None:
    first, _ = ran(tmp_path, asked())
    turn = [*PROMPT, *first.token_ids["a", 0], 5, 6]
    warm, _ = ran(tmp_path, asked("b", turn))
    assert warm.ends["b", 0].num_cached_tokens == 112
    alone, _ = fake_engine()
    assert run_all(alone, [asked("b", turn)]).token_ids == warm.token_ids


def test_what_is_in_memory_is_continued_from_disk(tmp_path: Path) -> None:
    ran(tmp_path, asked())
    engine, executor = fake_engine(disk=tmp_path)
    run_all(engine, [asked("head", PROMPT[:50])])
    assert engine.stats().num_disk_loaded_blocks == 3
    got = run_all(engine, [asked()])
    assert got.ends["a", 0].num_cached_tokens == 96
    assert engine.stats().num_disk_loaded_blocks == 6
    engine.close()
    assert executor.num_closed == 1


def test_salts_keep_what_is_stored_apart(tmp_path: Path) -> None:
    ran(tmp_path, asked(salt="x"))
    for salt, num_cached in ((None, 0), ("y", 0), ("", 0), ("x", 96)):
        got, _ = ran(tmp_path, asked(salt=salt))
        assert got.ends["a", 0].num_cached_tokens == num_cached


def test_a_flipped_byte_in_every_block_costs_nothing_but_time(tmp_path: Path) -> None:
    cold, _ = ran(tmp_path, asked())
    rng = random.Random(1)
    for path in blocks_in(tmp_path):
        data = bytearray(path.read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
    engine, _ = fake_engine(disk=tmp_path)
    got = run_all(engine, [asked()])
    assert got.token_ids == cold.token_ids
    assert got.ends["a", 0].num_cached_tokens == 0
    finish(engine)
    engine.close()
    # The first one was looked at, found bad, and written anew; so were those that the next life looks at.
    for num_cached in (16, 32):
        got, _ = ran(tmp_path, asked())
        assert got.token_ids == cold.token_ids
        assert got.ends["a", 0].num_cached_tokens == num_cached


def test_a_reset_forgets_the_memory_not_the_disk(tmp_path: Path) -> None:
    engine, executor = fake_engine(disk=tmp_path)
    run_all(engine, [asked()])
    engine.reset_prefix_cache()
    executor.kv[:] = 1  # what was not written yet has been copied
    finish(engine)
    engine.check_invariants()
    cold, _ = fake_engine()
    got = run_all(engine, [asked()])
    assert got.token_ids == run_all(cold, [asked()]).token_ids
    assert got.ends["a", 0].num_cached_tokens == 96
    engine.close()


@pytest.mark.parametrize("num_blocks", [8, 12, 20, 999])
def test_answers_are_the_same_with_a_disk_at_every_size_of_memory(
    tmp_path: Path, num_blocks: int
) -> None:
    cold = answers(workload())
    for _ in range(3):
        engine, _ = fake_engine(num_blocks=num_blocks, disk=tmp_path)
        for seed in (0, 1, 0):
            got = run_all(engine, workload(seed))
            if seed == 0:
                tokens = {k: (ids, got.ends[k].finish_reason) for k, ids in got.token_ids.items()}
                assert (tokens, got.prompt_scores) == cold
        engine.close()
    assert engine.stats().num_disk_loaded_blocks > 0


def test_those_who_want_the_same_blocks_send_for_them_once(tmp_path: Path) -> None:
    ran(tmp_path, asked())
    got, engine = ran(tmp_path, *(asked(name, [*PROMPT, i]) for i, name in enumerate("abcdef")))
    assert engine.stats().num_disk_loaded_blocks == 6
    assert all(got.ends[name, 0].num_cached_tokens >= 96 for name in "abcdef")


class SlowMemory:
    """Holds up whoever writes to it until it is told to go on."""

    def __init__(self) -> None:
        self.executor: FakeExecutor | None = None
        self.may_write = threading.Event()

    def read_block(self, block_id: int) -> np.ndarray:
        assert self.executor is not None
        return self.executor.read_block(block_id)

    def write_block(self, block_id: int, data: np.ndarray) -> None:
        assert self.executor is not None
        assert self.may_write.wait(10)
        self.executor.write_block(block_id, data)


def stuck_engine(directory: Path, now: list[float]) -> tuple[Engine, SlowMemory]:
    engine, executor = fake_engine()
    memory = SlowMemory()
    memory.executor = executor
    engine._disk = fake_tier(directory, 2**20, memory, lambda: now[0])
    engine._cache, engine._scheduler = engine._new_scheduler()
    return engine, memory


def test_others_run_while_a_request_waits_for_its_blocks(tmp_path: Path) -> None:
    ran(tmp_path, asked())
    engine, memory = stuck_engine(tmp_path, [0.0])
    engine.add(asked("loads"))
    engine.add(request("runs", [1, 2, 3], max_tokens=30, eos=[]))
    got = Collected()
    while ("runs", 0) not in got.ends:
        got.take(engine.step().outputs)
        engine.check_invariants()
    assert engine.stats().num_waiting == 1
    memory.may_write.set()
    got.take(run_all(engine, []).ends.values())
    assert got.ends["loads", 0].num_cached_tokens == 96
    engine.close()


def test_after_a_bounded_time_a_request_goes_on_without_its_blocks(tmp_path: Path) -> None:
    ran(tmp_path, asked())
    now = [0.0]
    engine, memory = stuck_engine(tmp_path, now)
    engine.add(asked())
    got = Collected()
    got.take(engine.step().outputs)
    assert engine.stats().num_running == 0
    now[0] = 10.0
    while not got.ends:
        got.take(engine.step().outputs)
        engine.check_invariants()
    assert got.ends["a", 0].num_cached_tokens == 0
    assert engine.has_work, "the blocks that are on their way hold memory"
    memory.may_write.set()
    run_all(engine, [])
    assert engine.stats().num_disk_loaded_blocks == 1, "the time was over after the first"
    engine.close()


def test_an_abort_while_blocks_are_loaded_leaves_nothing_held(tmp_path: Path) -> None:
    ran(tmp_path, asked())
    engine, memory = stuck_engine(tmp_path, [0.0])
    engine.add(asked())
    engine.step()
    engine.abort(["a"])
    with pytest.raises(RuntimeError, match="running"):
        engine.fill_kv(0.0)
    memory.may_write.set()
    got = run_all(engine, [])
    assert got.reason("a") == "abort"
    assert engine.stats().num_cached_blocks == 6, "and what came is kept"
    engine.close()


def test_blocks_that_are_overwritten_before_they_are_written_are_copied(tmp_path: Path) -> None:
    engine, _ = fake_engine(num_blocks=10, disk=tmp_path)
    for i in range(12):
        run_all(engine, [asked(f"r{i}", [i, *PROMPT])])
    finish(engine)
    engine.close()
    assert len(blocks_in(tmp_path)) == 12 * 7
    cold, _ = fake_engine()
    for i in range(12):
        got, _ = ran(tmp_path, asked("r", [i, *PROMPT]))
        assert got.ends["r", 0].num_cached_tokens == 96
        assert got.token_ids == run_all(cold, [asked("r", [i, *PROMPT])]).token_ids


def test_the_quota_holds_and_the_longest_unused_goes_first(tmp_path: Path) -> None:
    size = 128 + BLOCK_BYTES + 16
    engine, _ = fake_engine(disk=tmp_path, disk_bytes=30 * size)
    for i in range(8):
        run_all(engine, [asked(f"r{i}", [i, *PROMPT])])
        run_all(engine, [asked(f"again{i}", [0, *PROMPT])])
        finish(engine)
        assert sum(path.stat().st_size for path in blocks_in(tmp_path)) <= 30 * size
    engine.close()
    for first, num_cached in ((0, 96), (7, 96), (1, 0)):
        got, _ = ran(tmp_path, asked("r", [first, *PROMPT]))
        assert got.ends["r", 0].num_cached_tokens == num_cached, first


def test_a_directory_that_was_emptied_is_filled_again(tmp_path: Path) -> None:
    engine, _ = fake_engine(disk=tmp_path)
    run_all(engine, [asked()])
    finish(engine)
    for folder in tmp_path.iterdir():
        shutil.rmtree(folder)
    run_all(engine, [asked("b", [1, *PROMPT])])
    finish(engine)
    assert len(blocks_in(tmp_path)) == 7
    run_all(engine, [asked("c")])
    finish(engine)
    assert len(blocks_in(tmp_path)) == 14, "what was known to be there is written anew"
    engine.close()


def test_closing_while_blocks_are_loaded_ends_at_once(tmp_path: Path) -> None:
    ran(tmp_path, asked())
    engine, memory = stuck_engine(tmp_path, [0.0])
    engine.add(asked())
    engine.step()
    memory.may_write.set()
    engine.close()
    assert [output.finish_reason for output in engine.step().outputs] == ["abort"]
    assert not engine.has_work


def test_a_disk_that_fails_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = tmp_path / "kv"
    engine, _ = fake_engine(disk=directory)
    directory.rename(tmp_path / "gone")
    for name in ("a", "b"):
        got = run_all(engine, [asked(name, [len(name), *PROMPT])])
        assert got.reason(name) == "length"
        finish(engine)
    assert sum("no more are stored" in record.message for record in caplog.records) == 1
    assert not directory.exists(), "a file system that is not mounted is left alone"
    engine.close()
