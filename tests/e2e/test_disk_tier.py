"""A server that is killed, and what the next one finds on its disk."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e import serving

PROMPT = " ".join(f"Rule {i}: number {i * 37 % 101} goes to room {i * 13 % 29}." for i in range(25))


@contextmanager
def killed_server(model: Path, *flags: str) -> Iterator[str]:
    """A server that ends by `kill -9`."""
    with tempfile.TemporaryFile("w+") as log:
        command = [*serving.OCTAVO, "serve", str(model), "--port", "0", "--served-model-name", "m"]
        process = subprocess.Popen([*command, *flags], stdout=log, stderr=subprocess.STDOUT)
        try:
            yield serving._url(process, log)
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.wait(20)


def asked(url: str) -> tuple[str, int]:
    """The greedy continuation of the prompt, and how much of it was cached."""
    with serving.client(url) as api:
        got = api.completions.create(model="m", prompt=PROMPT, temperature=0, max_tokens=24)
    assert got.usage is not None
    details = got.usage.prompt_tokens_details
    return got.choices[0].text, (details.cached_tokens or 0) if details else 0


@pytest.mark.slow
def test_two_seconds_after_its_end_a_request_survives_kill_9(
    smollm2_path: Path, tmp_path: Path
) -> None:
    kv = tmp_path / "kv"
    flags = ("--kv-disk", str(kv), "--kv-disk-size", "256MiB", "--ctx", "2048")
    with killed_server(smollm2_path, *flags) as url:
        cold = asked(url)
        time.sleep(2)
    with killed_server(smollm2_path, *flags) as url:
        warm = asked(url)
    assert cold[1] == 0
    assert warm[1] > 300
    assert warm[0] == cold[0]

    files = list(kv.glob("*/*/*.kv"))
    assert len(files) >= warm[1] // 16
    for path in files:
        with path.open("r+b") as file:
            at = path.stat().st_size // 2
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1]))
    with killed_server(smollm2_path, *flags) as url:
        assert asked(url) == cold


@pytest.mark.slow
def test_two_servers_share_a_directory_within_its_quota(smollm2_path: Path, tmp_path: Path) -> None:
    kv = tmp_path / "kv"
    flags = ("--kv-disk", str(kv), "--kv-disk-size", "20MiB", "--ctx", "2048", "--threads", "1")
    with (
        serving.server(smollm2_path, *flags) as one,
        serving.server(smollm2_path, *flags) as other,
    ):
        answers = [asked(url) for url in (one, other, one, other)]
        time.sleep(2)
        assert sum(path.stat().st_size for path in kv.glob("*/*/*")) <= 20 * 2**20
    assert len({text for text, _ in answers}) == 1
    with serving.server(smollm2_path, *flags) as url:
        assert asked(url)[0] == answers[0][0]
    assert sum(path.stat().st_size for path in kv.glob("*/*/*")) <= 20 * 2**20
