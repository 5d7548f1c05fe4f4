"""The dependency rule: imports go down only, heavy libraries stay where they belong."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import octavo

ROOT = Path(octavo.__file__).parent

LAYER_0 = {
    "config",
    "params",
    "outputs",
    "messages",
    "dtypes",
    "kv_layout",
    "errors",
    "observability",
}
MAY_IMPORT: dict[str, set[str]] = {
    "observability": set(),
    "cache": set(),
    "tokenization": set(),
    "grammar": set(),
    "store": set(),
    "ops": set(),
    "weights": {"ops"},
    "sampling": {"ops"},
    "models": {"ops", "weights"},
    "engine": {"cache", "ops", "weights", "models", "sampling", "grammar"},
    "api": {"cache", "engine", "tokenization", "store", "weights"},
    "server": {"api", "store"},
    "bench": {"api", "store", "weights"},
    "cli": {"api", "store", "weights", "server", "bench"},
}
ONLY_IN: dict[str, tuple[str, ...]] = {
    "torch": ("ops/torch/", "distributed/comm.py"),
    "fastapi": ("server/",),
    "starlette": ("server/",),
    "pydantic": ("server/",),
    "uvicorn": ("server/",),
    "zmq": ("engine/",),
    "cyclopts": ("cli/",),
    "rich": ("cli/", "api/"),
    "tokenizers": ("tokenization/",),
    "jinja2": ("tokenization/",),
    "transformers": (),
    "gguf": (),
}


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def imported(path: Path) -> Iterator[tuple[str, bool]]:
    """(module, whether the import is inside a function) for every import of a file."""
    tree = ast.parse(path.read_text())
    inside = {
        id(n)
        for f in ast.walk(tree)
        if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)
        for n in ast.walk(f)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            if node.module == "octavo":
                yield from ((f"octavo.{alias.name}", id(node) in inside) for alias in node.names)
            else:
                yield node.module, id(node) in inside


def test_imports_go_down_only() -> None:
    wrong = []
    for path in modules():
        own = path.relative_to(ROOT).parts[0].removesuffix(".py")
        for name, _ in imported(path):
            parts = name.split(".")
            if parts[0] != "octavo" or len(parts) < 2 or own in ("__init__", "__main__"):
                continue
            target = parts[1]
            if target in LAYER_0 or target == own or target.startswith("__"):
                continue
            if target not in MAY_IMPORT.get(own, set()):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_libraries_stay_in_their_layer() -> None:
    wrong = []
    for path in modules():
        where = path.relative_to(ROOT).as_posix()
        for name, _ in imported(path):
            allowed = ONLY_IN.get(name.split(".")[0])
            if allowed is not None and not where.startswith(allowed):
                wrong.append(f"{where} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_only_two_packages_touch_the_native_modules() -> None:
    for path in modules():
        where = path.relative_to(ROOT).as_posix()
        for name, _ in imported(path):
            if name.endswith("._native"):
                assert where.startswith("ops/native/")
            if name.endswith("._spm"):
                assert where.startswith("tokenization/")


def test_no_import_hides_in_a_function() -> None:
    """Outside the command line, whose verbs load on demand, and the lazy names of `octavo` itself."""
    hidden = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in modules()
        for name, is_inside in imported(path)
        if is_inside and not path.relative_to(ROOT).as_posix().startswith(("cli/", "__init__"))
    ]
    assert not hidden, "\n".join(hidden)


def test_the_environment_is_read_in_one_place() -> None:
    readers = [
        path.relative_to(ROOT).as_posix()
        for path in modules()
        if any(
            isinstance(n, ast.Attribute) and n.attr in ("environ", "getenv")
            for n in ast.walk(ast.parse(path.read_text()))
        )
    ]
    assert set(readers) <= {
        "config.py",
        "store/pypi.py",
    }  # the package index of pip or uv is theirs to name
