"""Applications that serve the real models, loaded once for all cases."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from octavo.api.async_llm import AsyncLLM
from octavo.server.app import create_app


def _serve(path: Path, **options: Any) -> Iterator[FastAPI]:
    backend = os.environ.get("OCTAVO_TEST_BACKEND", "native")
    with AsyncLLM(path, backend=backend, **options) as llm:
        yield create_app(llm)


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Iterator[FastAPI]:
    """smollm2 with its trained context."""
    yield from _serve(smollm2_path, kv_cache_memory_bytes="512MiB")


@pytest.fixture(scope="session")
def small_context(smollm2_path: Path) -> Iterator[FastAPI]:
    """smollm2 with a context of 256 tokens."""
    yield from _serve(smollm2_path, max_model_len=256, kv_cache_memory_bytes="32MiB")


@pytest.fixture(scope="session")
def gemma3(gemma3_path: Path) -> Iterator[FastAPI]:
    """gemma3 with a context of 2048 tokens."""
    yield from _serve(gemma3_path, max_model_len=2048, kv_cache_memory_bytes="256MiB")


@pytest.fixture
def serve_gemma3(gemma3_path: Path) -> Callable[..., Any]:
    """A context manager that serves gemma3 with other options for one test."""
    return contextmanager(lambda **options: _serve(gemma3_path, **options))
