"""Names, the catalog, and how a name becomes a path."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.api.models import resolve_model
from octavo.errors import InvalidRequest, ModelNotFound, StoreError
from octavo.store.catalog import load_catalog
from octavo.store.index_config import PUBLIC_INDEX, read_index_config
from octavo.store.name import ModelName


@pytest.mark.parametrize(
    ("text", "name", "tag", "shown"),
    [
        ("smollm2", "smollm2", "latest", "smollm2"),
        ("Gemma3:270M", "gemma3", "270m", "gemma3:270m"),
        ("a", "a", "latest", "a"),
        ("qwen2.5:0.5b-q4_K", "qwen2.5", "0.5b-q4_k", "qwen2.5:0.5b-q4_k"),
    ],
)
def test_names_are_parsed(text: str, name: str, tag: str, shown: str) -> None:
    parsed = ModelName.parse(text)
    assert (parsed.name, parsed.tag, str(parsed)) == (name, tag, shown)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "a:",
        ":a",
        "../x",
        "..",
        "a/b",
        "a\\b",
        ".a",
        "a.",
        "a..b",
        "a:../b",
        "a:b:c",
        "a b",
        "a\0",
        "a\nb",
        "é",
        "x" * 65,
    ],
)
def test_names_that_could_leave_the_store_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        ModelName.parse(text)


def test_catalog_names_are_found_with_alias_and_without_tag() -> None:
    catalog = load_catalog()
    smollm2 = catalog.find(ModelName.parse("smollm2"))
    assert smollm2 is not None
    assert catalog.find(ModelName.parse("smollm2:135m")) == smollm2
    gemma = catalog.find(ModelName.parse("gemma3"))
    assert gemma is not None
    assert gemma.name == "gemma3:270m"
    assert catalog.find(ModelName.parse("gemma3:1b")) is None
    assert all(len(entry.sha256) == 64 and entry.sources for entry in catalog.entries)


def test_the_users_catalog_comes_first(tmp_path: Path) -> None:
    own = {
        "name": "smollm2",
        "description": "mine",
        "license": "",
        "size_bytes": 4,
        "sha256": "00" * 32,
        "sources": [{"kind": "path", "path": "~/mine.gguf"}],
    }
    (tmp_path / "catalog.json").write_text(json.dumps({"models": [own]}))
    found = load_catalog(tmp_path).find(ModelName.parse("smollm2"))
    assert found is not None
    assert found.description == "mine"
    (tmp_path / "catalog.json").write_text("[]")
    with pytest.raises(StoreError, match="not a catalog"):
        load_catalog(tmp_path)


def test_a_path_works_without_the_store(tmp_path: Path) -> None:
    file = tmp_path / "any.gguf"
    file.write_bytes(b"GGUF")
    assert resolve_model(str(file), home=tmp_path / "home") == file
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    "name", ["missing.gguf", "folder/missing", "../../etc/passwd-not", "C:\\x.gguf"]
)
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelNotFound, match="no file"):
        resolve_model(name, home=tmp_path)


def test_an_unknown_name_lists_near_and_known_names(tmp_path: Path) -> None:
    with pytest.raises(
        ModelNotFound, match=r"did you mean smollm2.*Known names: smollm2, gemma3:270m"
    ):
        resolve_model("smolm2", home=tmp_path)
    with pytest.raises(ModelNotFound, match="Known names"):
        resolve_model("a:b:c", home=tmp_path)


def index_urls(tmp_path: Path, **environ: str) -> tuple[str, ...]:
    base = {"XDG_CONFIG_DIRS": str(tmp_path / "xdg"), "PIP_CONFIG_FILE": str(tmp_path / "pip.conf")}
    return read_index_config({**base, **environ}, tmp_path).urls


def test_the_environment_wins_over_files_and_pip_over_uv(tmp_path: Path) -> None:
    assert index_urls(tmp_path, PIP_CONFIG_FILE="/dev/null") == (PUBLIC_INDEX,)
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = https://file/simple/\nextra-index-url =\n  https://a/s\n  file:///b\ncert = /ca\n"
    )
    assert index_urls(tmp_path) == ("https://file/simple", "https://a/s", "file:///b")
    assert index_urls(tmp_path, PIP_INDEX_URL="https://env/s")[0] == "https://env/s"
    assert index_urls(tmp_path, UV_INDEX_URL="https://uv/s")[0] == "https://uv/s"
    assert index_urls(tmp_path, UV_DEFAULT_INDEX="https://uv2/s", UV_INDEX="named=https://uv3/s")[
        ::3
    ] == (
        "https://uv2/s",
        "https://uv3/s",
    )
    config = read_index_config({"PIP_CONFIG_FILE": str(tmp_path / "pip.conf")}, tmp_path)
    assert config.ca_file == "/ca"
    assert "https" not in repr(config)


def test_uvs_own_file_is_read(tmp_path: Path) -> None:
    folder = tmp_path / ".config" / "uv"
    folder.mkdir(parents=True)
    (folder / "uv.toml").write_text(
        '[[index]]\nurl = "https://x/s"\ndefault = true\n[[index]]\nurl = "https://y/s"\n'
    )
    assert index_urls(tmp_path, PIP_CONFIG_FILE="/dev/null") == ("https://x/s", "https://y/s")
