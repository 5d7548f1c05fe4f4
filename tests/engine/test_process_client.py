"""An engine in a process of its own: the same answers, whatever becomes of the process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from octavo.config import CacheConfig, ComputeConfig, EngineConfig, ModelConfig, QueueLimits
from octavo.engine import process_client
from octavo.engine.loader import load_engine
from octavo.engine.machine import MachineLimits
from octavo.engine.process_client import ProcessClient, Supervision
from octavo.engine.spawn import EarlyProcess, spawn
from octavo.engine.wire import EngineSpec
from octavo.errors import CapacityError, CorruptWeights, EngineDead, InvalidRequest, QueueFull
from octavo.messages import AddRequest
from octavo.params import SamplingParams
from octavo.weights.source import open_weights
from tests.engine.fakes import Collected, Inbox, run_all
from tests.tiny_models import tiny_source, write_gguf

EOS: list[int] = []


def config(**cache: object) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(model="tiny", max_model_len=1024),
        cache=CacheConfig(kv_cache_memory_bytes=2**26, **cache),  # type: ignore[arg-type]
        compute=ComputeConfig(num_threads=1),
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Steps of about a millisecond: a test is in time to do something to an engine that works.
    source = tiny_source(num_layers=24, hidden_size=256, intermediate_size=768)
    return write_gguf(source, tmp_path_factory.mktemp("model") / "tiny.gguf")


def message(name: str, num_tokens: int = 300, **params: object) -> AddRequest:
    values = {"temperature": 0.0, "max_tokens": num_tokens, "seed": 1, "ignore_eos": True, **params}
    prompt = [(7 * i + len(name) * i * i + ord(name[0])) % 256 for i in range(40)]
    return AddRequest(name, prompt, SamplingParams(**values), EOS, is_streamed=True)  # type: ignore[arg-type]


def messages(num_tokens: int = 300) -> list[AddRequest]:
    return [
        message("a", num_tokens),
        message("b", num_tokens, temperature=1.0),
        message("c", num_tokens, n=2, temperature=0.8, frequency_penalty=0.5),
        message("d", num_tokens, logprobs=2, prompt_logprobs=1),
    ]


Start = Callable[..., tuple[ProcessClient, Inbox]]


@pytest.fixture
def start(model: Path) -> Iterator[Start]:
    started: list[ProcessClient] = []

    def start(path: Path = model, **options: object) -> tuple[ProcessClient, Inbox]:
        spec = EngineSpec(config=config(), path=str(path), log_level="ERROR")
        client = ProcessClient(spec, **options)  # type: ignore[arg-type]
        started.append(client)
        inbox = Inbox()
        client.connect(inbox)
        return client, inbox

    yield start
    for client in started:
        client.close()


@pytest.fixture(scope="module")
def expected(model: Path) -> Collected:
    with open_weights(model) as weights:
        engine = load_engine(config(), weights, limits=MachineLimits(2, 2**33, "the test"))
    try:
        return run_all(engine, messages())
    finally:
        engine.close()


def check_equal(got: Collected, expected: Collected) -> None:
    assert got.token_ids == expected.token_ids
    assert {key: end.finish_reason for key, end in got.ends.items()} == {
        key: end.finish_reason for key, end in expected.ends.items()
    }
    scores = got.scores["d", 0]
    assert [s.logprob for s in scores] == [s.logprob for s in expected.scores["d", 0]]


def kill(client: ProcessClient, how: int = signal.SIGKILL) -> int:
    deadline = time.monotonic() + 30
    while (pid := client.pid) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(pid, how)
    return pid


def wait_until(is_true: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_answers_are_those_of_an_engine_in_this_process(start: Start, expected: Collected) -> None:
    client, inbox = start()
    for one in messages():
        client.add(one)
    inbox.wait_for(5)
    check_equal(inbox.collected, expected)
    stats = client.stats()
    assert stats.num_free_blocks == client.info.num_blocks
    assert stats.num_generated_tokens == 5 * 300
    pid = client.pid
    client.close()
    client.close()
    assert pid is not None
    assert not is_running(pid)
    with pytest.raises(EngineDead):
        client.add(message("late"))


def test_a_process_that_waits_becomes_the_engine_and_ends_where_it_is_not_needed(
    start: Start,
) -> None:
    with EarlyProcess() as early, EarlyProcess() as unused:
        assert unused._process is not None
        pid, unused_pid = early._process.pid, unused._process.pid  # type: ignore[union-attr]
        client, inbox = start(early=early)
    assert (client.pid, is_running(unused_pid)) == (pid, False)
    client.add(message("a", 3))
    inbox.wait_for(1)
    kill(client)
    wait_until(lambda: client.supervision_stats.num_restarts == 1)
    assert client.pid != pid


def test_a_process_whose_parent_ends_before_it_said_what_to_load_ends_too(
    capfd: pytest.CaptureFixture[str],
) -> None:
    process = spawn()
    process.communicate(timeout=20)
    assert process.returncode == 0
    assert capfd.readouterr() == ("", "")


def test_killed_engines_change_no_token(start: Start, expected: Collected) -> None:
    client, inbox = start()
    for one in messages():
        client.add(one)
    for num_killed in range(1, 4):
        inbox.wait_until(lambda _: inbox.num_tokens("a", "b", "c", "d") >= 40 * num_killed)  # noqa: B023
        kill(client)
        wait_until(lambda: client.supervision_stats.num_restarts == num_killed)  # noqa: B023
    inbox.wait_for(5)
    check_equal(inbox.collected, expected)
    assert len(inbox.collected.prompt_scores["d"]) == len(expected.prompt_scores["d"])
    assert client.supervision_stats.num_quarantined == 0
    assert client.supervision_stats.num_replayed >= 3
    assert client.stats().num_generated_tokens >= 5 * 300
    timeline = inbox.collected.ends["a", 0].timeline
    assert timeline is not None
    assert timeline.replayed_s > 0


def test_an_engine_that_is_stopped_is_replaced(
    start: Start, expected: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_client, "_TICK_MS", 100)
    client, inbox = start()
    time.sleep(0.7)
    assert client.supervision_stats.num_restarts == 0  # an idle engine does not hang
    for one in messages():
        client.add(one)
    inbox.wait_until(lambda _: inbox.num_tokens("a", "b", "c", "d") >= 20)
    pid = kill(client, signal.SIGSTOP)
    inbox.wait_for(5)
    check_equal(inbox.collected, expected)
    assert client.supervision_stats.num_restarts == 1
    assert not is_running(pid)


def test_who_stops_two_engines_is_kept_apart_and_the_others_complete(
    start: Start, expected: Collected, tmp_path: Path
) -> None:
    client, inbox = start(supervision=Supervision(quarantine=tmp_path / "quarantine"))
    for one in messages():
        client.add(one)
    inbox.wait_until(lambda _: inbox.num_tokens("a", "b", "c", "d") >= 20)

    def murder() -> None:
        while ("poison", 0) not in inbox.collected.ends:
            child = client._child
            if child is not None and child.board.is_in_step("poison"):
                child.kill()
                wait_until(lambda: client._child is not child)  # noqa: B023
            time.sleep(0.0002)

    murderer = threading.Thread(target=murder)
    murderer.start()
    client.add(message("poison", 10_000 % 900, prompt_logprobs=1))
    murderer.join(60)
    inbox.wait_for(6)
    assert inbox.collected.ends["poison", 0].finish_reason == "error"
    assert "twice" in (inbox.collected.ends["poison", 0].error or "")
    assert client.supervision_stats.num_quarantined == 1
    [kept] = (tmp_path / "quarantine").iterdir()
    assert kept.stat().st_mode & 0o077 == 0
    assert json.loads(kept.read_text())["prompt_token_ids"] == message("poison").prompt_token_ids
    for name in ("a", "b", "c", "d"):
        assert inbox.collected.token_ids[name, 0] == expected.token_ids[name, 0]


def test_without_replay_requests_end_with_an_error_and_new_ones_are_answered(start: Start) -> None:
    client, inbox = start(supervision=Supervision(replays=False))
    client.add(message("a", 900))
    inbox.wait_until(lambda _: inbox.num_tokens("a") >= 5)
    kill(client)
    inbox.wait_for(1)
    assert inbox.collected.ends["a", 0].finish_reason == "error"
    client.add(message("b", 5))
    inbox.wait_for(2)
    assert inbox.collected.ends["b", 0].finish_reason == "length"


def test_requests_are_taken_and_ended_while_there_is_no_engine(start: Start) -> None:
    client, inbox = start()
    kill(client)
    wait_until(lambda: client.pid is None)
    client.add(message("a", 5))
    client.add(message("b", 5))
    client.abort(["b"])
    client.reset_prefix_cache()
    inbox.wait_for(2)
    assert inbox.collected.ends["a", 0].finish_reason == "length"
    assert inbox.collected.ends["b", 0].finish_reason == "abort"
    assert client.is_alive


def test_abort_and_reset_reach_the_process(start: Start) -> None:
    client, inbox = start()
    client.add(message("a", 5))
    inbox.wait_for(1)
    assert client.stats().num_cached_blocks > 0
    client.reset_prefix_cache()
    assert client.stats().num_cached_blocks == 0
    client.add(message("b", 900))
    inbox.wait_until(lambda _: inbox.num_tokens("b") >= 5)
    client.abort(["b", "unknown"])
    inbox.wait_for(2)
    assert inbox.collected.ends["b", 0].finish_reason == "abort"


def test_an_engine_that_is_stopped_holds_up_no_reset(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_client, "_TICK_MS", 50)
    client, _ = start()
    kill(client, signal.SIGSTOP)
    client.reset_prefix_cache()
    assert client.is_alive


def test_requests_are_checked_here_and_too_many_refused(start: Start) -> None:
    client, inbox = start(limits=QueueLimits(1, None))
    with pytest.raises(InvalidRequest, match="context"):
        client.add(AddRequest("a", [1] * 2000, SamplingParams(seed=1), EOS))
    client.add(message("a", 900))
    inbox.wait_until(lambda _: inbox.num_tokens("a") >= 5)
    with pytest.raises(InvalidRequest, match="in use"):
        client.add(message("a", 5))
    kill(client)
    wait_until(lambda: client.pid is None)
    client.add(message("b", 5))
    with pytest.raises(QueueFull):
        client.add(message("c", 5))
    inbox.wait_for(2)


def test_a_start_that_is_refused_says_why(tmp_path: Path, model: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(model.read_bytes()[:5000])
    with pytest.raises(CorruptWeights):
        ProcessClient(EngineSpec(config=config(), path=str(broken), log_level="ERROR"))
    large = EngineConfig(
        model=ModelConfig(model="tiny", max_model_len=1024),
        cache=CacheConfig(kv_cache_memory_bytes=2**50, strict_memory=True),
    )
    with pytest.raises(CapacityError) as refusal:
        ProcessClient(EngineSpec(config=large, path=str(model), log_level="ERROR"))
    assert refusal.value.flags


def test_an_engine_that_cannot_be_replaced_ends_everything(
    start: Start, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_client, "_BACK_OFF_S", (0.0, 0.01))
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(model.read_bytes())
    lost = threading.Event()
    client, inbox = start(copy, on_lost=lost.set)
    client.add(message("a", 900))
    inbox.wait_until(lambda _: inbox.num_tokens("a") >= 5)
    copy.unlink()
    kill(client)
    inbox.wait_for(1)
    assert inbox.collected.ends["a", 0].finish_reason == "error"
    assert lost.wait(10)
    assert not client.is_alive
    with pytest.raises(EngineDead):
        client.add(message("b"))


def test_the_engine_ends_with_the_process_that_started_it(model: Path) -> None:
    code = f"""
import sys, time
from octavo.config import EngineConfig, ModelConfig
from octavo.engine.process_client import ProcessClient
from octavo.engine.wire import EngineSpec
client = ProcessClient(EngineSpec(config=EngineConfig(model=ModelConfig(model="tiny")), path={str(model)!r}))
print(client.pid, client._child._directory, flush=True)
time.sleep(60)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid, directory = parent.stdout.readline().split()
        engine_pid = int(pid)
        assert is_running(engine_pid)
        parent.kill()
    wait_until(lambda: not is_running(engine_pid), 5)
    assert not Path(directory).exists()
