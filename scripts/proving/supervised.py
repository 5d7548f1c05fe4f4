"""What a server promises whatever becomes of its engine, its clients or itself."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
from scripts.proving.rows import SMALL, Paths, Row
from scripts.proving.served import cpu_share
from tests.e2e import serving, supervised

_NUM_KILLS = 4 if SMALL else 20
_NUM_REQUESTS, _CONCURRENCY = (600, 32) if SMALL else (2000, 32)
_WARM_UP = 200 if SMALL else 1000
_MOST_GROWN = 20e6 if SMALL else 1e6
"""Bytes per 1,000 requests. In the short version what is kept of the last 1,000 is still being filled."""
_MOST_CPU = 0.01


def kills(paths: Paths) -> Iterator[Row]:
    """Engines killed and stopped under streams; the API process killed."""
    got = supervised.kill_mid_stream(paths["smollm2"], _NUM_KILLS)
    yield Row(
        f"engine killed {got.num_kills} times under {got.num_streams} streams, each 3 chunks on",
        f"{got.num_equal} of {got.num_streams} texts as undisturbed; longest pause {got.longest_pause_s:.1f} s",
        "all",
        got.num_equal == got.num_streams,
    )
    got = supervised.stop_mid_stream(paths["smollm2"])
    yield Row(
        "engine stopped (SIGSTOP) under 4 streams",
        f"{got.num_equal} of {got.num_streams} texts as undisturbed; replaced and done in {got.longest_pause_s:.1f} s",
        "all",
        got.num_equal == got.num_streams,
    )
    left = _left_of_a_killed_server(paths["smollm2"])
    yield Row("API process killed: processes left after 5 s", str(left), "0", left == 0)


def _left_of_a_killed_server(model: Path) -> int:
    process = subprocess.Popen(
        [*serving.OCTAVO, "serve", str(model), "--port", "0"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    supervised.wait_until(lambda: supervised.engine_of(process.pid) is not None)
    engine = supervised.engine_of(process.pid)
    time.sleep(1)
    process.kill()
    process.wait()
    time.sleep(5)
    return int(Path(f"/proc/{engine}").exists())


def churn(paths: Paths) -> Iterator[Row]:
    """Requests of which a tenth is left by its client: what is left behind, memory, and the CPU of an idle server."""
    # A small KV cache: one that fills up touches its memory for the first time, and that is no leak.
    flags = ("--max-model-len", "2048", "--kv-cache-memory-bytes", "64MiB")
    with serving.server_process(paths["smollm2"], *flags) as (url, pid):
        processes = [pid, supervised.engine_of(pid) or 0]
        _requests(url, _WARM_UP, 1)
        before = sum(map(_resident_bytes, processes))
        _requests(url, _NUM_REQUESTS, 2)
        _wait_idle(url)
        grown = (sum(map(_resident_bytes, processes)) - before) / (_NUM_REQUESTS / 1000)
        used, running, waiting = (
            supervised.gauge(url, name)
            for name in (
                "octavo:kv_blocks_used",
                "vllm:num_requests_running",
                "vllm:num_requests_waiting",
            )
        )
        broken = supervised.gauge(url, "octavo:broken_invariants_total")
        yield Row(
            f"{_NUM_REQUESTS:,} requests, {_CONCURRENCY} at once, a tenth left by its client: left behind",
            f"{used} blocks, {running + waiting} requests, {broken} broken invariants",
            "nothing",
            not (used or running or waiting or broken),
        )
        yield Row(
            f"resident memory of both processes after the first {_WARM_UP:,}",
            f"{grown / 1e6:+.2f} MB per 1,000 requests",
            f"< {_MOST_GROWN / 1e6:.0f} MB",
            grown < _MOST_GROWN,
        )
        share = cpu_share(processes, 5.0 if SMALL else 10.0)
        yield Row("idle server, CPU of both processes", f"{share:.2%}", "< 1%", share < _MOST_CPU)


def _requests(url: str, count: int, seed: int) -> None:
    """Streamed requests; every tenth client leaves after a few chunks."""
    rng = random.Random(seed)
    bodies = [
        {
            "model": "m",
            "prompt": "".join(rng.choices("abcdefgh tuvw ", k=rng.randrange(20, 200))),
            "max_tokens": rng.randrange(2, 12),
            "ignore_eos": True,
            "stream": True,
        }
        for _ in range(count)
    ]
    leaves = [rng.random() < 0.1 for _ in range(count)]
    with (
        httpx.Client(timeout=120, limits=httpx.Limits(max_connections=_CONCURRENCY)) as api,
        ThreadPoolExecutor(_CONCURRENCY) as pool,
    ):

        def ask(i: int) -> None:
            with api.stream("POST", url + "/v1/completions", json=bodies[i]) as response:
                for _ in response.iter_lines():
                    if leaves[i]:
                        return

        list(pool.map(ask, range(count)))


def _wait_idle(url: str) -> None:
    supervised.wait_until(lambda: not supervised.gauge(url, "vllm:num_requests_running"), 30)


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def end(paths: Paths) -> Iterator[Row]:
    """SIGTERM lets streams end; an engine that cannot be started again ends the server."""
    with serving.server_process(paths["smollm2"], "--max-model-len", "2048") as (url, pid):
        streams = supervised.Streams.start(url, 4, 64)
        supervised.wait_until(lambda: streams.num_chunks() >= 3)
        os.kill(pid, signal.SIGTERM)
        texts = streams.finish()
    yield Row(
        "SIGTERM under 4 streams", f"{len(texts)} complete, exit code 0", "4", len(texts) == 4
    )
