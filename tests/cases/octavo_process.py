"""`octavo` as a process of its own, as users and scripts start it."""

from __future__ import annotations

import os
import pty
import re
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

OCTAVO = (sys.executable, "-m", "octavo")
ADDRESS_SPACE_BYTES = 1 << 30


def start(*args: str | Path, **options: object) -> subprocess.Popen[bytes]:
    """Start a command with pipes and a process group of its own."""
    return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
        [*OCTAVO, *map(str, args)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        **options,
    )


def run(*args: str | Path, timeout_s: float = 20) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command; it is killed at the time limit."""
    with start(*args) as process:
        return finish(process, timeout_s)


def run_confined(*args: str | Path) -> tuple[int, str, str]:
    """As `run`, with an address space of 1 GiB."""
    limit = (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES)
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # numpy maps memory for each core
    with start(
        *args, env=env, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit)
    ) as process:
        return finish(process, 20)


def finish(process: subprocess.Popen[bytes], timeout_s: float) -> tuple[int, str, str]:
    """Wait for the end. Raises: TimeoutExpired, after killing it."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out.decode(), err.decode()


def is_refused(ended: tuple[int, str, str], *words: str) -> bool:
    """Whether a command failed by itself and said why: a line or two with these words, no traceback."""
    code, out, err = ended
    lines = err.splitlines()
    assert 0 < code < 128, ended
    assert out == ""
    assert 1 <= len(lines) <= 2, err
    assert lines[0].startswith("octavo: "), err
    assert all(word in err for word in words), err
    return True


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *args: str | Path) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execv(OCTAVO[0], [*OCTAVO, *map(str, args)])

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self.fd, text.encode())

    def read_until(self, marks: Sequence[str], timeout_s: float = 20) -> str:
        """What is shown until one of the marks; all there is at the end of the command or the time limit."""
        shown = b""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end and not any(mark.encode() in shown for mark in marks):
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    chunk = os.read(self.fd, 65536)
                except OSError:  # the other side is closed
                    break
                shown += chunk
        return shown.decode("utf-8", "replace")

    def wait(self, timeout_s: float = 20) -> int:
        """The exit code; below zero for a signal. A command that goes on for longer is killed."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        os.kill(self.pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@contextmanager
def served(*args: str | Path) -> Iterator[str]:
    """A server that is ready; yields its log so far. It must stop with 0 when told to."""
    with served_process(*args) as started:
        yield started.log


@dataclass(frozen=True)
class ServerProcess:
    """A server that is ready, and its log until then."""

    url: str
    process: subprocess.Popen[bytes]
    log: str


@contextmanager
def served_process(*args: str | Path) -> Iterator[ServerProcess]:
    """A server that is ready. It must stop with 0 when told to."""
    with start("serve", *args, "--port", "0") as process:
        assert process.stderr is not None
        log = ""
        try:
            address = None
            while address is None and (line := process.stderr.readline().decode()):
                log += line
                address = re.search(r"http://\S+", line)
            assert address is not None, log
            assert httpx.get(f"{address[0]}/ready").status_code == 200
            yield ServerProcess(address[0], process, log)
        finally:
            process.terminate()
        assert process.wait(20) == 0, log
        process.stderr.close()
