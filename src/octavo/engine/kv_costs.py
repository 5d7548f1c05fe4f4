"""What a KV type gains and what it costs, in words for the start of an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from octavo.dtypes import KVDType
from octavo.kv_layout import KVLayout


@dataclass(frozen=True, slots=True)
class QualityCost:
    """How much perplexity rises against f16, in percent. A text and models of ours: docs/perf/kv-types.md."""

    smollm2: float
    gemma3: float


QUALITY_COST_BY_KV_DTYPE: Final[Mapping[KVDType, QualityCost]] = {
    KVDType.F16: QualityCost(0.0, 0.0),
    KVDType.BF16: QualityCost(-0.06, 0.04),
    KVDType.F32: QualityCost(-0.05, -0.05),
    KVDType.INT8: QualityCost(0.15, 0.24),
    KVDType.FP8_E4M3: QualityCost(0.2, 0.24),
    KVDType.FP8_E5M2: QualityCost(2.66, 2.56),
    KVDType.INT8_INT4: QualityCost(0.97, 1.18),
    KVDType.INT4: QualityCost(7.0, 11.47),
}


def describe_kv_type(layout: KVLayout) -> str:
    """One line: the bytes of a token, the tokens gained in the same memory and the quality lost."""
    gain = replace(layout, dtype=KVDType.F16).token_bytes / layout.token_bytes
    line = f"KV cache of {layout.dtype.value}: {layout.token_bytes} bytes a token"
    if layout.dtype is KVDType.F16:
        return line
    return f"{line}, {gain:.2f} times the tokens of f16 in the same memory; {_cost(layout.dtype)}"


def quality_warning(dtype: KVDType) -> str | None:
    """What to tell whoever chose a type that visibly costs quality; None for the others."""
    if dtype is not KVDType.INT4:
        return None
    return (
        f"a KV cache of {dtype.value} makes answers worse: {_cost(dtype)}; "
        "--kv-cache-dtype int8/int4 costs less and still holds 2.4 times the tokens of f16"
    )


def _cost(dtype: KVDType) -> str:
    cost = QUALITY_COST_BY_KV_DTYPE[dtype]
    return f"perplexity against f16: {cost.smollm2:+.2f} % (smollm2), {cost.gemma3:+.2f} % (gemma3)"
