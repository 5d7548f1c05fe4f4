"""Keeps finished blocks on disk and brings them back, in two threads of its own (docs/design/disk-tier.md)."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Final, Protocol

from octavo.cache.block_files import BlockFiles, Bytes, Link, chain
from octavo.cache.disk_space import StoredFile, make_room, scan

_logger = logging.getLogger(__name__)

_MAX_STAGED_BYTES: Final = 64 * 2**20
"""Copies of blocks whose memory was needed before they were written. Beyond it they are not stored."""

_MAX_OFFERS: Final = 1000
"""Prefixes that wait to be written. A disk slower than that stores less."""

_REFRESH_S: Final = 10.0
"""How often a tier that writes looks at what other processes stored."""

_CLOSE_S: Final = 2.0
"""How long `close` waits for what is not written yet."""


class BlockMemory(Protocol):
    """Where the bytes of blocks are. Both may be called from any thread, for blocks that no step writes meanwhile."""

    def read_block(self, block_id: int) -> Bytes:
        """A copy of a block's bytes."""
        ...

    def write_block(self, block_id: int, data: Bytes) -> None:
        """Overwrite a block."""
        ...


@dataclass(eq=False, slots=True)
class Fetch:
    """Blocks on their way from disk into memory. `num_loaded` is final once it is among the finished ones."""

    links: Sequence[Link]
    block_ids: Sequence[int]
    deadline: float
    num_loaded: int = 0


@dataclass(eq=False, slots=True)
class _Offer:
    """A prefix to be stored. `staged`: bytes, by place, of blocks whose memory is used for something else by now."""

    salt: str | None
    keys: Sequence[bytes]
    block_ids: Sequence[int]
    staged: dict[int, Bytes] = field(default_factory=dict)


