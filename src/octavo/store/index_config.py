"""Which Python package indexes pip or uv is configured with on this machine."""

from __future__ import annotations

import configparser
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PUBLIC_INDEX: Final = "https://pypi.org/simple"


@dataclass(frozen=True, slots=True)
class IndexConfig:
    """Index addresses in the order to ask them; they may hold credentials. `ca_file` verifies their certificates."""

    urls: tuple[str, ...]
    ca_file: str | None = None

    def __repr__(self) -> str:
        return f"IndexConfig({len(self.urls)} indexes)"


def read_index_config(environ: Mapping[str, str], home: Path) -> IndexConfig:
    """Read the settings of uv and pip, environment before files; the public index where none names one.

    `home` is the user's home directory. A file that cannot be read counts as absent.
    """
    pip = _pip_settings(environ, home)
    uv = _uv_settings(environ, home)
    uv_default = environ.get("UV_DEFAULT_INDEX") or environ.get("UV_INDEX_URL")
    uv_extra = f"{environ.get('UV_INDEX', '')} {environ.get('UV_EXTRA_INDEX_URL', '')}".split()
    default = (
        environ.get("PIP_INDEX_URL")
        or uv_default
        or pip.get("index-url")
        or next(iter(uv["default"]), None)
        or PUBLIC_INDEX
    )
    extra = [
        *(environ.get("PIP_EXTRA_INDEX_URL") or pip.get("extra-index-url", "")).split(),
        *(uv_extra or uv["extra"]),
    ]
    # uv lets an index have a name in front: name=https://...
    urls = (
        url if url.split("=")[0].count("/") else url.partition("=")[2] or url
        for url in (default, *extra)
    )
    ca_file = environ.get("PIP_CERT") or environ.get("SSL_CERT_FILE") or pip.get("cert")
    return IndexConfig(
        tuple(dict.fromkeys(url.strip().rstrip("/") for url in urls if url.strip())), ca_file
    )


def _pip_files(environ: Mapping[str, str], home: Path) -> Iterator[Path]:
    """pip's configuration files, weakest first."""
    named = environ.get("PIP_CONFIG_FILE")
    if named == "/dev/null":
        return
    for folder in reversed((environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")):
        yield Path(folder) / "pip" / "pip.conf"
    yield Path("/etc/pip.conf")
    yield home / ".pip" / "pip.conf"
    yield Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf"
    if sys.platform == "darwin":
        yield home / "Library" / "Application Support" / "pip" / "pip.conf"
    yield Path(sys.prefix) / "pip.conf"
    if named:
        yield Path(named)


def _pip_settings(environ: Mapping[str, str], home: Path) -> dict[str, str]:
    settings: dict[str, str] = {}
    for path in _pip_files(environ, home):
        parser = configparser.RawConfigParser()
        with suppress(OSError, UnicodeDecodeError, configparser.Error):
            parser.read_string(path.read_text(encoding="utf-8"))
            for section in ("global", "install", "download"):
                if parser.has_section(section):
                    settings.update(
                        (key.replace("_", "-"), value) for key, value in parser.items(section)
                    )
    return settings


def _uv_settings(environ: Mapping[str, str], home: Path) -> dict[str, list[str]]:
    folder = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    found: dict[str, list[str]] = {"default": [], "extra": []}
    for path in (folder / "uv" / "uv.toml", Path("/etc/uv/uv.toml")):
        with suppress(OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError, TypeError):
            data = tomllib.loads(path.read_text(encoding="utf-8"))
            found["default"] += [str(data["index-url"])] if "index-url" in data else []
            for index in data.get("index", []):
                found["default" if index.get("default") else "extra"].append(str(index["url"]))
            found["extra"] += map(str, data.get("extra-index-url", []))
    return found
