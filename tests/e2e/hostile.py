"""A server that gets hostile bodies while others stream: used by tests and by scripts/prove_d1.py."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx

_MIB: Final = 2**20
_HI: Final = b'{"messages":[{"role":"user","content":"Hi"}],'
_CHAT: Final = "/v1/chat/completions"
_COMPLETIONS: Final = "/v1/completions"

BODIES: Final[Mapping[str, tuple[str, bytes]]] = {
    "100,000 prompts": (_COMPLETIONS, json.dumps({"prompt": ["x"] * 100_000}).encode()),
    "100,000 stop strings": (_CHAT, _HI + b'"stop":' + json.dumps(["x"] * 100_000).encode() + b"}"),
    "100,000 messages": (
        _CHAT, json.dumps({"messages": [{"role": "user", "content": "x"}] * 100_000}).encode(),
    ),
    "4 MB of [": (_CHAT, b"[" * 4_000_000),
    "JSON 5,000 deep": (_CHAT, b'{"metadata":' * 5000 + b"1" + b"}" * 5000),
    "60,000 prompts": (_COMPLETIONS, json.dumps({"prompt": ["x"] * 60_000}).encode()),
    "a number of 3.9 MB": (_COMPLETIONS, b'{"prompt":"x","n":' + b"9" * 3_900_000 + b"}"),
    "a text of 3.9 MB": (_COMPLETIONS, b'{"prompt":"' + b"word " * 780_000 + b'"}'),
    "260,000 strings": (_CHAT, b'{"metadata":[' + b'"abcdefghijk",' * 260_000 + b"1]}"),
    "52,000 lists": (_CHAT, b'{"metadata":[' + b'[1,2,3,"four"],' * 52_000 + b"1]}"),
    "4 MB of escapes": (_CHAT, b'{"metadata":"' + rb"\ud83d\ude00" * 330_000 + b'"}'),
    "invalid UTF-8, 3.9 MB": (_CHAT, b'{"messages":"' + b"\xff" * 3_900_000 + b'"}'),
    "a lone surrogate": (_CHAT, b'{"messages":[{"role":"user","content":"\\ud800"}]}'),
}  # fmt: skip


@dataclass(frozen=True)
class Answered:
    """What came of one body: status, seconds until then, and what the server's resident memory grew by."""

    status: int
    seconds: float
    grown_bytes: int


def send_all(url: str, resident: Callable[[], int]) -> dict[str, Answered]:
    """Send each body once; the largest memory is looked for while it is answered."""
    answers: dict[str, Answered] = {}
    with httpx.Client(base_url=url, timeout=30) as api:
        for name, (path, content) in BODIES.items():
            before = resident()
            peak = _Peak(resident)
            started = time.monotonic()
            with peak:
                status = api.post(path, content=content).status_code
            seconds = time.monotonic() - started
            answers[name] = Answered(status, seconds, peak.highest - before)
    return answers


class _Peak:
    """The highest value of a gauge within a block."""

    def __init__(self, gauge: Callable[[], int]) -> None:
        self.highest = gauge()
        self._gauge = gauge
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(0.005):
            self.highest = max(self.highest, self._gauge())


def oversized(url: str) -> tuple[int, int]:
    """Statuses of a body of 300 MB: one that says so, and one that streams without saying; bytes are not all sent."""

    def parts() -> Iterator[bytes]:
        for _ in range(300):
            yield b" " * _MIB

    with httpx.Client(base_url=url, timeout=30) as api:
        announced = api.post(
            _CHAT, content=parts(), headers={"content-length": str(300 * _MIB)}
        ).status_code
        streamed = api.post(_CHAT, content=parts()).status_code
    return announced, streamed


@dataclass
class Neighbours:
    """Streams that are read by threads, and the seconds from each chunk to the next."""

    url: str
    num_streams: int
    num_tokens: int
    gaps_s: list[float] = field(default_factory=list)

    def run(self) -> None:
        """Read all streams to their end."""
        threads = [threading.Thread(target=self._read, args=(i,)) for i in range(self.num_streams)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)

    def percentile(self, share: float) -> float:
        """The gap that this share of all gaps does not exceed, in seconds."""
        ordered = sorted(self.gaps_s)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    def _read(self, number: int) -> None:
        body = {
            "model": "m", "prompt": f"Tell me about the number {number}.", "max_tokens": self.num_tokens,
            "ignore_eos": True, "stream": True, "temperature": 0,
        }  # fmt: skip
        with httpx.stream("POST", self.url + _COMPLETIONS, json=body, timeout=120) as response:
            last: float | None = None
            for chunk in response.iter_raw():
                now = time.perf_counter()
                if last is not None and chunk:
                    self.gaps_s.append(now - last)
                last = now


@contextlib.contextmanager
def attack(url: str, pause_s: float, names: Sequence[str] = tuple(BODIES)) -> Iterator[None]:
    """Send the bodies in turn, a pause between them, from a process of its own, while the block runs."""
    command = [sys.executable, "-m", "tests.e2e.hostile", url, str(pause_s), *names]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # the first was answered
        try:
            yield
        finally:
            process.terminate()


def _attack(url: str, pause_s: float, names: Sequence[str]) -> None:
    is_first = True
    with httpx.Client(base_url=url, timeout=30) as api:
        while True:
            for name in names:
                path, content = BODIES[name]
                api.post(path, content=content)
                if is_first:
                    print("begun", flush=True)
                    is_first = False
                time.sleep(pause_s)


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("VmRSS")]
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    _attack(sys.argv[1], float(sys.argv[2]), sys.argv[3:])