class DiskTier:
    """Blocks on disk. The engine's thread offers, finds and fetches, and never waits for the disk.

    A block that waits to be written may be given up at any time: it is copied then. Whoever overwrites a block that
    was offered must give it up first.

    No method raises for what a disk may do: a disk that fails is reported once, and nothing is written from then on.
    """

    def __init__(
        self,
        files: BlockFiles,
        max_bytes: int,
        memory: BlockMemory,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The directory never holds more than `max_bytes`. Raises: OSError if it cannot be read."""
        self._files = files
        self._memory = memory
        self.clock = clock
        self._room = _Room(files, max_bytes)
        self._known = files.names()  # replaced and changed as a whole: a look into it needs no lock
        self._known_since = clock()
        self.num_stored = 0
        """Blocks written so far."""
        self.num_loaded = 0
        """Blocks read so far."""
        self.num_queried = 0
        """Blocks that requests asked for, whether there or not; counted by who asks."""
        self._is_quiet = False
        self._is_closing = False
        self._offers: SimpleQueue[_Offer | None] = SimpleQueue()
        # Blocks to be written, by id. Added to without a lock; a block leaves only under _copying, once it is copied.
        self._waiting: dict[int, tuple[_Offer, int]] = {}
        self._copying = threading.Lock()
        self._num_staged_bytes = 0  # guarded by _copying
        self._num_offered = 0
        self._num_done = 0
        self._has_done = threading.Condition()
        self._fetches: SimpleQueue[Fetch | None] = SimpleQueue()
        self._finished: deque[Fetch] = deque()
        self._has_finished = threading.Event()
        self._threads = [
            threading.Thread(target=loop, name=name, daemon=True)
            for loop, name in (
                (self._write_loop, "octavo-disk-write"),
                (self._read_loop, "octavo-disk-read"),
            )
        ]
        for thread in self._threads:
            thread.start()

    @property
    def num_known(self) -> int:
        """Blocks that can be found."""
        return len(self._known)

    def offer(self, salt: str | None, keys: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Store a prefix, given by its full blocks; what is stored already counts as used now."""
        if self._is_quiet or self._is_closing or self._num_offered - self._num_done >= _MAX_OFFERS:
            return
        offer = _Offer(salt, keys, block_ids)
        for at, block_id in enumerate(block_ids):
            # Of a block that waits already the earlier offer is written first; this one then finds it stored.
            self._waiting.setdefault(block_id, (offer, at))
        self._num_offered += 1
        self._offers.put(offer)

    def give_up(self, block_id: int) -> None:
        """Let a block's memory be used for something else."""
        # The writer takes a block out after it was copied, so what is not in here is not being read.
        if block_id in self._waiting:
            with self._copying:
                self._stage(block_id)

    def give_up_all(self) -> None:
        """Let all memory be used for something else."""
        with self._copying:
            for block_id in list(self._waiting):
                self._stage(block_id)

    def find(self, salt: str | None, keys: Sequence[bytes], first: int) -> list[Link]:
        """The blocks from `first` on that are stored, up to the first that is not. Looks at no file."""
        found: list[Link] = []
        if self._known and not self._is_closing:
            for link in chain(self._files.namespace, salt, keys):
                if link.at < first:
                    continue
                if link.digest not in self._known:
                    break
                found.append(link)
        return found

    def fetch(self, links: Sequence[Link], block_ids: Sequence[int], deadline: float) -> Fetch:
        """Read blocks into memory that nobody else uses, in order, until one is missing or the time is over."""
        fetch = Fetch(links, block_ids, deadline)
        self._fetches.put(fetch)
        return fetch

    def finished(self) -> list[Fetch]:
        """Fetches that ended since the last call."""
        self._has_finished.clear()
        return [self._finished.popleft() for _ in range(len(self._finished))]

    def wait(self, timeout_s: float) -> None:
        """Sleep until a fetch has ended."""
        self._has_finished.wait(timeout_s)

    def drain(self, timeout_s: float) -> bool:
        """Wait until all that was offered is stored. False if the time was too short."""
        with self._has_done:
            return self._has_done.wait_for(lambda: self._num_done == self._num_offered, timeout_s)

    def close(self) -> None:
        """Finish writing, for a short time, and end the threads. Idempotent."""
        if self._is_closing:
            return
        self.drain(_CLOSE_S)
        self._is_closing = True
        self._offers.put(None)
        self._fetches.put(None)
        for thread in self._threads:
            thread.join(_CLOSE_S)

    def _stage(self, block_id: int) -> None:
        waiting = self._waiting.pop(block_id, None)
        if waiting is None:  # the writer was faster
            return
        offer, at = waiting
        if self._num_staged_bytes + self._files.file_bytes <= _MAX_STAGED_BYTES:
            with suppress(MemoryError):
                offer.staged[at] = self._memory.read_block(block_id)
                self._num_staged_bytes += self._files.file_bytes

    def _write_loop(self) -> None:
        while (offer := self._offers.get()) is not None:
            try:
                if not self._is_quiet and not self._is_closing:
                    self._store(offer)
                    self._refresh()
            except Exception as error:
                self._go_quiet(error)
            self._let_go(offer)

    def _store(self, offer: _Offer) -> None:
        used_ns = time.time_ns()
        for link in chain(self._files.namespace, offer.salt, offer.keys):
            if self._is_closing:
                return
            if link.digest in self._known and self._files.touch(link, used_ns):
                continue
            block = self._take(offer, link.at)
            # Without this one, those after it would never be found.
            if block is None or not self._make_room():
                return
            self._files.write(link, block, used_ns)
            self._known.add(link.digest)
            self.num_stored += 1

    def _take(self, offer: _Offer, at: int) -> Bytes | None:
        """A block's bytes, if its memory still holds them or they were staged."""
        block_id = offer.block_ids[at]
        with self._copying:
            if at in offer.staged:
                self._num_staged_bytes -= self._files.file_bytes
                return offer.staged.pop(at)
            if self._waiting.get(block_id) != (offer, at):
                return None
            try:
                return self._memory.read_block(block_id)
            finally:
                del self._waiting[block_id]

    def _make_room(self) -> bool:
        left = self._room.make()
        if left is not None:
            self._known = left
        return self._room.has_room

    def _let_go(self, offer: _Offer) -> None:
        """Forget what an offer still asks for."""
        with self._copying:
            for at, block_id in enumerate(offer.block_ids):
                if self._waiting.get(block_id) == (offer, at):
                    del self._waiting[block_id]
            self._num_staged_bytes -= len(offer.staged) * self._files.file_bytes
        with self._has_done:
            self._num_done += 1
            self._has_done.notify_all()

    def _refresh(self) -> None:
        if self.clock() - self._known_since > _REFRESH_S:
            self._known = self._files.names()
            self._known_since = self.clock()

    def _go_quiet(self, error: Exception) -> None:
        self._is_quiet = True
        _logger.warning(
            "storing KV blocks in %s failed, no more are stored until the next start: %s",
            self._files.directory,
            error,
            exc_info=None if isinstance(error, OSError) else error,
        )

    def _read_loop(self) -> None:
        while (fetch := self._fetches.get()) is not None:
            started = self.clock()
            try:
                self._load(fetch)
                elapsed_ms = 1000 * (self.clock() - started)
                _logger.debug("%d KV blocks loaded in %.1f ms", fetch.num_loaded, elapsed_ms)
            except Exception:
                _logger.exception("loading KV blocks from %s failed", self._files.directory)
            self._finished.append(fetch)
            self._has_finished.set()

    def _load(self, fetch: Fetch) -> None:
        for link, block_id in zip(fetch.links, fetch.block_ids, strict=True):
            if self._is_closing or self.clock() > fetch.deadline:
                return
            block = self._files.read(link)
            if block is None:
                self._known.discard(link.digest)  # so that it is written anew
                return
            self._memory.write_block(block_id, block)
            fetch.num_loaded += 1
            self.num_loaded += 1


class _Room:
    """Keeps a directory within its quota without looking at all of it for each block."""

    def __init__(self, files: BlockFiles, max_bytes: int) -> None:
        self._files = files
        self._max_bytes = max_bytes
        self._free_bytes = max_bytes - _num_bytes(make_room(files.directory, max_bytes))
        self._num_written_bytes = 0
        self.has_room = True

    def make(self) -> set[bytes] | None:
        """Account for one block more, deleting others if need be: what is left of this namespace then."""
        size = self._files.file_bytes
        # Half of what was free: two processes that write at once stay within the quota together.
        self._num_written_bytes += size
        if self._num_written_bytes <= self._free_bytes // 2:
            self.has_room = True
            return None
        target = self._max_bytes - size
        used = _num_bytes(scan(self._files.directory))
        if used > target:
            # Some more than needed, so that the next look is not at the next block.
            target = min(target, self._max_bytes - self._max_bytes // 20)
            used = _num_bytes(make_room(self._files.directory, target))
        self._free_bytes = self._max_bytes - used
        self._num_written_bytes = size
        self.has_room = used + size <= self._max_bytes
        return self._files.names()


def _num_bytes(files: list[StoredFile]) -> int:
    return sum(file.num_bytes for file in files)
