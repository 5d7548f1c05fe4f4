"""Keyword arguments of `LLM` and `AsyncLLM` -> EngineConfig. Names follow the config dataclasses and vLLM."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypedDict, TypeVar

from octavo.config import (
    ActivationPrecision,
    BackendName,
    CacheConfig,
    ComputeConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
    parse_size,
)
from octavo.dtypes import KV_DTYPE_BY_NAME, KVDType
from octavo.errors import InvalidRequest
from octavo.tokenization.tokenizer import Tokenizer

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_E = TypeVar("_E", bound=Enum)


class LLMOptions(TypedDict, total=False):
    """Keyword arguments of `LLM` and `AsyncLLM`; None, where allowed, means "decide for me".

    The last five are vLLM's: they are checked, and have no effect on this engine.
    """

    tokenizer: str | Path | Tokenizer | None
    chat_template: str | None
    build: bool
    build_file: str | None
    served_model_name: str | None
    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    max_step_ms: int
    kv_cache_dtype: str | KVDType | None
    kv_cache_memory_bytes: int | str | None
    enable_prefix_caching: bool
    kv_disk: str | Path | None
    kv_disk_size: int | str
    strict_memory: bool
    num_threads: int | None
    backend: str | BackendName
    isa: str | None
    activation_precision: str | ActivationPrecision
    seed: int | None
    tensor_parallel_size: int
    dtype: str
    gpu_memory_utilization: float
    trust_remote_code: bool
    enforce_eager: bool


_WEIGHT_DTYPES: Final = ("auto", "half", "float16", "bfloat16", "float", "float32")


def engine_config(model: str | Path, options: Mapping[str, Any]) -> EngineConfig:
    """The configuration these keyword arguments describe.

    Raises: TypeError for an unknown name, with the nearest known one; InvalidRequest for a value that cannot be.
    """
    _check_names(options)
    _check_compatibility(options)
    values = dict(options)
    if "kv_cache_dtype" in values:
        values["kv_cache_dtype"] = _kv_dtype(values["kv_cache_dtype"])
    if "backend" in values:
        values["backend"] = _backend(values["backend"])
    if "activation_precision" in values:
        values["activation_precision"] = _activation_precision(values["activation_precision"])
    for name in ("kv_cache_memory_bytes", "kv_disk_size"):
        if isinstance(values.get(name), str):
            values[name] = parse_size(values[name])
    if values.get("kv_disk") is not None:
        values["kv_disk"] = str(values["kv_disk"])
    values["model"] = str(model)
    return EngineConfig(
        model=_build(ModelConfig, values),
        scheduler=_build(SchedulerConfig, values),
        cache=_build(CacheConfig, values),
        compute=_build(ComputeConfig, values),
    )


def _build(cls: type[_T], values: Mapping[str, Any]) -> _T:
    names = {f.name for f in fields(cls)}  # type: ignore[arg-type]  # always one of the config dataclasses
    return cls(**{name: value for name, value in values.items() if name in names})


def _check_names(options: Mapping[str, Any]) -> None:
    known = LLMOptions.__annotations__
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"unknown keyword argument {name!r}{hint}")


def _check_compatibility(options: Mapping[str, Any]) -> None:
    size = options.get("tensor_parallel_size", 1)
    if size != 1:
        raise InvalidRequest(
            f"tensor_parallel_size {size}: this version runs a model on one device; leave it at 1",
            param="tensor_parallel_size",
        )
    dtype = options.get("dtype", "auto")
    if dtype not in _WEIGHT_DTYPES:
        raise InvalidRequest(
            f"dtype {dtype!r} is not one of {', '.join(_WEIGHT_DTYPES)}", param="dtype"
        )
    share = options.get("gpu_memory_utilization", 0.9)
    if not 0.0 < share <= 1.0:
        raise InvalidRequest(
            f"gpu_memory_utilization must be in (0, 1], got {share}", param="gpu_memory_utilization"
        )
    for name in ("dtype", "gpu_memory_utilization", "trust_remote_code", "enforce_eager"):
        if name in options:
            _log.debug("%s=%r has no effect on this engine", name, options[name])


def _kv_dtype(value: str | KVDType | None) -> KVDType | None:
    if value is None or isinstance(value, KVDType):
        return value
    if str(value).lower() == "auto":
        return None
    return _parse(value, KV_DTYPE_BY_NAME, "kv_cache_dtype")


def _backend(value: str | BackendName) -> BackendName:
    if isinstance(value, BackendName):
        return value
    return _parse(value, {name.value: name for name in BackendName}, "backend")


def _activation_precision(value: str | ActivationPrecision) -> ActivationPrecision:
    if isinstance(value, ActivationPrecision):
        return value
    return _parse(value, {p.value: p for p in ActivationPrecision}, "activation_precision")


def _parse(value: str, table: Mapping[str, _E], param: str) -> _E:
    found = table.get(str(value).lower())
    if found is None:
        raise InvalidRequest(f"{param} {value!r} is not one of {', '.join(table)}", param=param)
    return found
