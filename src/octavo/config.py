"""User configuration: frozen dataclasses, declared once. Flags and help texts of the command line come from the fields.

`None` means "decide for me"; `engine.resolve` turns every None into a value, once, knowing machine and model.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from octavo.dtypes import KVDType


def _meta(help_: str, *aliases: str, is_size: bool = False) -> dict[str, object]:
    return {"help": help_, "aliases": aliases, "is_size": is_size}


class BackendName(Enum):
    """What computes."""

    NATIVE = "native"
    REFERENCE = "reference"


class ActivationPrecision(Enum):
    """What activations are rounded to where they meet quantised weights.

    INT8: 8 bits with a scale per 32 values. INT8X2: two such terms, the second for what the first left over; close to
    float32, for up to twice the work of a matrix product.
    """

    INT8 = "int8"
    INT8X2 = "int8x2"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """How much is done at once."""

    max_num_seqs: int = field(default=64, metadata=_meta("requests decoded together"))
    max_num_batched_tokens: int = field(
        default=512, metadata=_meta("tokens per step, all requests together")
    )
    max_step_ms: int = field(
        default=200, metadata=_meta("while others decode, prefill is cut to keep a step below this")
    )


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """The most that may wait. `None`: no limit."""

    max_requests: int | None = None
    max_tokens: int | None = None


NO_LIMITS: Final = QueueLimits()

DEFAULT_KV_DTYPE: Final = KVDType.F16
"""Taken where none is chosen and the memory suffices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The KV cache."""

    kv_cache_dtype: KVDType | None = field(
        default=None,
        metadata=_meta(
            "type of stored keys and values: f16, bf16, f32, int8, fp8, fp8_e5m2, int8/int4 or int4; "
            "default: f16, a smaller one if need be"
        ),
    )
    kv_cache_memory_bytes: int | None = field(
        default=None, metadata=_meta("memory for the KV cache, such as 512MiB")
    )
    enable_prefix_caching: bool = field(
        default=True,
        metadata=_meta("reuse the KV of prefixes that requests have in common"),
    )
    kv_disk: str | None = field(
        default=None,
        metadata=_meta("directory that keeps the KV of prompts, to be found again after a restart"),
    )
    kv_disk_size: int = field(
        default=2**30, metadata=_meta("most that is kept there", is_size=True)
    )
    strict_memory: bool = field(
        default=False,
        metadata=_meta("refuse to start with less than asked for, of context, sequences or KV"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which model, and how it is read."""

    model: str = field(metadata=_meta("catalog name or path of a .gguf file"))
    max_model_len: int | None = field(
        default=None, metadata=_meta("context: most tokens of prompt and output together", "ctx")
    )
    chat_template: str | None = field(
        default=None, metadata=_meta("template text, or a file that holds it")
    )
    build: bool = field(
        default=True, metadata=_meta("start from the model's build, if `octavo build` made one")
    )
    build_file: str | None = field(
        default=None, metadata=_meta("a build that lies elsewhere (octavo build --output)")
    )
    served_model_name: str | None = field(
        default=None,
        metadata=_meta(
            "name shown to clients; several are separated by commas, answers have the first"
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeConfig:
    """What computes, and on how much of the machine."""

    backend: BackendName = field(default=BackendName.NATIVE, metadata=_meta("what computes"))
    num_threads: int | None = field(
        default=None, metadata=_meta("threads; default: granted cores", "threads")
    )
    isa: str | None = field(
        default=None, metadata=_meta("kernel table; default: the best supported")
    )
    activation_precision: ActivationPrecision = field(
        default=ActivationPrecision.INT8,
        metadata=_meta(
            "what activations are rounded to in products with quantised weights; int8x2 is close to float32, and slower;"
            " native backend only"
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything an engine is started with."""

    model: ModelConfig
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The environment variables Octavo reads; nothing else does."""

    home: Path
    isa: str | None
    api_key: str | None
    log_level: str | None
    captures_content: bool = False
    """OpenTelemetry's opt-in to prompts and answers in traces."""


_CAPTURE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


def from_env(environ: Mapping[str, str] | None = None) -> Environment:
    """Read OCTAVO_HOME, _ISA, _API_KEY and _LOG_LEVEL, and OpenTelemetry's opt-in to content. Called at process start only."""
    env = os.environ if environ is None else environ
    home = env.get("OCTAVO_HOME") or str(Path.home() / ".octavo")
    return Environment(
        home=Path(home).expanduser(),
        isa=env.get("OCTAVO_ISA") or None,
        api_key=env.get("OCTAVO_API_KEY") or None,
        log_level=env.get("OCTAVO_LOG_LEVEL") or None,
        captures_content=env.get(_CAPTURE, "").lower() == "true",
    )


def one_blas_thread() -> None:
    """Keep numpy's linear algebra, which is not loaded yet, from starting threads; the engine has its own."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def environment_of_engine() -> dict[str, str]:
    """The environment of an engine process: this one's, and no thread for libraries of linear algebra."""
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    return {**os.environ, **dict.fromkeys(names, "1")}


_UNITS = {"": 1, "b": 1, "k": 10**3, "kb": 10**3, "kib": 2**10, "m": 10**6, "mb": 10**6, "mib": 2**20,
          "g": 10**9, "gb": 10**9, "gib": 2**30, "t": 10**12, "tb": 10**12, "tib": 2**40}  # fmt: skip


def parse_size(text: str) -> int:
    """Bytes of a size such as "512MiB", "1GiB", "1.5GB" or "4096". Raises ValueError with the accepted forms."""
    stripped = text.strip()
    number = stripped.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    unit = stripped[len(number) :].strip().lower()
    try:
        value = float(number) * _UNITS[unit]
    except (KeyError, ValueError):
        raise ValueError(f"not a size: {text!r} (write bytes, 512MiB or 1GiB)") from None
    if not 0 <= value < 2**63:
        raise ValueError(f"size out of range: {text!r}")
    return int(value)


def format_size(num_bytes: int) -> str:
    """A size for people that `parse_size` reads back: whole MiB below 10 GiB, else GiB with one digit."""
    if num_bytes < 10 * 2**20:
        return f"{-(-num_bytes // 1024)}KiB"
    if num_bytes < 10 * 2**30:
        return f"{-(-num_bytes // 2**20)}MiB"
    return f"{num_bytes / 2**30:.1f}GiB"
