"""What an engine process and its API process let each other see in shared memory, without a message.

A process that was stopped, hangs or died says nothing; what it did last is still here. An abort is announced here before
it is sent: while all cores compute, the threads that carry a message wait for their turns.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

_NUM_WORDS: Final = 4096
_LOOPS, _OPS, _ABORTS, _STOP, _NUM_ROWS, _FIRST_ROW = range(6)


class ProgressBoard:
    """Counters of the engine's loop and of its operations, and who is in the step at hand: the engine writes them.

    The API process writes how many aborts it sent, and sets the word that ends a run of steps, which the engine clears.

    Words of 64 bits, each written at once: a reader may see a list of requests that is half of one step and half of
    the next, never half a number.
    """

    def __init__(self, path: Path) -> None:
        """Map the board in this file, which `create` made."""
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _NUM_WORDS * 8)
        self._words: npt.NDArray[np.int64] = np.frombuffer(self._memory, np.int64)

    @staticmethod
    def create(path: Path) -> ProgressBoard:
        """Make the file, empty, and map it."""
        with path.open("xb") as file:
            file.truncate(_NUM_WORDS * 8)
        return ProgressBoard(path)

    @property
    def op_counter(self) -> npt.NDArray[np.int64]:
        """The word [1] that the executor adds to."""
        return self._words[_OPS : _OPS + 1]

    @property
    def stop(self) -> npt.NDArray[np.int32]:
        """The word [1] that lets no more than the decode step at hand run while it is not 0."""
        return self._words[_STOP : _STOP + 1].view(np.int32)[:1]

    @property
    def num_aborts(self) -> int:
        """Messages that end requests, sent so far: the last ones may be on their way."""
        return int(self._words[_ABORTS])

    def announce_abort(self) -> None:
        """Note, before it is sent, that a message comes that ends requests, and end the run of steps at hand."""
        self._words[_ABORTS] += 1
        self._words[_STOP] = 1

    @property
    def progress(self) -> tuple[int, int]:
        """Loops and operations so far. An engine with work to do for which neither moves hangs."""
        return int(self._words[_LOOPS]), int(self._words[_OPS])

    def count_loop(self) -> None:
        """Note that the engine's loop went round."""
        self._words[_LOOPS] += 1

    def show_step(self, request_ids: Iterable[str]) -> None:
        """Note whom the step computes that begins now."""
        keys = [crc32(one.encode()) for one in request_ids][: _NUM_WORDS - _FIRST_ROW]
        self._words[_FIRST_ROW : _FIRST_ROW + len(keys)] = keys
        self._words[_NUM_ROWS] = len(keys)

    def is_in_step(self, request_id: str) -> bool:
        """Whether the step at hand, or the last one, computes this request: so it seems, by a 32-bit sum of its id."""
        keys = self._words[_FIRST_ROW : _FIRST_ROW + int(self._words[_NUM_ROWS])]
        return bool((keys == crc32(request_id.encode())).any())
