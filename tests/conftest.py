"""Fixtures shared by all tests: where vectors and real models come from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def _from_env(variable: str, what: str) -> Path:
    value = os.environ.get(variable)
    if not value:
        pytest.skip(f"{variable} is not set: no {what}")
    path = Path(value)
    if not path.exists():
        pytest.skip(f"{variable}={value} does not exist")
    return path


@pytest.fixture(scope="session")
def test_data() -> Path:
    """Folder of vectors, vocabularies and templates."""
    return _from_env("OCTAVO_TEST_DATA", "test vectors")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct Q4_1."""
    return _from_env("OCTAVO_SMOLLM2", "smollm2 model file")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M base Q4_K_M."""
    return _from_env("OCTAVO_GEMMA3", "gemma3 model file")
