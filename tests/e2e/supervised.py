"""A server whose engine process is killed, stopped, or left alone: used by tests and by scripts/prove_d1.py."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.e2e import serving

_PROMPTS = ("Name three colours.", "Write a story about a lighthouse.", "Count from one to fifty.",
            "Why is the sky blue?", "List ten animals.", "Explain rain to a child.", "Describe a market.",
            "What is a prime number?")  # fmt: skip


def engine_of(pid: int) -> int | None:
    """The engine process of a server; None while there is none."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _parent(entry) == pid:
            command = (entry / "cmdline").read_bytes()
            if b"octavo.engine.process" in command:
                return int(entry.name)
    return None


def _parent(entry: Path) -> int | None:
    try:
        fields = (entry / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[1])


def gauge(url: str, name: str) -> int:
    """One number of /metrics."""
    found = re.search(rf"^{name}\S* ([\d.e+]+)$", httpx.get(url + "/metrics").text, re.MULTILINE)
    assert found, name
    return int(float(found[1]))


def wait_until(is_true: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something to become true. Raises: TimeoutError."""
    deadline = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.005)


@dataclass
class Stream:
    """One streamed answer, as far as it came."""

    body: dict[str, object]
    num_chunks: int = 0
    text: str = ""
    finish_reason: str | None = None
    error: str | None = None
    is_over: bool = False


@dataclass
class Streams:
    """Answers that are read at the same time, each in a thread."""

    streams: list[Stream] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)

    @classmethod
    def start(cls, url: str, num_streams: int, num_tokens: int) -> Streams:
        """Ask for so many; half of them sampled."""
        all_ = cls()
        for i in range(num_streams):
            body = {
                "model": "m", "prompt": _PROMPTS[i % len(_PROMPTS)], "max_tokens": num_tokens, "stream": True,
                "temperature": 0.8 * (i % 2), "seed": i, "ignore_eos": True,
            }  # fmt: skip
            stream = Stream(body)
            thread = threading.Thread(target=_read, args=(url, stream))
            thread.start()
            all_.streams.append(stream)
            all_.threads.append(thread)
        return all_

    def finish(self) -> list[str]:
        """Wait for all; their texts. Raises: AssertionError if one did not come to its end."""
        for thread in self.threads:
            thread.join(120)
        for stream in self.streams:
            assert stream.is_over, "a stream did not end"
            assert stream.error is None, stream.error
            assert stream.finish_reason == "length", stream.finish_reason
        return [stream.text for stream in self.streams]

    def wait_for_more(self, num_chunks: int) -> None:
        """Wait until each got so many more."""
        seen = [stream.num_chunks for stream in self.streams]
        wait_until(
            lambda: all(
                stream.num_chunks >= before + num_chunks
                for stream, before in zip(self.streams, seen, strict=True)
            )
        )

    def num_chunks(self) -> int:
        """Chunks of the stream that has fewest."""
        return min(stream.num_chunks for stream in self.streams)


def _read(url: str, stream: Stream) -> None:
    try:
        with httpx.stream(
            "POST", url + "/v1/completions", json=stream.body, timeout=120
        ) as response:
            for line in response.iter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    stream.error = chunk["error"]["message"]
                    return
                for choice in chunk["choices"]:
                    stream.num_chunks += 1
                    stream.text += choice["text"]
                    stream.finish_reason = choice["finish_reason"] or stream.finish_reason
    except httpx.HTTPError as error:
        stream.error = repr(error)
    finally:
        stream.is_over = True


@dataclass(frozen=True)
class Kills:
    """What became of streams whose engine was killed again and again."""

    num_kills: int
    num_streams: int
    num_equal: int
    longest_pause_s: float


def kill_mid_stream(model: Path | str, num_kills: int, num_streams: int = 8) -> Kills:
    """Kill the engine so often, each time after all streams got 3 chunks more and before any ended."""
    num_tokens = 48 * num_kills + 64  # those replayed first get ahead of the others
    with serving.server_process(model, "--max-model-len", "2048") as (url, pid):
        undisturbed = Streams.start(url, num_streams, num_tokens).finish()
        streams = Streams.start(url, num_streams, num_tokens)
        pause_s = 0.0
        for _ in range(num_kills):
            begun_s = time.monotonic()
            streams.wait_for_more(3)
            pause_s = max(pause_s, time.monotonic() - begun_s)
            ended = [stream.error for stream in streams.streams if stream.is_over]
            assert not ended, f"streams ended before the engine was killed: {ended}"
            wait_until(lambda: engine_of(pid) is not None)
            os.kill(engine_of(pid) or 0, signal.SIGKILL)
        texts = streams.finish()
    num_equal = sum(a == b for a, b in zip(texts, undisturbed, strict=True))
    return Kills(num_kills, num_streams, num_equal, pause_s)


def stop_mid_stream(model: Path | str, num_streams: int = 4, num_tokens: int = 64) -> Kills:
    """Stop the engine as SIGSTOP does, once."""
    with serving.server_process(model, "--max-model-len", "2048") as (url, pid):
        undisturbed = Streams.start(url, num_streams, num_tokens).finish()
        streams = Streams.start(url, num_streams, num_tokens)
        wait_until(lambda: streams.num_chunks() >= 3)
        engine = engine_of(pid)
        assert engine is not None
        begun_s = time.monotonic()
        os.kill(engine, signal.SIGSTOP)
        wait_until(lambda: engine_of(pid) not in (engine, None))
        texts = streams.finish()
        pause_s = time.monotonic() - begun_s
    num_equal = sum(a == b for a, b in zip(texts, undisturbed, strict=True))
    return Kills(1, num_streams, num_equal, pause_s)
