"""The C++ module (csrc/bindings/). Ids are indices: of matrices and vectors in a Runtime, of values in a Program."""

import numpy as np
import numpy.typing as npt

from octavo.ops.protocol import (
    Batch,
    Bytes,
    DecodeRun,
    Floats,
    Int32s,
    Int64s,
    SampleBatch,
    SampleResult,
)

PACKED_LAYOUT: int
"""Version of how formats are packed."""

FILE_BLOCK: int
"""Bytes of packed weights that share a checksum."""

def supported_tables() -> list[str]:
    """Names of the kernel tables this machine runs, best first."""

def can_pack(format: int, cols: int) -> bool:
    """Whether rows of this ggml type and length are multiplied as they are."""

def cpu_features() -> list[str]:
    """Names of the CPU's features that kernels or the probe ask for."""

class ReadBuffer:
    """Memory to read, as packed weights lie in it; smaller than asked where the system needs more than `seconds` to
    give it. Raises CapacityError, ValueError below 512 bytes."""

    def __init__(self, runtime: Runtime, num_bytes: int, seconds: float) -> None: ...
    @property
    def num_bytes(self) -> int: ...

def measure_buffer(runtime: Runtime, buffer: ReadBuffer, num_bytes: int, seconds: float) -> float:
    """Bytes per second of reading the first `num_bytes` of the buffer."""

def measure_weights(runtime: Runtime, max_bytes: int, seconds: float) -> float:
    """Bytes per second of reading the packed matrices, at most `max_bytes` of them; 0 if there are none."""

def measure_macs(runtime: Runtime, kind: str, seconds: float) -> float | None:
    """Multiply-accumulates per second, kind "int8", "bf16" or "f32"; None without such an instruction."""

def int8_instructions(runtime: Runtime) -> str:
    """What the int8 peak repeats."""

class MatrixWork:
    """Multiply-accumulates per row and packed bytes of the matrices of a body or head."""

    @property
    def int8_macs(self) -> int: ...
    @property
    def float_macs(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...

class ProgramWork:
    """What a step needs at least. Lists have an element per attention layer."""

    @property
    def body(self) -> MatrixWork: ...
    @property
    def head(self) -> MatrixWork: ...
    @property
    def windows(self) -> list[int]: ...

def packed_bytes(format: int, rows: int, cols: int) -> int:
    """Bytes of a packed matrix, 0 if it cannot be packed."""

class Runtime:
    """Threads, kernels and weights that executors share."""

    def __init__(self, num_threads: int, table: str, activation_terms: int = 1) -> None: ...
    @property
    def table(self) -> str: ...
    @property
    def num_threads(self) -> int: ...
    @property
    def weight_bytes(self) -> int: ...
    def add_matrix(
        self, format: int, rows: int, cols: int, bytes: npt.NDArray[np.uint8]
    ) -> int: ...
    def add_vector(self, values: Floats) -> int: ...
    def pack(
        self, format: int, rows: int, cols: int, bytes: npt.NDArray[np.uint8]
    ) -> npt.NDArray[np.uint8]:
        """The packed matrix, in memory of its own."""

    def checksums(self, bytes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
        """One for each FILE_BLOCK bytes; the last block may be shorter."""

    def load_region(
        self,
        fd: int,
        offset: int,
        bytes: int,
        checksums: npt.NDArray[np.uint64],
        *,
        is_mapped: bool,
    ) -> int:
        """Read packed weights from an open file, or map them unchecked. Raises ValueError, CapacityError."""

    def adopt_matrix(self, format: int, rows: int, cols: int, region: int, offset: int) -> int: ...
    def adopt_vector(self, size: int, region: int, offset: int) -> int: ...

class Program:
    """Records a body (tokens to hidden rows), then a head (hidden rows to logits). ValueError where shapes differ."""

    def __init__(self, runtime: Runtime) -> None: ...
    def embed(self, matrix: int, scale: float, /) -> int: ...
    def linear(self, x: int, matrix: int, bias: int, /) -> int: ...
    def rms_norm(self, x: int, weight: int, eps: float, /) -> int: ...
    def rope(
        self, x: int, *, head_dim: int, num_dims: int, is_neox: bool, frequencies: list[float]
    ) -> int: ...
    def attention(
        self,
        q: int,
        k: int,
        v: int,
        *,
        layer: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        scale: float,
        window: int,
        softcap: float,
    ) -> int: ...
    def gated(self, gate: int, up: int, *, is_gelu: bool) -> int: ...
    def add(self, a: int, b: int, /) -> int: ...
    def softcap(self, x: int, cap: float, /) -> int: ...
    def end_body(self, hidden: int, /) -> int: ...
    def end_head(self, logits: int, /) -> None: ...
    @property
    def work(self) -> ProgramWork: ...

class Executor:
    """A planned program with its KV pool."""

    def execute(self, batch: Batch, sample: SampleBatch, result: SampleResult) -> None: ...
    def decode(self, batch: Batch, sample: SampleBatch, run: DecodeRun, tokens: Int32s) -> int:
        """Write the drawn tokens [num_steps * R]; returns the number of steps done."""

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None: ...
    def read_block(self, block_id: int) -> Bytes: ...
    def write_block(self, block_id: int, data: Bytes) -> None: ...
    def fill_kv(self, value: float) -> None: ...
    @property
    def kv_block_bytes(self) -> int:
        """Bytes of a KV block, all layers."""

    def set_counting(self, is_counting: bool) -> None:
        """Whether steps from now on are counted; turning it on starts from zero."""

    def watch(self, counter: Int64s) -> None:
        """Add 1 to counter [1] after every operation from now on. The array is kept."""

    def op_counts(
        self,
    ) -> list[tuple[str, list[tuple[int, int, int, int]], int, int, int, int]]:
        """(kind, [(ggml type, rows, cols, packed bytes)], calls, rows, ns of work, ns of waiting) of each operation."""

def make_executor(
    program: Program,
    *,
    num_layers: int,
    num_kv_heads: int,
    head_dim: int,
    kv_type: int,
    num_blocks: int,
    max_batched_tokens: int,
) -> Executor:
    """Plan buffers and reserve KV memory; `kv_type` is a KVDType's number.

    Raises: ValueError, UnsupportedArchitecture, CapacityError.
    """
