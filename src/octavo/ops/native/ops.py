"""The operations of the native backend: weights are packed when they are loaded, calls are recorded into a Program."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from octavo.dtypes import HostTensor, QuantFormat
from octavo.errors import UnsupportedArchitecture
from octavo.ops.native import _native
from octavo.ops.native.program import PackedTensor, Tensor, Value, Vector, Weight
from octavo.ops.protocol import Activation, AttentionSpec, Batch, Floats, RopeOrder, RopeSpec


class NativeOps:
    """See octavo.ops.protocol.Ops. Loading works at any time, the other operations while a Program is recorded."""

    def __init__(self, runtime: _native.Runtime) -> None:
        self._runtime = runtime
        self._recording: _native.Program | None = None
        self._held: dict[str, tuple[int, PackedTensor]] = {}

    def begin(self, program: _native.Program) -> None:
        """Record what follows into `program`."""
        self._recording = program

    def end(self) -> None:
        """Stop recording."""
        self._recording = None

    def adopt(self, region: int, tensors: Mapping[str, PackedTensor]) -> None:
        """Take these tensors from packed weights that the runtime has read, whatever the model file holds."""
        self._held = {name: (region, tensor) for name, tensor in tensors.items()}

    def weight(self, tensor: HostTensor) -> Weight:
        """See Ops.weight. Raises UnsupportedArchitecture for rows that no kernel multiplies."""
        found = self._held.get(tensor.name)
        if found is not None:
            region, held = found
            rows, cols = held.shape
            weight_id = self._runtime.adopt_matrix(
                held.format.type_id, rows, cols, region, held.offset
            )
            return Weight(weight_id, rows, cols)
        rows, cols = matrix_shape(tensor)
        data = np.frombuffer(tensor.data, dtype=np.uint8)
        weight_id = self._runtime.add_matrix(tensor.format.type_id, rows, cols, data)
        tensor.release()
        return Weight(weight_id, rows, cols)

    def vector(self, tensor: HostTensor) -> Vector:
        """See Ops.vector."""
        found = self._held.get(tensor.name)
        if found is not None:
            region, held = found
            return Vector(
                self._runtime.adopt_vector(held.shape[0], region, held.offset), held.shape[0]
            )
        vector_id = self._runtime.add_vector(vector_values(tensor))
        tensor.release()
        return Vector(vector_id, tensor.shape[0])

    def embed(self, table: Weight, batch: Batch, scale: float = 1.0) -> Value:
        """See Ops.embed."""
        return Value(self._program.embed(table.id, scale))

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None = None) -> Value:
        """See Ops.linear."""
        bias_id = -1 if bias is None else _vector_id(bias)
        return Value(self._program.linear(_value_id(x), weight.id, bias_id))

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Value:
        """See Ops.rms_norm."""
        return Value(self._program.rms_norm(_value_id(x), _vector_id(weight), eps))

    def rope(self, x: Tensor, spec: RopeSpec, batch: Batch) -> Value:
        """See Ops.rope."""
        rotated = self._program.rope(
            _value_id(x),
            head_dim=spec.head_dim,
            num_dims=spec.num_dims,
            is_neox=spec.order is RopeOrder.NEOX,
            frequencies=rope_frequencies(spec),
        )
        return Value(rotated)

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, batch: Batch
    ) -> Value:
        """See Ops.attention."""
        attended = self._program.attention(
            _value_id(q),
            _value_id(k),
            _value_id(v),
            layer=spec.layer,
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            scale=spec.scale,
            window=spec.window or 0,
            softcap=spec.softcap or 0.0,
        )
        return Value(attended)

    def gated(self, gate: Tensor, up: Tensor, activation: Activation) -> Value:
        """See Ops.gated."""
        is_gelu = activation is Activation.GELU_TANH
        return Value(self._program.gated(_value_id(gate), _value_id(up), is_gelu=is_gelu))

    def add(self, a: Tensor, b: Tensor) -> Value:
        """See Ops.add."""
        return Value(self._program.add(_value_id(a), _value_id(b)))

    def softcap(self, x: Tensor, cap: float) -> Value:
        """See Ops.softcap."""
        return Value(self._program.softcap(_value_id(x), cap))

    @property
    def _program(self) -> _native.Program:
        if self._recording is None:
            raise RuntimeError("native operations run inside NativeBackend.compile only")
        return self._recording


def rope_frequencies(spec: RopeSpec) -> list[float]:
    """Radians per position of each rotated pair, num_dims / 2 of them."""
    factors = spec.freq_factors or (1.0,) * (spec.num_dims // 2)
    return [
        spec.base ** (-2.0 * i / spec.num_dims) / (spec.linear_factor * factor)
        for i, factor in enumerate(factors)
    ]


def matrix_shape(tensor: HostTensor) -> tuple[int, int]:
    """Rows and columns. Raises ValueError if it is no matrix, UnsupportedArchitecture for rows that no kernel multiplies."""
    if len(tensor.shape) != 2:
        raise ValueError(f"{tensor.name} is not a matrix: shape {tensor.shape}")
    rows, cols = tensor.shape
    if not _native.can_pack(tensor.format.type_id, cols):
        raise UnsupportedArchitecture(
            f"{tensor.name}: rows of {cols} elements in {tensor.format.name} have no native kernel"
        )
    return rows, cols


def vector_values(tensor: HostTensor) -> Floats:
    """A copy of a vector's elements. Raises ValueError if it is none, UnsupportedArchitecture for quantised ones."""
    if len(tensor.shape) != 1:
        raise ValueError(f"{tensor.name} is not a vector: shape {tensor.shape}")
    match tensor.format:
        case QuantFormat.F32:
            return np.frombuffer(tensor.data, np.float32).copy()
        case QuantFormat.F16:
            return np.frombuffer(tensor.data, np.float16).astype(np.float32)
        case QuantFormat.BF16:
            wide = np.frombuffer(tensor.data, np.uint16).astype(np.uint32) << 16
            return wide.view(np.float32)
        case _:
            raise UnsupportedArchitecture(f"{tensor.name}: a vector in {tensor.format.name}")


def _value_id(tensor: Tensor) -> int:
    if isinstance(tensor, Vector):
        raise TypeError("a loaded vector stands where rows of the step are needed")
    return tensor.id


def _vector_id(tensor: Tensor) -> int:
    if isinstance(tensor, Value):
        raise TypeError("rows of the step stand where a loaded vector is needed")
    return tensor.id
