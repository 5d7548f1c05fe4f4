"""`octavo pull`, `list` and `rm`, with a catalog whose model is a file on this machine."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Octavo


@pytest.fixture
def tiny_in_catalog(home: Path, tiny: str) -> str:
    """The digest of a model named tiny:1 that can be pulled."""
    data = Path(tiny).read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    entry = {
        "name": "tiny:1",
        "description": "A tiny model",
        "license": "none",
        "size_bytes": len(data),
        "sha256": digest,
        "sources": [{"kind": "path", "path": tiny}],
    }
    home.mkdir()
    (home / "catalog.json").write_text(json.dumps({"models": [entry]}))
    return digest


def test_a_model_is_pulled_once_listed_and_removed(octavo: Octavo, tiny_in_catalog: str) -> None:
    before = json.loads(octavo("list", "--json").out)
    assert before["stored"] == []
    assert "tiny:1" in [entry["name"] for entry in before["available"]]

    code, out, err = octavo("pull", "tiny:1")
    assert (code, out) == (0, "")
    assert err.startswith("Fetched tiny:1 (A tiny model; licence none)")
    assert tiny_in_catalog[:12] in err
    assert "is stored already" in octavo("pull", "tiny:1").err

    after = json.loads(octavo("list", "--json").out)
    [stored] = after["stored"]
    assert (stored["name"], stored["sha256"]) == ("tiny:1", tiny_in_catalog)
    assert Path(stored["path"]).is_file()
    assert "tiny:1" not in [entry["name"] for entry in after["available"]]
    assert "tiny:1" in octavo("list").out

    assert octavo("rm", "tiny").code == 0
    assert not Path(stored["path"]).exists()
    code, _, err = octavo("rm", "tiny:1")
    assert code == 1
    assert "stored: nothing" in err


def test_run_fetches_on_first_use_and_says_where_from_once(
    octavo: Octavo, tiny_in_catalog: str, tiny: str
) -> None:
    args = (
        "run",
        "tiny",
        "Hi",
        "--max-tokens",
        "2",
        "--backend",
        "reference",
        "--temperature",
        "0",
    )
    first, second = octavo(*args), octavo(*args)
    assert first.out == second.out
    assert tiny in first.err
    assert second.err == ""


def test_a_stored_model_whose_file_is_gone_can_be_pulled_again(
    octavo: Octavo, tiny_in_catalog: str, home: Path
) -> None:
    octavo("pull", "tiny")
    (home / "blobs" / f"sha256-{tiny_in_catalog}").unlink()
    assert json.loads(octavo("list", "--json").out)["stored"] == []
    assert octavo("pull", "tiny").code == 0
    assert len(json.loads(octavo("list", "--json").out)["stored"]) == 1


def test_pull_of_a_file_or_an_unknown_name_is_refused(octavo: Octavo, tiny: str) -> None:
    assert "can be used as it is" in octavo("pull", tiny).err
    code, _, err = octavo("pull", "gema3:270m")
    assert code == 1
    assert "did you mean gemma3:270m" in err


def test_a_home_that_cannot_be_written_is_named(
    octavo: Octavo, tiny_in_catalog: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "blobs").write_text("in the way")
    code, _, err = octavo("pull", "tiny")
    assert code == 1
    assert str(home) in err
