"""The executor's counters, with names and sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from octavo.dtypes import FORMAT_BY_TYPE_ID, QuantFormat
from octavo.observability.op_costs import OpCost
from octavo.ops.native import _native

_FLOATS: Final = frozenset({QuantFormat.F32, QuantFormat.F16, QuantFormat.BF16})

Matrix = tuple[int, int, int, int]
"""ggml type, rows, columns, packed bytes."""


def read_op_costs(executor: _native.Executor) -> list[OpCost]:
    """What the executor counted, in the order of its program. Empty if counting was never on."""
    return [_cost(*counted) for counted in executor.op_counts()]


def _cost(
    kind: str, matrices: Sequence[Matrix], calls: int, rows: int, work_ns: int, wait_ns: int
) -> OpCost:
    formats = [FORMAT_BY_TYPE_ID[type_id] for type_id, *_ in matrices]
    shapes = (
        f"{format_.name} {out}x{cols}"
        for format_, (_, out, cols, _) in zip(formats, matrices, strict=True)
    )
    return OpCost(
        name=" ".join((kind, " + ".join(shapes))).rstrip(),
        calls=calls,
        rows=rows,
        seconds=work_ns / 1e9,
        wait_seconds=wait_ns / 1e9,
        macs=rows * sum(out * cols for _, out, cols, _ in matrices) if kind == "multiply" else 0,
        weight_bytes=_weight_bytes(kind, matrices, calls, rows),
        is_float=any(format_ in _FLOATS for format_ in formats),
    )


def _weight_bytes(kind: str, matrices: Sequence[Matrix], calls: int, rows: int) -> int:
    if kind == "embed":
        return sum(rows * num_bytes // out for _, out, _, num_bytes in matrices)
    return calls * sum(num_bytes for *_, num_bytes in matrices)
