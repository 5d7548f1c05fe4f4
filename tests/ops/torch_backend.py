"""The Ops protocol on torch (CPU, float32): proof that a model written once runs on an eager GPU-style backend too.

Written independently of `reference`, with torch's own operations where there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F

from octavo.dtypes import HostTensor, KVDType
from octavo.kv_layout import BLOCK_SIZE, KVLayout
from octavo.ops.protocol import (
    Activation,
    AttentionSpec,
    Batch,
    DecoderModel,
    RopeOrder,
    RopeSpec,
    SampleBatch,
    SampleResult,
)
from octavo.ops.reference_sampling import empty_result, sample_rows

# Tensors here are tiny: a second thread costs more than it brings.
torch.set_num_threads(1)

Tensor = torch.Tensor


def _long(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array.astype(np.int64))


class TorchOps:
    """Ops over torch tensors [n, channels]."""

    def __init__(self, dequantize: Callable[[HostTensor], np.ndarray]) -> None:
        self._dequantize = dequantize
        self.kv = torch.empty(0)  # [layers, 2, slots, kv_heads, head_dim], set by the executor

    def weight(self, tensor: HostTensor) -> Tensor:
        return torch.from_numpy(np.array(self._dequantize(tensor)).reshape(tensor.shape))

    vector = weight

    def embed(self, table: Tensor, batch: Batch, scale: float = 1.0) -> Tensor:
        return F.embedding(_long(batch.token_ids), table) * scale

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.linear(x, weight, bias)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        size = len(weight)
        return F.rms_norm(x.view(len(x), -1, size), (size,), weight, eps).view(x.shape)

    def rope(self, x: Tensor, spec: RopeSpec, batch: Batch) -> Tensor:
        pairs = torch.arange(0, spec.num_dims, 2, dtype=torch.float64)
        divisors = torch.tensor(spec.freq_factors or 1.0, dtype=torch.float64) * spec.linear_factor
        angles = torch.outer(
            _long(batch.positions).double(), spec.base ** (-pairs / spec.num_dims) / divisors
        )
        turn = torch.polar(torch.ones_like(angles), angles)[:, None]  # complex [n, 1, num_dims / 2]
        heads = x.view(len(x), -1, spec.head_dim)
        rotated, rest = heads[..., : spec.num_dims].double(), heads[..., spec.num_dims :]
        shape = (2, -1) if spec.order is RopeOrder.NEOX else (-1, 2)
        axis = -2 if spec.order is RopeOrder.NEOX else -1
        split = rotated.unflatten(-1, shape)
        turned = torch.complex(split.select(axis, 0), split.select(axis, 1)) * turn
        out = torch.stack((turned.real, turned.imag), axis).flatten(-2).float()
        return torch.cat((out, rest), -1).view(x.shape)

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, batch: Batch
    ) -> Tensor:
        store, slots = self.kv[spec.layer], _long(batch.slots)
        store[0, slots] = k.view(len(k), spec.num_kv_heads, -1).to(store.dtype)
        store[1, slots] = v.view(len(v), spec.num_kv_heads, -1).to(store.dtype)
        out = []
        for r, length in enumerate(batch.seq_lens):
            rows = slice(batch.query_start[r], batch.query_start[r + 1])
            at = torch.arange(int(length))
            blocks = _long(batch.block_tables[r])[at // BLOCK_SIZE]
            keys, values = store[:, blocks * BLOCK_SIZE + at % BLOCK_SIZE].float().transpose(1, 2)
            behind = _long(batch.positions[rows])[:, None] - at  # how far the key lies behind
            hidden = (behind < 0) | (behind >= (spec.window or 2**31))
            queries = q[rows].view(-1, spec.num_heads, spec.head_dim).transpose(0, 1)
            group = spec.num_heads // spec.num_kv_heads
            scores = queries @ keys.repeat_interleave(group, 0).transpose(1, 2) * spec.scale
            if spec.softcap is not None:
                scores = spec.softcap * torch.tanh(scores / spec.softcap)
            weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            attended = weights @ values.repeat_interleave(group, 0)
            out.append(attended.transpose(0, 1).flatten(1))
        return torch.cat(out)

    def gated(self, gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
        is_silu = activation is Activation.SILU
        return (F.silu(gate) if is_silu else F.gelu(gate, approximate="tanh")) * up

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        return cap * torch.tanh(x / cap)


TORCH_KV_DTYPES = {
    KVDType.F16: torch.float16,
    KVDType.BF16: torch.bfloat16,
    KVDType.F32: torch.float32,
}


class TorchBackend:
    """Backend of TorchOps; samples with the reference sampler."""

    def __init__(self, dequantize: Callable[[HostTensor], np.ndarray]) -> None:
        self._dequantize = dequantize
        self.ops = TorchOps(dequantize)

    def compile(
        self,
        model: DecoderModel[Tensor, Tensor],
        layout: KVLayout,
        num_blocks: int,
        max_batched_tokens: int,
    ) -> TorchExecutor:
        ops = TorchOps(self._dequantize)
        dtype = TORCH_KV_DTYPES[layout.dtype]
        slots = num_blocks * BLOCK_SIZE
        shape = (layout.num_layers, 2, slots, layout.num_kv_heads, layout.head_dim)
        ops.kv = torch.zeros(shape, dtype=dtype)
        return TorchExecutor(model, ops)


class TorchExecutor:
    """Executor that runs the model eagerly."""

    kernel_table = "torch"

    def __init__(self, model: DecoderModel[Tensor, Tensor], ops: TorchOps) -> None:
        self._model, self._ops = model, ops

    @torch.inference_mode()
    def execute(self, batch: Batch, sample: SampleBatch) -> SampleResult:
        hidden = self._model.forward(self._ops, batch)
        logits = self._model.logits(self._ops, hidden[_long(batch.output_rows)])
        result = empty_result(sample)
        sample_rows(logits.numpy(), sample, 0, result)
        return result

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        blocks = self._ops.kv.unflatten(2, (-1, BLOCK_SIZE))
        for source, destination in pairs:
            blocks[:, :, destination] = blocks[:, :, source]

    def fill_kv(self, value: float) -> None:
        self._ops.kv.fill_(value)

    def close(self) -> None:
        self._ops.kv = torch.empty(0)
