from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import octavo


def test_the_public_names_are_these() -> None:
    assert set(octavo.__all__) == {
        "LLM", "AsyncLLM", "BeamSearchParams", "SamplingParams", "EngineConfig", "__version__", "OctavoError", "InvalidRequest",
        "ContextLengthExceeded", "ModelError", "ModelNotFound", "UnsupportedArchitecture", "CorruptWeights",
        "StoreError", "CapacityError", "EngineDead",
    }  # fmt: skip
    assert len(set(octavo.__all__)) == len(octavo.__all__)
    assert [n for n in octavo.__all__ if n != "LLM"] == sorted(
        n for n in octavo.__all__ if n != "LLM"
    )


@pytest.mark.parametrize("name", sorted(octavo.__all__))
def test_each_public_name_can_be_imported(name: str) -> None:
    assert getattr(octavo, name) is not None
    assert name in dir(octavo)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        octavo.nothing_of_this_name  # noqa: B018


def test_the_version_is_that_of_the_package() -> None:
    pyproject = Path(__file__).parents[2] / "pyproject.toml"
    assert tomllib.loads(pyproject.read_text())["project"]["version"] == octavo.__version__


def test_import_is_light() -> None:
    """Nothing heavy comes in with `import octavo`; the time itself is measured elsewhere."""
    code = "import sys, octavo; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert not {"numpy", "fastapi", "tokenizers", "rich", "torch", "msgspec"} & set(loaded)
