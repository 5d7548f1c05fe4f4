"""A real server process and what clients see of it: used by the tests of this folder and by scripts/prove_*.py."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai

OCTAVO = [sys.executable, "-m", "octavo"]
MESSAGES = [{"role": "user", "content": "Name three colours and say why you like them."}]


@contextlib.contextmanager
def server(
    model: Path | str, *flags: str, preexec: Callable[[], None] | None = None
) -> Iterator[str]:
    """Start `octavo serve` on a free port; yield its URL; stop it and check that it ends with code 0.

    `preexec` is called in the new process before it starts, to limit it.
    """
    with server_process(model, *flags, preexec=preexec) as (url, _):
        yield url


@contextlib.contextmanager
def server_process(
    model: Path | str, *flags: str, preexec: Callable[[], None] | None = None
) -> Iterator[tuple[str, int]]:
    """As `server`; yields its URL and process id."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [*OCTAVO, "serve", str(model), "--port", "0", "--served-model-name", "m", *flags],
            stdout=log, stderr=subprocess.STDOUT, preexec_fn=preexec,
        )  # fmt: skip
        try:
            yield _url(process, log), process.pid
        finally:
            process.terminate()
            code = process.wait(20)
        assert code == 0, f"the server ended with {code}"


def _url(process: subprocess.Popen[bytes], log: object) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        log.seek(0)  # type: ignore[attr-defined]
        text = log.read()  # type: ignore[attr-defined]
        found = re.search(r"http://127\.0\.0\.1:\d+", text)
        if found:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(found[0] + "/ready").status_code == 200:
                    return found[0]
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}: {text[-2000:]}")
        time.sleep(0.05)
    raise RuntimeError("the server was not ready within 60 s")


def client(url: str) -> openai.OpenAI:
    """The official client."""
    return openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=120)


def stream_and_whole(url: str) -> tuple[str, str, int]:
    """Text of a streamed answer, of the same answer in one piece, and the number of chunks."""
    with client(url) as api:
        whole = api.chat.completions.create(
            model="m", messages=MESSAGES, temperature=0, max_tokens=48
        )
        chunks = list(
            api.chat.completions.create(
                model="m", messages=MESSAGES, temperature=0, max_tokens=48, stream=True
            )
        )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    return text, whole.choices[0].message.content or "", len(chunks)


@dataclass(frozen=True)
class Concurrent:
    """Streams that ended properly, and those equal to the same request alone."""

    num_complete: int
    num_equal: int


def concurrent_streams(url: str, num_streams: int) -> Concurrent:
    """Stream `num_streams` different greedy completions together, then each alone."""
    prompts = [f"The number {i} is" for i in range(num_streams)]
    with client(url) as api:

        def one(prompt: str) -> tuple[str, str | None]:
            text, reason = "", None
            for chunk in api.completions.create(
                model="m", prompt=prompt, temperature=0, max_tokens=24, stream=True
            ):
                text += chunk.choices[0].text if chunk.choices else ""
                reason = (chunk.choices[0].finish_reason if chunk.choices else None) or reason
            return text, reason

        with ThreadPoolExecutor(num_streams) as pool:
            together = list(pool.map(one, prompts))
        alone = [one(prompt) for prompt in prompts]
    complete = sum(reason in ("stop", "length") for _, reason in together)
    return Concurrent(complete, sum(a == b for a, b in zip(together, alone, strict=True)))


def _gauge(api: httpx.Client, name: str) -> int:
    """One number of /metrics."""
    metrics = api.get("/metrics").text
    found = re.search(rf"^{name}\S* ([\d.e+]+)$", metrics, re.MULTILINE)
    assert found, metrics
    return int(float(found[1]))


@dataclass(frozen=True)
class Disconnect:
    """What a client that left in the middle of a stream left behind."""

    num_blocks_held: int
    num_tokens_after: int
    freed_after_s: float


def disconnect(url: str) -> Disconnect:
    """Leave in the middle of a stream: blocks held before, tokens generated after the last one that was told, seconds
    until no block is held."""
    body = {
        "model": "m", "prompt": "Once upon a time", "max_tokens": 2000, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }  # fmt: skip
    with httpx.Client(base_url=url, timeout=30) as api, httpx.Client(base_url=url) as other:
        before = _gauge(other, "vllm:generation_tokens_total")
        with api.stream("POST", "/v1/completions", json=body) as response:
            chunks = (line for line in response.iter_lines() if line)
            for _ in range(12):
                next(chunks)
            held = _gauge(other, "octavo:kv_blocks_used")
            for _ in range(12):  # those that came meanwhile were told together
                chunk = next(chunks)
        told = json.loads(chunk.removeprefix("data: "))["usage"]["completion_tokens"]
        left = time.monotonic()
        while _gauge(other, "octavo:kv_blocks_used") and time.monotonic() - left < 10:
            time.sleep(0.01)  # no faster: the questions themselves take the server's time
        freed_s = time.monotonic() - left
        return Disconnect(
            held, _gauge(other, "vllm:generation_tokens_total") - before - told, freed_s
        )


@dataclass(frozen=True)
class ColdStart:
    """One `octavo run` from process start."""

    first_token_s: float
    peak_bytes: int


# The parent's peak would count as the child's in rusage (it survives exec), so the process reads its own.
_REPORTS_PEAK = """
import sys
from octavo.cli.main import main
try:
    main()
finally:
    print("".join(line for line in open("/proc/self/status") if line.startswith("VmHWM")), file=sys.stderr)
"""


def cold_start(model: str, *flags: str) -> ColdStart:
    """Run `octavo run MODEL "Hi" --max-tokens 1 FLAGS`: seconds to the first byte of the answer, and VmHWM.

    With bytecode, which pip writes for whoever installs Octavo: here the first run does, where the sources lie.
    """
    started = time.monotonic()
    arguments = ["run", model, "Hi", "--max-tokens", "1", *flags]
    process = subprocess.Popen(
        [sys.executable, "-c", _REPORTS_PEAK, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
    )
    assert process.stdout is not None
    process.stdout.read(1)
    first_s = time.monotonic() - started
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    peak = re.search(rb"VmHWM:\s+(\d+) kB", errors)
    assert peak, errors
    return ColdStart(first_s, int(peak[1]) * 1024)
