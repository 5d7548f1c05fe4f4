"""GGUF models cut into parts, `name-00001-of-0000N.gguf`: opening any part opens all."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from octavo.dtypes import HostTensor
from octavo.errors import CorruptWeights, ModelNotFound
from octavo.weights.gguf import GGUFFile
from octavo.weights.tensor_info import Metadata, TensorInfo

_PART_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_NUMBER_KEY = "split.no"
_COUNT_KEY = "split.count"
_TENSORS_KEY = "split.tensors.count"
_MAX_PARTS = 99999
_MAX_SHOWN = 3


class SplitGGUF:
    """A WeightSource over all parts of a split model, in order; metadata is that of the first part.

    Raises: CorruptWeights naming the part that does not belong to the first.
    """

    def __init__(self, parts: tuple[GGUFFile, ...]) -> None:
        _check_parts(parts)
        self._parts = parts
        self._part_by_name = {name: part for part in parts for name in part.tensors}
        self.path = parts[0].path
        self.paths = tuple(part.path for part in parts)
        self.metadata: Metadata = parts[0].metadata
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            {name: info for part in parts for name, info in part.tensors.items()}
        )
        self.num_parameters = sum(part.num_parameters for part in parts)
        self.file_bytes = sum(part.file_bytes for part in parts)

    def tensor(self, name: str) -> HostTensor:
        """The tensor from the part that holds it; see WeightSource."""
        return self._part_by_name.get(name, self._parts[0]).tensor(name)

    def close(self) -> None:
        """Let go of all parts; see WeightSource."""
        for part in self._parts:
            part.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def open_gguf(path: Path) -> GGUFFile | SplitGGUF:
    """Open a GGUF file and, if it is one part of several, the others beside it."""
    with ExitStack() as opened:
        first = opened.enter_context(GGUFFile(path))
        count = _split_value(first, _COUNT_KEY)
        if count is None or count <= 1:
            opened.pop_all()
            return first
        parts = tuple(
            first if part_path == path else opened.enter_context(GGUFFile(part_path))
            for part_path in _part_paths(first, count)
        )
        source = SplitGGUF(parts)
        opened.pop_all()
        return source


def _part_paths(part: GGUFFile, count: int) -> list[Path]:
    """Where the parts are, in order, from the name of one of them.

    Raises: CorruptWeights if the name is not that of a part, ModelNotFound if a part is missing.
    """
    number = (_split_value(part, _NUMBER_KEY) or 0) + 1
    match = _PART_NAME.fullmatch(part.path.name)
    if not match:
        raise CorruptWeights(
            f"this is part {number} of {count}; it must be named NAME-{number:05}-of-{count:05}.gguf"
            " so that the other parts can be found beside it",
            path=str(part.path),
            field=_COUNT_KEY,
        )
    if (int(match["number"]), int(match["count"])) != (number, count):
        raise CorruptWeights(
            f"the file says it is part {number} of {count}, its name says part"
            f" {int(match['number'])} of {int(match['count'])}",
            path=str(part.path),
            field=_NUMBER_KEY,
        )
    names = [f"{match['stem']}-{n:05}-of-{count:05}.gguf" for n in range(1, count + 1)]
    paths = [part.path.with_name(name) for name in names]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        more = f" and {len(missing) - _MAX_SHOWN} more" if len(missing) > _MAX_SHOWN else ""
        raise ModelNotFound(
            f"{part.path} is part {number} of {count}; missing in the same folder:"
            f" {', '.join(missing[:_MAX_SHOWN])}{more}"
        )
    return paths


def _check_parts(parts: tuple[GGUFFile, ...]) -> None:
    """Check that the parts are the whole of one model, in order."""
    first = parts[0]
    num_tensors = _split_value(first, _TENSORS_KEY)
    seen: dict[str, GGUFFile] = {}
    for number, part in enumerate(parts):
        for key, expected in (
            (_COUNT_KEY, len(parts)),
            (_NUMBER_KEY, number),
            (_TENSORS_KEY, num_tensors),
        ):
            found = _split_value(part, key)
            if found != expected:
                raise _foreign(part, f"{key} is {found}, expected {expected}", key)
        for key, value in part.metadata.items():
            theirs = first.metadata.get(key, value)
            if key.startswith("general.") and isinstance(value, str | int) and theirs != value:
                raise _foreign(part, f"{key} is {value!r}, in part 1 {theirs!r}", key)
        for name in part.tensors:
            if name in seen:
                raise _foreign(part, f"tensor {name!r} is in {seen[name].path.name} too", name)
            seen[name] = part
    if num_tensors is not None and len(seen) != num_tensors:
        raise _foreign(
            parts[-1], f"the parts have {len(seen)} tensors, {num_tensors} expected", _TENSORS_KEY
        )


def _foreign(part: GGUFFile, reason: str, field: str) -> CorruptWeights:
    return CorruptWeights(
        f"this part does not belong to the same model as the others: {reason}",
        path=str(part.path),
        field=field,
    )


def _split_value(part: GGUFFile, key: str) -> int | None:
    """A count of the split.* keys, None if absent."""
    value = part.metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 32:
        raise CorruptWeights(
            f"{key} is {value!r}, a count expected", path=str(part.path), field=key
        )
    if key != _TENSORS_KEY and value > _MAX_PARTS:
        raise CorruptWeights(
            f"{key} is {value}, at most {_MAX_PARTS} allowed", path=str(part.path), field=key
        )
    return value
