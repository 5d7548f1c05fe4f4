"""The engine process: `python -m octavo.engine.process`, started by an API process and by nobody else.

The main thread reads commands, the engine's own thread runs the steps and writes their outputs. It holds no sockets of
clients, and ends as soon as the process that started it is gone.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
import zmq

from octavo.engine.board import ProgressBoard
from octavo.engine.builds import BuildPlace
from octavo.engine.client import ThreadedClient
from octavo.engine.engine import Engine
from octavo.engine.loader import load_engine
from octavo.engine.start import check_start, within_limits
from octavo.engine.wire import (
    Abort,
    CacheReset,
    Close,
    EngineSpec,
    FromEngine,
    Planned,
    Ready,
    Refused,
    ResetCache,
    encode,
    spec_decoder,
    to_engine_decoder,
)
from octavo.errors import CapacityError, EngineDead, InvalidRequest, OctavoError
from octavo.messages import AddRequest, StepOutputs, failed_outputs
from octavo.observability.logs import LogFormat, setup_logging
from octavo.weights.source import open_weights

EXIT_REFUSED: Final = 1
EXIT_FAULT: Final = 70
"""The engine failed in a way that says nothing of the requests' results so far: another may go on with them."""

_LINGER_MS: Final = 2000


class EngineProcess:
    """One engine between two sockets."""

    def __init__(self, spec: EngineSpec, refusal: CapacityError | None = None) -> None:
        """`refusal`: why there is no room to start at all."""
        self._spec = spec
        self._refusal = refusal
        self._context = zmq.Context()
        self._commands = self._connect(zmq.PULL, spec.commands)
        self._results = self._connect(zmq.PUSH, spec.outputs)
        self._results_lock = threading.Lock()
        self._is_closing = False

    def run(self) -> int:
        """Load the model, serve until told to close; returns the exit code."""
        try:
            engine = self._load()
        except (OctavoError, MemoryError, OSError) as error:
            self._send(_refused(error))
            self._context.destroy(linger=_LINGER_MS)
            return EXIT_REFUSED
        board = ProgressBoard(Path(self._spec.board))
        engine.show_progress(board)
        self._serve(engine, board)
        self._context.destroy(linger=_LINGER_MS)
        return 0

    def _load(self) -> Engine:
        spec = self._spec
        if self._refusal is not None:
            raise self._refusal
        path = Path(spec.path)
        build = (
            None
            if spec.build_path is None
            else BuildPlace(Path(spec.build_path), spec.build_digest)
        )
        with within_limits(path), open_weights(path) as weights:
            return load_engine(
                spec.config,
                weights,
                build=build,
                digest=spec.digest,
                on_planned=lambda: self._send(Planned()),
            )

    def _serve(self, engine: Engine, board: ProgressBoard) -> None:
        def publish(outputs: StepOutputs) -> None:
            if engine.is_dead and not self._is_closing:
                self._die()
            self._send(outputs)

        self._send(Ready(engine.info, engine.stats()))
        client = ThreadedClient(
            engine, on_outputs=publish, num_announced_aborts=lambda: board.num_aborts
        )
        while True:
            match to_engine_decoder.decode(self._commands.recv()):
                case AddRequest() as message:
                    self._add(client, message)
                case Abort(request_ids):
                    client.abort(request_ids)
                case ResetCache(number):
                    client.reset_prefix_cache()
                    self._send(CacheReset(number, client.stats()))
                case Close():
                    self._is_closing = True
                    client.close()
                    return

    def _add(self, client: ThreadedClient, message: AddRequest) -> None:
        try:
            client.add(message)
        except EngineDead:
            self._die()
        except (InvalidRequest, CapacityError) as error:
            # The API process checks the same beforehand.
            self._send(failed_outputs(message, str(error), client.stats()))

    def _connect(self, kind: int, address: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.set_hwm(0)  # what may wait is bounded where requests are accepted
        socket.connect(address)
        return socket

    def _send(self, message: FromEngine) -> None:
        with self._results_lock:
            self._results.send(encode(message))

    def _die(self) -> None:
        """End at once, without a word to those who wait: the process that started this one has another go on."""
        logging.shutdown()
        os._exit(EXIT_FAULT)


def main() -> int:
    """Read the specification from stdin, then be an engine."""
    # The API process alone is told to stop, whomever a terminal or a service manager signals; it tells this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    stdin = sys.stdin.buffer
    size = int.from_bytes(stdin.read(8), "little")
    if size == 0:  # the parent ended before it said what to load
        return 0
    spec = spec_decoder.decode(stdin.read(size))
    refusal = None
    try:
        check_start()  # before the first thread: what they reserve depends on it
    except CapacityError as error:
        refusal = error
    threading.Thread(
        target=_end_with_parent, args=(stdin, Path(spec.board).parent), daemon=True
    ).start()
    setup_logging(spec.log_level, is_server=True, log_format=LogFormat(spec.log_format))
    return EngineProcess(spec, refusal).run()


def _end_with_parent(stdin: BinaryIO, directory: Path) -> None:
    """End when the API process does, and tidy up after it."""
    stdin.read(1)  # nothing more comes, but the end
    shutil.rmtree(directory, ignore_errors=True)
    os._exit(0)


def _refused(error: Exception) -> Refused:
    kind = type(error).__name__
    if isinstance(error, CapacityError):
        return Refused(kind, str(error), flags=list(error.flags))
    if isinstance(error, InvalidRequest):
        return Refused(kind, error.message, error.param)
    return Refused(kind, str(error) or kind)


if __name__ == "__main__":
    try:
        code = main()
    except msgspec.DecodeError:
        sys.stderr.write("octavo.engine.process is started by `octavo serve`\n")
        code = 2
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)
