"""Fixtures shared by all tests: where vectors and real models come from."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.config import from_env
from octavo.store.manifest import stored_path
from octavo.store.name import ModelName


def pytest_configure() -> None:
    """Take interrupts even where a shell started the tests in the background, which ignores them for all children."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _from_env(variable: str, what: str) -> Path:
    value = os.environ.get(variable)
    if not value:
        pytest.skip(f"{variable} is not set: no {what}")
    path = Path(value)
    if not path.exists():
        pytest.skip(f"{variable}={value} does not exist")
    return path


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Undo what a command run inside the test process did to the loggers."""
    logger = logging.getLogger("octavo")
    before = (logger.handlers[:], logger.level, logger.propagate)
    yield
    logger.handlers[:], logger.level, logger.propagate = before


@pytest.fixture(scope="session")
def test_data() -> Path:
    """Folder of vectors, vocabularies and templates."""
    return _from_env("OCTAVO_TEST_DATA", "test vectors")


def _model(variable: str, name: str) -> Path:
    """A model file from the environment, or from the store if it was pulled; tests never download."""
    if os.environ.get(variable):
        return _from_env(variable, name)
    path = stored_path(from_env().home, ModelName.parse(name))
    if path is None:
        pytest.skip(f"{variable} is not set and `octavo pull {name}` was not run")
    return path


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct Q4_1."""
    return _model("OCTAVO_SMOLLM2", "smollm2")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M base Q4_K_M."""
    return _model("OCTAVO_GEMMA3", "gemma3:270m")
