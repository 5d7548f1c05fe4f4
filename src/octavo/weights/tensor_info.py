"""What a weight file says about one tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from octavo.dtypes import QuantFormat

Metadata = Mapping[str, object]
"""Key/value pairs of a file: scalars as int, float, bool, str; string arrays as list[str]; numeric and bool arrays as
numpy arrays; arrays of arrays as lists of these. Bytes that are not UTF-8 become surrogate escapes, so that
`text.encode("utf-8", "surrogateescape")` gives back what the file holds."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Name, shape and place of one tensor.

    Shapes: `shape` is row-major, outermost dimension first, the reverse of the order in a GGUF file.
    Units: `offset` is the byte where the data starts in the file (of a split model: in the part) that holds it.
    """

    name: str
    shape: tuple[int, ...]
    format: QuantFormat
    num_bytes: int
    offset: int

    @property
    def num_elements(self) -> int:
        """Product of the shape."""
        return prod(self.shape)
