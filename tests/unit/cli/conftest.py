"""The command line, called in this process."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from octavo.cli.main import main
from tests.tiny_models import tiny_source, write_gguf


class Result(NamedTuple):
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


Octavo = Callable[..., Result]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store."""
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("OCTAVO_LOG_LEVEL", raising=False)
    return tmp_path / "home"


@pytest.fixture
def octavo(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Octavo:
    """Run `octavo ARGS`, with `stdin` piped in."""

    def call(*args: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        with pytest.raises(SystemExit) as end:
            main(args)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return Result(int(end.value.code or 0), out, err)

    return call


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny model with a chat template."""
    source = tiny_source("llama")
    tokens, types = (source.metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type"))
    assert isinstance(tokens, list)
    assert isinstance(types, np.ndarray)
    source = source.with_metadata(  # a vocabulary of bytes and one merge: a file has at least one
        tokenizer__ggml__tokens=[*tokens[:258], "he", *tokens[259:]],
        tokenizer__ggml__token_type=np.where(np.arange(len(types)) == 258, 1, types),
        tokenizer__ggml__merges=["h e"],
    )
    return str(write_gguf(source, tmp_path_factory.mktemp("tiny") / "tiny.gguf"))
