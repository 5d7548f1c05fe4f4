"""The directory of a disk tier as functions: what prompts are in it, pin them, remove them, put them there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from octavo.api.llm import LLM
from octavo.cache.block_files import NAMESPACE_FILE, Link, chain, read_header
from octavo.cache.disk_space import StoredFile, pin, remove, scan, unpin
from octavo.cache.radix_tree import key_of
from octavo.config import EngineConfig
from octavo.errors import InvalidRequest
from octavo.kv_layout import BLOCK_SIZE
from octavo.params import SamplingParams

_MIN_ID_CHARS = 4


@dataclass(frozen=True, slots=True)
class StoredPrefix:
    """A prompt whose blocks are stored from its first on. Prompts that begin alike share blocks."""

    prefix_id: str
    model: str
    kv_dtype: str
    num_tokens: int
    num_bytes: int
    last_use_s: float
    is_pinned: bool


@dataclass(slots=True)
class _Block:
    file: StoredFile
    link: Link
    namespace: bytes
    children: list[_Block] = field(default_factory=list)
    parent: _Block | None = None

    def path(self) -> Iterator[_Block]:
        """The block and all before it."""
        block: _Block | None = self
        while block is not None:
            yield block
            block = block.parent


class StoredBlocks:
    """What is in a directory now."""

    def __init__(self, directory: Path) -> None:
        """Reads the headers of all blocks. Raises: InvalidRequest if there is no such directory."""
        try:
            files = [file for file in scan(directory) if file.is_block]
        except OSError as error:
            raise InvalidRequest(
                f"kv_disk {directory}: {error.strerror or error}", param="kv_disk"
            ) from error
        self._directory = directory
        self._blocks: dict[bytes, _Block] = {}
        for file in files:
            header = read_header(file.path)
            if header is not None:
                block = _Block(file, header.link, header.namespace)
                self._blocks[header.link.digest] = block
        for block in self._blocks.values():
            block.parent = self._blocks.get(block.link.parent)
            if block.parent is not None:
                block.parent.children.append(block)
        self._about = {block.namespace: self._read_about(block) for block in self._blocks.values()}

    @property
    def num_bytes(self) -> int:
        """Bytes of all blocks, those that nothing leads to any more among them."""
        return sum(block.file.num_bytes for block in self._blocks.values())

    def prefixes(self) -> list[StoredPrefix]:
        """All that is stored and not the beginning of something longer, used last first."""
        ends = [block for block in self._blocks.values() if not block.children]
        whole = [self._prefix(block) for block in ends if _is_whole(block)]
        return sorted(whole, key=lambda prefix: prefix.last_use_s, reverse=True)

    def pin(self, prefix_id: str) -> StoredPrefix:
        """Have a prefix stay, however long unused. Raises: InvalidRequest for an id that names none."""
        block = self._find(prefix_id)
        for each in block.path():
            pin(each.file.path)
        return self._prefix(block)

    def unpin(self, prefix_id: str) -> StoredPrefix:
        """Let a prefix go when its turn comes, but for what it shares with others that are pinned."""
        block = self._find(prefix_id)
        pinned = [each for each in self._blocks.values() if each.file.is_pinned]
        ends = [each for each in pinned if not any(c.file.is_pinned for c in each.children)]
        own = {each.link.digest for each in block.path()}
        others = [each for each in ends if each.link.digest not in own]
        kept = {above.link.digest for each in others for above in each.path()}
        for each in block.path():
            if each.link.digest not in kept:
                unpin(each.file.path)
        return self._prefix(block)

    def remove(self, prefix_id: str) -> int:
        """Delete a prefix and what continues it, but not what it shares with others. Returns: bytes freed."""
        block = self._find(prefix_id)
        gone = list(_below(block))
        while block.parent is not None and len(block.parent.children) == 1:
            block = block.parent
            gone.append(block)
        return _remove(gone)

    def remove_all(self, model: str | None = None) -> int:
        """Delete all blocks, or those of one model by its name. Returns: bytes freed."""
        return _remove(
            block
            for block in self._blocks.values()
            if model is None or self._about[block.namespace][0] == model
        )

    def find(self, token_ids: Sequence[int]) -> StoredPrefix | None:
        """The stored prefix that covers most of a prompt, and of these the one used last."""
        num_full = len(token_ids) // BLOCK_SIZE
        keys = [key_of(token_ids[i * BLOCK_SIZE : (i + 1) * BLOCK_SIZE]) for i in range(num_full)]
        found = []
        for namespace in self._about:
            last = None
            for link in chain(namespace, None, keys):
                if link.digest not in self._blocks:
                    break
                last = self._blocks[link.digest]
            if last is not None:
                found.append(self._prefix(last))
        return max(found, key=lambda p: (p.num_tokens, p.last_use_s), default=None)

    def _find(self, prefix_id: str) -> _Block:
        wanted = prefix_id.lower()
        found = [b for b in self._blocks.values() if b.link.digest.hex().startswith(wanted)]
        if len(wanted) < _MIN_ID_CHARS or len(found) != 1:
            reason = "names none" if not found else "is not enough to tell which"
            raise InvalidRequest(f"prefix {prefix_id!r} {reason}; `octavo cache ls` shows them")
        return found[0]

    def _prefix(self, block: _Block) -> StoredPrefix:
        model, kv_dtype = self._about[block.namespace]
        path = list(block.path())
        return StoredPrefix(
            prefix_id=block.link.digest.hex(),
            model=model,
            kv_dtype=kv_dtype,
            num_tokens=len(path) * BLOCK_SIZE,
            num_bytes=sum(each.file.num_bytes for each in path),
            last_use_s=block.file.last_use_ns / 1e9,
            is_pinned=all(each.file.is_pinned for each in path),
        )

    def _read_about(self, block: _Block) -> tuple[str, str]:
        """Name of the model and KV type of a namespace, as far as its file tells."""
        path = self._directory / block.namespace.hex() / NAMESPACE_FILE
        try:
            about = json.loads(path.read_text())
            return str(about["model"]), str(about["facts"]["kv_dtype"]).lower()
        except (OSError, ValueError, KeyError, TypeError):
            return "unknown", "unknown"


def warm(config: EngineConfig, text: str, *, is_system: bool) -> StoredPrefix | None:
    """Compute a prompt and store it in `config.cache.kv_disk`; None if it has no full block.

    What is there already is not reduced to the quota. `is_system`: the text is the system message of chats, else a prompt as it is.
    Raises: InvalidRequest, ModelError, StoreError, CapacityError.
    """
    directory = config.cache.kv_disk
    if directory is None:
        raise InvalidRequest("kv_disk must name the directory", param="kv_disk")
    params = SamplingParams(temperature=0.0, max_tokens=1)
    with LLM.from_config(_not_smaller(config, Path(directory).expanduser())) as llm:
        if is_system:
            messages = [{"role": "system", "content": text}, {"role": "user", "content": "."}]
            [output] = llm.chat(messages, params, use_tqdm=False)
        else:
            [output] = llm.generate(text, params, use_tqdm=False)
    return StoredBlocks(Path(directory).expanduser()).find(output.prompt_token_ids)


def _not_smaller(config: EngineConfig, directory: Path) -> EngineConfig:
    """The configuration with a quota that holds what is there: a server may have been given a larger one."""
    if not directory.is_dir():
        return config
    num_bytes = max(config.cache.kv_disk_size, StoredBlocks(directory).num_bytes)
    return replace(config, cache=replace(config.cache, kv_disk_size=num_bytes))


def _is_whole(block: _Block) -> bool:
    """Whether all blocks before it are there."""
    *_, first = block.path()
    return first.link.at == 0


def _below(block: _Block) -> Iterator[_Block]:
    pending = [block]
    while pending:
        each = pending.pop()
        yield each
        pending.extend(each.children)


def _remove(blocks: Iterable[_Block]) -> int:
    num_bytes = 0
    for block in blocks:
        remove(block.file.path)
        num_bytes += block.file.num_bytes
    return num_bytes
