"""What an engine process shows of its progress, in memory that its API process reads without asking it.

A process that was stopped, hangs or died says nothing; what it did last is still here.
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
_LOOPS, _OPS, _NUM_ROWS, _FIRST_ROW = 0, 1, 2, 3


class ProgressBoard:
    """Counters of the engine's loop and of its operations, and who is in the step at hand. One process writes.

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
