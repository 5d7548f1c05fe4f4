"""`octavo build`, and what the other verbs make of a build."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Octavo

ASK = ("Hi", "--raw", "--temperature", "0", "--max-tokens", "4", "--ctx", "64", "--log-level", "INFO")  # fmt: skip


@pytest.fixture
def model(tiny: str, tmp_path: Path) -> Path:
    return Path(shutil.copy(tiny, tmp_path / "tiny.gguf"))


def test_a_build_is_made_used_checked_and_removed(octavo: Octavo, model: Path, home: Path) -> None:
    packed = octavo("run", str(model), *ASK)
    assert "weights packed" in packed.err

    code, out, _ = octavo("build", str(model))
    assert code == 0
    [build] = (home / "builds").iterdir()
    assert out.startswith(f"{build} written: ")

    assert f"read from the build {build}" in octavo("run", str(model), *ASK).err
    without = octavo("run", str(model), *ASK, "--no-build")
    assert "weights packed" in without.err
    assert octavo("run", str(model), *ASK).out == without.out == packed.out

    assert json.loads(octavo("show", str(model), "--json").out)["build"] == str(build)
    assert "1 files outside the store" in octavo("list").out
    report = json.loads(octavo("build", str(model), "--verify", "--json").out)
    assert (report["path"], report["file_bytes"]) == (str(build), build.stat().st_size)

    model.unlink()
    assert octavo("rm", str(model)).code == 0
    assert not build.exists()
    assert octavo("rm", str(model)).code == 1


def test_a_build_elsewhere_is_used_where_it_is_named(
    octavo: Octavo, model: Path, home: Path, tmp_path: Path
) -> None:
    output = tmp_path / "elsewhere" / "tiny.octavo"
    assert octavo("build", str(model), "--output", str(output), "--threads", "1").code == 0
    assert not (home / "builds").exists()
    assert "weights packed" in octavo("run", str(model), *ASK).err
    named = ("--build-file", str(output))
    assert f"read from the build {output}" in octavo("run", str(model), *ASK, *named).err
    assert octavo("build", str(model), "--verify", "--output", str(output)).code == 0
    output.unlink()
    code, _, err = octavo("run", str(model), *ASK, *named)
    assert code == 2
    assert f"--build-file {output}" in err


def test_a_damaged_build_is_told_of_and_not_used(octavo: Octavo, model: Path, home: Path) -> None:
    expected = octavo("run", str(model), *ASK).out
    octavo("build", str(model))
    [build] = (home / "builds").iterdir()
    data = bytearray(build.read_bytes())
    data[5000] ^= 1
    build.write_bytes(data)
    code, out, err = octavo("build", str(model), "--verify")
    assert (code, out) == (1, "")
    assert str(build) in err
    assert "checksum" in err
    code, out, err = octavo("run", str(model), *ASK)
    assert (code, out) == (0, expected)
    assert "WARNING" in err
    assert "checksum" in err


def test_what_cannot_be_built_is_wrong_usage(octavo: Octavo, model: Path, tmp_path: Path) -> None:
    code, _, err = octavo("build", str(model), "--output", str(model))
    assert code == 2
    assert "--output" in err
    assert octavo("build", str(model), "--threads", "0").code == 2
    assert octavo("build", str(tmp_path / "none.gguf")).code == 1
    code, _, err = octavo("build", str(model), "--output", "/proc/x.octavo")
    assert code == 1
    assert "cannot write /proc/x.octavo" in err
    assert octavo("build", str(model), "--verify").code == 1


def test_a_build_of_a_stored_model_is_listed_and_goes_with_it(
    octavo: Octavo, tiny: str, home: Path
) -> None:
    data = Path(tiny).read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    entry = {
        "name": "tiny:1", "description": "A tiny model", "license": "none", "size_bytes": len(data),
        "sha256": digest, "sources": [{"kind": "path", "path": tiny}],
    }  # fmt: skip
    home.mkdir()
    (home / "catalog.json").write_text(json.dumps({"models": [entry]}))
    assert octavo("build", "tiny:1").code == 0  # fetched on first use
    [build] = (home / "builds").iterdir()
    assert build.name == f"sha256-{digest}.octavo"
    assert "build of" in octavo("list").out
    [stored] = json.loads(octavo("list", "--json").out)["stored"]
    assert stored["build"] == {"path": str(build), "size_bytes": build.stat().st_size}
    (home / "blobs" / f"sha256-{digest}").touch()  # a copied store has new times
    assert "read from the build" in octavo("run", "tiny", *ASK).err
    assert "belongs to the store" in octavo("rm", str(home / "blobs" / f"sha256-{digest}")).err
    octavo("rm", "tiny")
    assert not build.exists()


def test_two_processes_build_and_start_at_once(model: Path, home: Path) -> None:
    build = [sys.executable, "-m", "octavo", "build", str(model), "--threads", "1"]
    ask = [sys.executable, "-m", "octavo", "run", str(model), "Hi", "--raw", "--ctx", "64",
           "--max-tokens", "8", "--temperature", "0", "--logprobs", "1"]  # fmt: skip
    env = os.environ | {"OCTAVO_HOME": str(home)}

    def run(*commands: list[str]) -> list[tuple[bytes, bytes]]:
        running = [subprocess.Popen(c, env=env, stdout=-1, stderr=-1) for c in commands]
        ended = [process.communicate(timeout=60) for process in running]
        assert [process.returncode for process in running] == [0] * len(running), ended
        return ended

    [packed] = run(ask)
    run(build, build)
    [build_path] = os.listdir(home / "builds")
    assert build_path.endswith(".octavo")
    assert run(ask, build, ask)[::2] == [packed, packed]
