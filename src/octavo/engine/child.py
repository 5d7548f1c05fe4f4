"""An engine process as its parent sees it: started, spoken to, watched, ended."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import zmq

from octavo import errors
from octavo.engine.board import ProgressBoard
from octavo.engine.spawn import spawn
from octavo.engine.wire import (
    Abort,
    Close,
    EngineSpec,
    FromEngine,
    Planned,
    Ready,
    Refused,
    ToEngine,
    encode,
    from_engine_decoder,
)
from octavo.errors import CapacityError, EngineDead, InvalidRequest, OctavoError

_CLOSE_S: Final = 5.0
"""An engine that is told to close and takes longer is killed."""

_POLL_MS: Final = 100


class EngineChild:
    """One engine process and the two sockets to it, in a directory of their own that only this user may enter.

    `send` and `abort` may be called by any thread, all else by one. Linux tells of the end of the process by a descriptor;
    elsewhere it is asked for.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        spec: EngineSpec,
        process: subprocess.Popen[bytes] | None = None,
    ) -> None:
        """Start a process, or use one that waits; addresses and board of `spec` are filled in here. Raises: OSError."""
        self.began_s = time.monotonic()
        self._directory = Path(tempfile.mkdtemp(prefix="octavo-"))  # 0700
        try:
            self.board = ProgressBoard.create(self._directory / "board")
            commands, outputs = self._address("commands"), self._address("outputs")
            self._commands = _bound(context, zmq.PUSH, commands)
            self._outputs = _bound(context, zmq.PULL, outputs)
            spec = msgspec.structs.replace(
                spec, commands=commands, outputs=outputs, board=str(self._directory / "board")
            )
            self._process = process or spawn()
            _tell(self._process, spec)
        except BaseException:
            shutil.rmtree(self._directory, ignore_errors=True)
            raise
        self._send_lock = threading.Lock()
        self._poller = zmq.Poller()
        self._poller.register(self._outputs, zmq.POLLIN)
        self._wake_read, self._wake_write = os.pipe()
        self._poller.register(self._wake_read, zmq.POLLIN)
        self._pidfd = os.pidfd_open(self._process.pid) if hasattr(os, "pidfd_open") else None
        if self._pidfd is not None:
            self._poller.register(self._pidfd, zmq.POLLIN)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def send(self, message: ToEngine) -> None:
        """Send a message. It is lost if the process has ended."""
        with self._send_lock:
            if not self._commands.closed:
                self._commands.send(encode(message))

    def abort(self, request_ids: list[str]) -> None:
        """Send an abort. The steps at hand end before it is there."""
        self.board.announce_abort()
        self.send(Abort(request_ids))

    def wake(self) -> None:
        """Have `receive` return now. Any thread may call it, once, before `close` and `free`."""
        os.write(self._wake_write, b"x")

    def receive(self, timeout_ms: int) -> list[FromEngine] | None:
        """What the process said, waiting so long for the first of it. None once it has ended and all it said was read."""
        if self._pidfd is None:
            timeout_ms = min(timeout_ms, _POLL_MS)
        has_ended = self._process.poll() is not None
        ready = dict(self._poller.poll(0 if has_ended else timeout_ms))
        messages: list[FromEngine] = []
        if self._outputs in ready:
            while True:
                try:
                    data = self._outputs.recv(zmq.NOBLOCK)
                except zmq.Again:
                    break
                messages.append(from_engine_decoder.decode(data))
        return None if has_ended and not messages else messages

    def await_ready(
        self,
        on_planned: Callable[[], None] | None = None,
        is_given_up: Callable[[], bool] = lambda: False,
    ) -> Ready:
        """Wait until the model is loaded.

        Raises: what the process was refused for; EngineDead if it ended without a word, or the wait is given up.
        """
        while (messages := self.receive(_POLL_MS)) is not None:
            for message in messages:
                match message:
                    case Planned() if on_planned is not None:
                        on_planned()
                    case Ready():
                        return message
                    case Refused():
                        raise _error(message)
            if is_given_up():
                raise EngineDead("the engine is closed")
        raise EngineDead(f"the engine process {self.how_it_ended()} while it started")

    def how_it_ended(self) -> str:
        """The end of the process, in words."""
        code = self._process.wait()
        return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def kill(self) -> None:
        """End the process now."""
        self._process.kill()

    def close(self) -> None:
        """Have the process end, by force if it takes long, and free what belongs to it. Idempotent."""
        if self._commands.closed:
            return
        self.send(Close())
        try:
            self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self.free()

    def free(self) -> None:
        """Free what belongs to a process that has ended, or ends now."""
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        if self._pidfd is not None:
            self._poller.unregister(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        with self._send_lock:
            self._commands.close(linger=0)
        self._outputs.close(linger=0)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _address(self, name: str) -> str:
        return f"ipc://{self._directory / name}"


def _bound(context: zmq.Context[zmq.Socket[bytes]], kind: int, address: str) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.set_hwm(0)
    socket.bind(address)
    return socket


def _tell(process: subprocess.Popen[bytes], spec: EngineSpec) -> None:
    """Say what the process is to load."""
    data = encode(spec)
    assert process.stdin is not None
    try:
        process.stdin.write(len(data).to_bytes(8, "little") + data)
        process.stdin.flush()
    except BrokenPipeError:
        pass  # it ended at once: whoever waits for it learns how


def _error(refused: Refused) -> Exception:
    """The error that the process was refused for."""
    kind = getattr(errors, refused.kind, OctavoError)
    if kind is CapacityError or refused.kind == "MemoryError":
        return CapacityError(refused.message, flags=refused.flags)
    if isinstance(kind, type) and issubclass(kind, InvalidRequest):
        return kind(refused.message, param=refused.param)
    if isinstance(kind, type) and issubclass(kind, OctavoError):
        return kind(refused.message)
    return EngineDead(refused.message)
