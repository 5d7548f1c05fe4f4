"""What clients of a server and users of the command line see: throughput, an idle server's CPU, starts."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from scripts.proving.commands import octavo_json
from scripts.proving.loaded import Loaded
from scripts.proving.pairs import alternate
from scripts.proving.rows import SMALL, Paths, Row, on_quiet, quiet_bar, skipped
from tests.e2e import serving, supervised

_NUM_STREAMS, _NUM_TOKENS = 32, 24 if SMALL else 64
_IDLE_S = 5.0 if SMALL else 10.0


def http(paths: Paths) -> Iterator[Row]:
    """32 streams over HTTP against the same requests in one process; then the server with nothing to do."""
    rates, idle = _rates_and_idle(paths["smollm2"])
    yield _share_row(rates, "net", "client's CPU taken off", 0.75)
    yield skipped(
        "HTTP against llama-server and vLLM",
        "octavo bench serve --url measures one that runs",
        ">= 5x, >= 3x",
    )
    yield Row("idle server, CPU", f"{idle:.2%} over {_IDLE_S:.0f} s", "< 1%", idle < 0.01)


def streams(paths: Paths) -> Iterator[Row]:
    """The same with the bars of a server whose engine is a process of its own."""
    rates, _ = _rates_and_idle(paths["smollm2"])
    yield _share_row(rates, "raw", "by the wall clock", 0.8)
    yield _share_row(rates, "net", "client's CPU taken off", 0.9)


def _rates_and_idle(model: Path) -> tuple[dict[str, list[float]], float]:
    """Tokens per second over HTTP, raw and net of the client's CPU, and inside one process; CPU of the idle server."""
    with (
        serving.server_process(model, "--num-threads", "2") as (url, pid),
        Loaded(model, max_model_len=512, num_threads=2) as loaded,
    ):
        got = alternate(
            {"http": lambda: _http_rates(url),
             "inside": lambda: {"rate": loaded.mixed(_NUM_STREAMS, _NUM_TOKENS)}},
            1 if SMALL else 5,
        )  # fmt: skip
        idle = cpu_share([pid, supervised.engine_of(pid) or pid], _IDLE_S)
    return {**got["http"], "inside": got["inside"]["rate"]}, idle


def _share_row(rates: dict[str, list[float]], name: str, how: str, bar: float) -> Row:
    ours, inside = statistics.median(rates[name]), statistics.median(rates["inside"])
    return Row(
        f"HTTP, 32 streams of 128+{_NUM_TOKENS}, {how} / in process",
        f"{ours / inside:.0%} ({ours:.0f} : {inside:.0f} tok/s, {len(rates[name])} pairs)",
        quiet_bar(f">= {bar:.0%}"),
        on_quiet(ours / inside >= bar),
        {name: rates[name], "inside": rates["inside"]},
    )


def _http_rates(url: str) -> dict[str, float]:
    """Generated tokens per second: by the wall clock, and with the client's own CPU seconds taken off the time."""
    streams = str(_NUM_STREAMS)
    report = octavo_json(
        "bench", "serve", "--url", url, "--no-limits", "--concurrency", streams, "--num-requests", streams,
        "--input-len", "128", "--output-len", str(_NUM_TOKENS), "--seed", str(time.monotonic_ns() % 2**31),
    )  # fmt: skip
    [run] = report["runs"]
    assert run["num_completed"] == _NUM_STREAMS, run["errors"]
    raw_s: float = run["duration_s"]
    tokens: int = run["completion_tokens"]
    return {"raw": tokens / raw_s, "net": tokens / (raw_s - run["client_cpu_s"])}


def cpu_share(pids: Sequence[int], seconds: float) -> float:
    """CPU seconds of these processes over the next seconds, by second."""
    time.sleep(1)
    before, started = sum(map(_cpu_s, pids)), time.monotonic()
    time.sleep(seconds)
    return (sum(map(_cpu_s, pids)) - before) / (time.monotonic() - started)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start(paths: Paths) -> Iterator[Row]:
    """Gemma 3 from the start of a process to its first token, packing or reading a build."""
    model = str(paths["gemma3:270m"])
    with tempfile.TemporaryDirectory() as folder:
        build = Path(folder) / "gemma.build"
        octavo_json("build", model, "--output", build)
        ways = {"packing": ("--no-build",), "from a build": ("--build-file", str(build))}
        got = alternate(
            {name: lambda flags=flags: {"s": serving.cold_start(model, *flags).first_token_s}
             for name, flags in ways.items()},
            1 if SMALL else 5,
        )  # fmt: skip
    for name, bar in (("packing", 2.0), ("from a build", 1.0)):
        seconds = got[name]["s"]
        median = statistics.median(seconds)
        yield Row(
            f"octavo run gemma3:270m to first token, {name}",
            f"{median:.2f} s (median of {len(seconds)})",
            quiet_bar(f"< {bar:.0f} s"),
            on_quiet(median < bar),
            {"s": seconds},
        )
