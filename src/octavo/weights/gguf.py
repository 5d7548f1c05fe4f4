"""One GGUF file, mapped into memory. Source: the GGUF specification in ggml's documentation."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from octavo.dtypes import HostTensor
from octavo.errors import CorruptWeights, ModelError, ModelNotFound
from octavo.weights.gguf_format import MAGIC
from octavo.weights.gguf_header import parse_header
from octavo.weights.tensor_info import Metadata, TensorInfo

_HEAD_BYTES = 512


class GGUFFile:
    """A WeightSource over one file. Tensor data is neither read nor copied here, only mapped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.paths = (path,)
        self._map = _map_file(path)
        try:
            header = parse_header(self._map, str(path))
        except BaseException:
            self._map.close()
            raise
        self.version = header.version
        self.alignment = header.alignment
        self.metadata: Metadata = MappingProxyType(dict(header.metadata))
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            {info.name: info for info in header.tensors}
        )
        self.num_parameters = sum(info.num_elements for info in header.tensors)
        self.file_bytes = len(self._map)
        self._is_closed = False

    def tensor(self, name: str) -> HostTensor:
        """The tensor as it lies in the file; see WeightSource."""
        if self._is_closed:
            raise ValueError(f"{self.path} is closed")
        info = self.tensors.get(name)
        if info is None:
            raise CorruptWeights(f"the file has no tensor {name!r}", path=str(self.path))
        view = memoryview(self._map)[info.offset : info.offset + info.num_bytes]
        release = partial(_drop_pages, self._map, info.offset, info.num_bytes)
        return HostTensor(name, info.shape, info.format, view, release)

    def close(self) -> None:
        """Let go of the file; see WeightSource."""
        self._is_closed = True
        # A view that is still held keeps the mapping; it ends with the last of them.
        with contextlib.suppress(BufferError):
            self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _map_file(path: Path) -> mmap.mmap:
    """Map a file that starts with the magic.

    Raises: ModelNotFound, ModelError, OSError where there is no address space, CorruptWeights with a hint at what the file is instead.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise ModelError(f"{path} is a directory, not a GGUF file: name the .gguf file in it")
        if not stat.S_ISREG(mode):  # opening a pipe would wait for a writer
            raise ModelError(f"{path} is not a regular file")
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
            if head[: len(MAGIC)] != MAGIC:
                raise CorruptWeights(
                    f"not a GGUF file: {_what_it_is(head, os.fstat(file.fileno()).st_size)}",
                    path=str(path),
                    field="magic",
                    offset=0,
                )
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelNotFound(f"{path}: no such file") from None
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise  # of this process, not of the file
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error


def _what_it_is(head: bytes, size: int) -> str:
    """What a file without the magic looks like, from its first bytes."""
    if not head:
        return "it is empty (0 bytes); the download did not happen or did not finish"
    found = f"the magic is wrong, found {head[:4]!r} ({head[:4].hex(' ')}) in place of {MAGIC!r}"
    if size < len(MAGIC):
        return f"{found}; the file has {size} bytes only"
    hint = _hint(head)
    return f"{found}; {hint}" if hint else found


def _hint(head: bytes) -> str:
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype", b"<html", b"<head", b"<?xml")):
        return "it is a web page: the download is not the model (a login or error page?)"
    if text.startswith(b"version https://git-lfs"):
        return (
            "it is a Git LFS pointer: the download is not the model, fetch it with `git lfs pull`"
        )
    if head.startswith(b"PK\x03\x04"):
        return "it is a zip archive (a PyTorch checkpoint?): unpack or convert it"
    if head.startswith(b"\x1f\x8b"):
        return "it is a gzip archive: unpack it"
    if head[:4] in (b"lmgg", b"fmgg", b"tjgg", b"algg"):
        return "it is in a format older than GGUF: convert it"
    if head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") < 1 << 32:
        return "it is a safetensors file"
    if text.startswith((b"{", b"[")):
        return "it is JSON text: the download is not the model (an error answer?)"
    if head.startswith(MAGIC[::-1]):
        return "the bytes are in reverse order"
    return ""


def _drop_pages(mapping: mmap.mmap, offset: int, num_bytes: int) -> None:
    """Drop the pages of a range from this process; a later read fetches them again.

    Whole pages go, with what neighbours lie on them: that costs a page fault, never data.
    """
    if sys.platform == "win32" or mapping.closed:
        return
    start = offset - offset % mmap.PAGESIZE
    mapping.madvise(mmap.MADV_DONTNEED, start, offset + num_bytes - start)
