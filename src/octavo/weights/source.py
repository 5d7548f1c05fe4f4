"""The weight-file contract, whatever the container, and the one door that opens a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from octavo.dtypes import HostTensor
from octavo.weights.gguf_split import open_gguf
from octavo.weights.tensor_info import Metadata, TensorInfo

__all__ = ["Metadata", "TensorInfo", "WeightSource", "open_weights"]


class WeightSource(Protocol):
    """An open model file: metadata and tensors, read in place.

    Nothing of the tensor data is read before it is used. Immutable, so threads may share it, until `close`.
    """

    @property
    def path(self) -> Path:
        """The file; of a split model its first part."""
        ...

    @property
    def paths(self) -> tuple[Path, ...]:
        """All files of the model, in order."""
        ...

    @property
    def metadata(self) -> Metadata:
        """Key/value pairs of the file."""
        ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by name, in the order of the file."""
        ...

    @property
    def num_parameters(self) -> int:
        """Elements of all tensors."""
        ...

    @property
    def file_bytes(self) -> int:
        """Size on disk, all parts together."""
        ...

    def tensor(self, name: str) -> HostTensor:
        """The tensor's bytes as a view into the mapped file; `release` of it drops the pages from memory.

        Raises: CorruptWeights if the file has no tensor of this name, ValueError after `close`.
        """
        ...

    def close(self) -> None:
        """Let go of the file. Idempotent. Views handed out stay valid: the mapping goes with the last of them."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


def open_weights(path: Path) -> WeightSource:
    """Open a model file and check its header; of a split model any part opens all.

    Raises: ModelNotFound if there is no such file or a part is missing, CorruptWeights if the file is not what it
    should be, UnsupportedArchitecture if it needs a newer format or an unknown quantisation, ModelError if the
    operating system does not let it be read.
    """
    return open_gguf(path)
