"""Every operation in every variant, with what a backend may differ by and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from octavo.dtypes import HostTensor, KVDType, QuantFormat
from octavo.kv_layout import KVLayout
from octavo.ops.protocol import Activation, AttentionSpec, Batch, Ops, RopeOrder, RopeSpec
from tests.tiny_models import float_tensor, random_tensor

# Largest |difference| allowed, relative to the root mean square of the expected values.
ELEMENTWISE = 3e-5  # float32 and a vectorised exp or tanh; reading back through logprobs costs 2e-6
ROPE = 1e-4  # angles must be taken in float64: float32 is off by 5e-4 rad at position 8192
ATTENTION = 5e-5  # scores and sums in float32, in tiles
EMBED = 1e-5  # one product; what is left is the reading back through logprobs

SMALL_LAYOUT = KVLayout(1, 1, 16)

Apply = Callable[[Ops[Any, Any], Sequence[Any], Sequence[Any], Batch], Any]


@dataclass(frozen=True)
class OpCase:
    """One operation: `apply(ops, inputs, weights, batch)`.

    Shapes: inputs [num_tokens, width], one row per token; weights are matrices and vectors of a file.
    `plan` lists the steps; a step lists (sequence, number of its next tokens).
    """

    name: str
    apply: Apply
    inputs: tuple[np.ndarray, ...]
    out_width: int
    weights: tuple[HostTensor, ...] = ()
    plan: tuple[tuple[tuple[int, int], ...], ...] = ()
    starts: tuple[int, ...] = (0,)
    layout: KVLayout = SMALL_LAYOUT
    tolerance: float = ELEMENTWISE
    linear_format: QuantFormat | None = None

    def __str__(self) -> str:
        return self.name


def op_cases() -> list[OpCase]:
    """Every operation in every variant."""
    return [
        *_norm_cases(),
        *_elementwise_cases(),
        *_rope_cases(),
        *_embed_cases(),
        *_linear_cases(),
        *_attention_cases(),
    ]


def _random(seed: int, *shape: int, std: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * std).astype(np.float32)


def _norm_cases() -> list[OpCase]:
    def norm(eps: float) -> Apply:
        return lambda ops, x, w, batch: ops.rms_norm(x[0], w[0], eps)

    return [
        OpCase(
            f"rms_norm[{width} by {size}, std {std}]",
            norm(eps),
            (_random(1, 5, width, std=std),),
            width,
            (float_tensor("w", 1 + _random(2, size, std=0.2)),),
        )
        for width, size, std, eps in (
            (64, 64, 1.0, 1e-6),
            (100, 100, 1.0, 1e-5),
            (128, 32, 1.0, 1e-6),  # per head
            (64, 64, 1e-4, 1e-5),  # eps outweighs the mean square
            (64, 64, 3e4, 1e-6),
        )
    ]


def _elementwise_cases() -> list[OpCase]:
    a, b = _random(3, 7, 96, std=3.0), _random(4, 7, 96)
    a[0, :4] = (-100.0, 100.0, 0.0, -0.0)  # saturated gates

    def gated(kind: Activation) -> Apply:
        return lambda ops, x, w, batch: ops.gated(x[0], x[1], kind)

    return [
        *(OpCase(f"gated[{kind.value}]", gated(kind), (a, b), 96) for kind in Activation),
        OpCase("add", lambda ops, x, w, batch: ops.add(x[0], x[1]), (a, b), 96),
        OpCase("add[twice the same]", lambda ops, x, w, batch: ops.add(x[0], x[0]), (b,), 96),
        OpCase("softcap", lambda ops, x, w, batch: ops.softcap(x[0], 2.5), (a,), 96),
    ]


def _rope_cases() -> list[OpCase]:
    def rope(spec: RopeSpec) -> Apply:
        return lambda ops, x, w, batch: ops.rope(x[0], spec, batch)

    factors = tuple(1.0 + i for i in range(8))
    variants = {
        "all dims": RopeSpec(16, 16, 10000.0, RopeOrder.NEOX),
        "partial": RopeSpec(32, 12, 10000.0, RopeOrder.NEOX),
        "scaled": RopeSpec(16, 16, 1e6, RopeOrder.NEOX, linear_factor=8.0),
        "factors": RopeSpec(16, 16, 5e5, RopeOrder.NEOX, freq_factors=factors),
        "large head": RopeSpec(64, 64, 1e5, RopeOrder.NEOX),
    }
    cases = []
    for order in RopeOrder:
        for name, variant in variants.items():
            spec = replace(variant, order=order)
            cases.append(
                OpCase(
                    f"rope[{order.value}, {name}]",
                    rope(spec),
                    (_random(6, 12, 2 * spec.head_dim),),
                    2 * spec.head_dim,
                    plan=(((0, 5), (1, 7)),),
                    starts=(0, 8180),
                    tolerance=ROPE,
                )
            )
    return cases


def _embed_cases() -> list[OpCase]:
    """The embedding is the result itself: there is no other input, tokens are rows of the weight."""
    cases = []
    for format_ in QuantFormat:
        table = random_tensor("table", (40, 256), format_, np.random.default_rng(7), 1.0)
        cases.append(
            OpCase(
                f"embed[{format_.name}]",
                lambda ops, x, w, batch: ops.embed(w[0], batch, scale=1.5),
                (np.zeros((40, 16), np.float32),),
                256,
                (table,),
                tolerance=EMBED,
            )
        )
    return cases


def _linear_cases() -> list[OpCase]:
    def linear(ops: Ops[Any, Any], x: Sequence[Any], w: Sequence[Any], batch: Batch) -> Any:
        return ops.linear(x[0], *w)

    cases = []
    for format_ in QuantFormat:
        # Rows that do not fill panels of 16, columns that do not fill records of 64, every size of token tile.
        num_in = 256 if format_.block_len == 256 else 96
        for num_tokens, num_out, num_cols in ((1, 48, 512), (9, 40, num_in), (37, 72, 256)):
            weight = random_tensor("w", (num_out, num_cols), format_, np.random.default_rng(8))
            has_bias = num_tokens == 9
            bias = (float_tensor("b", _random(9, num_out)),) if has_bias else ()
            cases.append(
                OpCase(
                    f"linear[{format_.name}, {num_tokens} x {num_cols} x {num_out}]",
                    linear,
                    (_random(10, num_tokens, num_cols),),
                    num_out,
                    (weight, *bias),
                    linear_format=format_,
                )
            )
    return cases


def _attention_cases() -> list[OpCase]:
    whole = {n: (((0, n),),) for n in (1, 15, 16, 17, 127, 128, 129, 300)}
    chunked = tuple(((0, n),) for n in (1, 15, 16, 100, 1, 1, 130))
    mixed = (
        ((0, 20), (1, 3)),
        ((1, 1), (0, 1), (2, 40)),
        ((2, 1), (3, 17), (0, 1), (1, 1)),
        ((3, 130), (2, 1)),
    )
    cases = [_attention(f"length {n}", plan) for n, plan in whole.items()]
    cases += [
        _attention(f"heads {heads}/{kv_heads} of {dim}", chunked, heads, kv_heads, dim)
        for heads, kv_heads, dim in ((4, 4, 16), (9, 3, 64), (4, 1, 256), (8, 2, 40))
    ]
    cases += [_attention(f"window {w}", chunked, window=w) for w in (1, 5, 16, 130, 1000)]
    cases += [
        _attention("chunked, f32", chunked, dtype=KVDType.F32),
        _attention("softcap", chunked, softcap=3.0),
        _attention("mixed batch", mixed),
        _attention("mixed batch, window 24, softcap, f32", mixed, 4, 1, 32, KVDType.F32, 24, 5.0),
        _two_layers(chunked),
    ]
    for dtype in KVDType:
        cases += [
            _attention(f"{dtype.value}, heads 9/3 of 64", chunked, 9, 3, 64, dtype),
            _attention(f"{dtype.value}, mixed batch, window 24", mixed, 4, 1, 80, dtype, 24, 5.0),
            _attention(f"{dtype.value}, heads 4/1 of 256", mixed, 4, 1, 256, dtype),
        ]
    return cases


def _two_layers(plan: tuple[tuple[tuple[int, int], ...], ...]) -> OpCase:
    """Layers that hold other things, over several steps: a layer must not read another's cache."""

    def apply(ops: Ops[Any, Any], x: Sequence[Any], w: Sequence[Any], batch: Batch) -> Any:
        q, a, b = x
        spec = AttentionSpec(0, 4, 2, 32, 0.2)
        first = ops.attention(q, a, b, spec, batch)
        return ops.add(first, ops.attention(q, b, a, replace(spec, layer=1), batch))

    single = _attention("two layers", plan)
    return replace(single, apply=apply)


def _attention(
    name: str,
    plan: tuple[tuple[tuple[int, int], ...], ...],
    heads: int = 4,
    kv_heads: int = 2,
    dim: int = 32,
    dtype: KVDType = KVDType.F16,
    window: int | None = None,
    softcap: float | None = None,
) -> OpCase:
    # The second layer of two: a layer's offset inside a block counts.
    spec = AttentionSpec(1, heads, kv_heads, dim, dim**-0.5, window, softcap)
    num_tokens = sum(count for step in plan for _, count in step)
    return OpCase(
        f"attention[{name}]",
        lambda ops, x, w, batch: ops.attention(*x, spec, batch),
        (
            _random(11, num_tokens, heads * dim, std=2.0),  # sharp enough that positions matter
            _random(12, num_tokens, kv_heads * dim),
            _random(13, num_tokens, kv_heads * dim),
        ),
        heads * dim,
        plan=plan,
        layout=KVLayout(2, kv_heads, dim, dtype),
        tolerance=ATTENTION,
    )
