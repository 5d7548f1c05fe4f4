"""The benchmarks against real things, briefly: an engine, a server, and servers that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo.bench.client import Client, Target
from octavo.bench.stats import RequestRecord
from octavo.cli.main import main
from tests.e2e import serving

Bench = Callable[..., dict[str, Any]]
CHUNKS = (
    b'data: {"choices": [{"text": "a", "finish_reason": null}]}\n\n',
    b'data: {"choices": [{"text": "b", "finish_reason": "length"}]}\n\n'
    b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}\n\ndata: [DONE]\n\n',
)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Bench:
    """Run `octavo bench ARGS --json`."""

    def call(*args: str) -> dict[str, Any]:
        with pytest.raises(SystemExit) as end:
            main(["bench", *args, "--json"])
        out, err = capsys.readouterr()
        assert not end.value.code, err
        return json.loads(out)

    return call


def test_the_engine_is_measured(bench: Bench, smollm2_path: Path) -> None:
    flags = ("--prompt", "32", "--gen", "4", "--batch", "1,2", "--repeat", "1", "--threads", "2")
    report = bench("engine", str(smollm2_path), *flags)
    assert report["threads"] == 2
    assert report["prefill"] > 0
    assert report["limits"]["shares"]["decode"]["1"]["share"] > 0
    assert {"date", "octavo_version", "commit", "command"} <= report.keys()
    assert all(report[kind].keys() == {"1", "2"} for kind in ("decode", "mixed"))


def test_a_server_is_measured_in_both_loops(bench: Bench, smollm2_path: Path) -> None:
    lengths = ("--input-len", "16", "--output-len", "4", "--num-requests", "4")
    with serving.server(smollm2_path) as url:
        closed = bench("serve", "--url", url, "--concurrency", "1,3", *lengths)
        words = bench(
            "serve", "--url", url, "--rate", "20", "--workload", "prefix", "--prompt-kind", "words",
            "--num-groups", "1", "--prefix-len", "40", "--slo-ttft-ms", "60000", "--no-limits", *lengths,
        )  # fmt: skip
    assert closed["limits"]["ceilings"][0]["int8_macs_per_s"] > 0
    assert words["limits"] is None
    assert [run["level"] for run in closed["runs"]] == ["concurrency 1", "concurrency 3"]
    for run in (*closed["runs"], *words["runs"]):
        assert (run["num_completed"], run["completion_tokens"], run["errors"]) == (4, 16, {})
        assert run["num_without_usage"] == 0
        assert run["ttft_ms"]["p50"] <= run["e2e_ms"]["p50"]
        assert run["client_cpu_s"] < run["duration_s"]
    assert [run["prompt_tokens"] for run in closed["runs"]] == [64, 64]
    assert [run["cached_tokens"] for run in closed["runs"]] == [0, 0]
    assert words["runs"][0]["goodput"]["share"] == 1.0


class ScriptedServer:
    """Plays one script for each request that comes in; None in it closes the connection."""

    def __init__(self, scripts: list[list[bytes | None]]) -> None:
        self._left = scripts
        self._tasks: set[asyncio.Task[None] | None] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await self._play(reader, writer):
                pass
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def _play(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        await reader.readuntil(b"{}")
        for part in self._left.pop(0):
            if part is None:
                return False
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.01)
        return True

    async def ended(self) -> None:
        """Wait until every connection is closed."""
        await asyncio.gather(*(task for task in self._tasks if task is not None))


def answers(count: int, *scripts: list[bytes | None]) -> list[RequestRecord]:
    """Records of `count` requests, one after the other, to a server that plays these scripts."""

    async def ask() -> list[RequestRecord]:
        scripted = ScriptedServer(list(scripts))
        async with await asyncio.start_server(scripted.serve, "127.0.0.1", 0) as server:
            target = Target.parse(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            request = target.post("/completions", b"{}")
            with Client(target) as client:
                records = [await client.send(request, 0.0) for _ in range(count)]
            await scripted.ended()
        return records

    return asyncio.run(ask())


def whole() -> list[bytes | None]:
    """A script that answers well."""
    return [HEAD, *(b"%x\r\n%b\r\n" % (len(c), c) for c in CHUNKS), b"0\r\n\r\n"]


def test_a_connection_is_used_again_and_replaced_when_the_server_left_it() -> None:
    records = answers(3, whole(), whole(), [None], whole())
    assert [record.error for record in records] == [None, None, None]
    assert [record.completion_tokens for record in records] == [2, 2, 2]


def test_a_server_that_breaks_off_is_a_failure_of_that_request_alone() -> None:
    broken, sound = answers(2, [HEAD, whole()[1], None], whole())
    assert broken.error == "the server closed the connection in the middle of a response"
    assert sound.error is None


def test_a_server_that_never_answers_is_asked_once_on_a_new_connection() -> None:
    [record] = answers(1, [None])
    assert record.error == "the server closed the connection unanswered"


def test_nobody_there_is_a_failure_that_says_so() -> None:
    target = Target.parse("http://127.0.0.1:1")

    async def ask() -> RequestRecord:
        with Client(target) as client:
            return await client.send(target.post("/completions", b"{}"), 0.0)

    assert "cannot connect" in (asyncio.run(ask()).error or "")
