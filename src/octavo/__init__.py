"""Octavo: LLM inference and serving. Public names only; each is imported when it is first used."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.api.async_llm import AsyncLLM
    from octavo.api.llm import LLM
    from octavo.config import EngineConfig
    from octavo.errors import (
        CapacityError,
        ContextLengthExceeded,
        CorruptWeights,
        EngineDead,
        InvalidRequest,
        ModelError,
        ModelNotFound,
        OctavoError,
        StoreError,
        UnsupportedArchitecture,
    )
    from octavo.params import BeamSearchParams, SamplingParams

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AsyncLLM",
    "BeamSearchParams",
    "CapacityError",
    "ContextLengthExceeded",
    "CorruptWeights",
    "EngineConfig",
    "EngineDead",
    "InvalidRequest",
    "ModelError",
    "ModelNotFound",
    "OctavoError",
    "SamplingParams",
    "StoreError",
    "UnsupportedArchitecture",
    "__version__",
]

_MODULE_BY_NAME = {
    "LLM": "octavo.api.llm",
    "AsyncLLM": "octavo.api.async_llm",
    "BeamSearchParams": "octavo.params",
    "EngineConfig": "octavo.config",
    "SamplingParams": "octavo.params",
}

_HEAVY = ("LLM", "AsyncLLM")
"""Names whose libraries end the process where memory is missing: CapacityError comes first."""


def __getattr__(name: str) -> object:
    if name not in __all__ or name == "__version__":
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    if name in _HEAVY and "numpy" not in sys.modules:
        import_module("octavo.api.start").check_start()
    return getattr(import_module(_MODULE_BY_NAME.get(name, "octavo.errors")), name)


def __dir__() -> list[str]:
    return sorted(__all__)
