"""What the native operations pass around while a model is loaded and recorded: handles, no numbers."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.dtypes import QuantFormat


@dataclass(frozen=True, slots=True)
class Weight:
    """A packed matrix [rows, cols]; `id` is its index in the runtime."""

    id: int
    rows: int
    cols: int


@dataclass(frozen=True, slots=True)
class Vector:
    """A float32 vector held by the runtime: a norm weight or a bias."""

    id: int
    size: int

    def __len__(self) -> int:
        return self.size


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """A tensor as it is held: matrices packed, vectors as float32.

    `source_format` is that of the model file, `format` the one that is multiplied. Units: bytes; `offset` counts from
    the start of the packed weights, a multiple of 64.
    """

    shape: tuple[int, ...]
    source_format: QuantFormat
    format: QuantFormat
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Value:
    """Rows that a step computes; `id` is its index in the function being recorded."""

    id: int


Tensor = Vector | Value
"""The activation type of the native operations: either known when loading, or computed in a step."""
