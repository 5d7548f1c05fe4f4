"""`octavo cache`: the prompts of a disk tier, listed, stored, pinned and removed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.api.llm import LLM
from octavo.params import SamplingParams
from tests.unit.cli.conftest import Octavo

FLAGS = ("--ctx", "256", "--kv-cache-memory-bytes", "16MiB", "--backend", "reference")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "prompt.txt"
    file.write_text("he said that the house was there, and then he went")
    return file


def listed(octavo: Octavo, kv: Path) -> list[dict[str, object]]:
    result = octavo("cache", "ls", "--kv-disk", str(kv), "--json")
    assert result.code == 0
    prefixes: list[dict[str, object]] = json.loads(result.out)["prefixes"]
    return prefixes


def test_a_prompt_is_stored_listed_found_pinned_and_removed(
    octavo: Octavo, tiny: str, text: Path, tmp_path: Path
) -> None:
    kv = tmp_path / "kv"
    code, out, err = octavo("cache", "warm", tiny, str(text), "--kv-disk", str(kv), *FLAGS)
    assert code == 0, err
    prefix_id = out.strip()
    [prefix] = listed(octavo, kv)
    assert str(prefix["prefix_id"]).startswith(prefix_id)
    assert (prefix["model"], prefix["kv_dtype"], prefix["is_pinned"]) == ("tiny", "f16", False)
    num_tokens = prefix["num_tokens"]
    assert isinstance(num_tokens, int)
    assert num_tokens >= 32

    options = {"max_model_len": 256, "kv_cache_memory_bytes": "16MiB", "backend": "reference"}
    with LLM(tiny, kv_disk=kv, kv_disk_size="1MiB", **options) as llm:  # type: ignore[arg-type]
        [output] = llm.generate(text.read_text(), SamplingParams(max_tokens=1), use_tqdm=False)
        assert (output.num_cached_tokens or 0) >= 32

    assert octavo("cache", "pin", prefix_id, "--kv-disk", str(kv)).code == 0
    assert [p["is_pinned"] for p in listed(octavo, kv)] == [True]
    assert "pinned" in octavo("cache", "ls", "--kv-disk", str(kv)).out
    assert octavo("cache", "pin", prefix_id, "--off", "--kv-disk", str(kv)).code == 0
    assert [p["is_pinned"] for p in listed(octavo, kv)] == [False]
    assert octavo("cache", "rm", prefix_id, "--kv-disk", str(kv)).code == 0
    assert listed(octavo, kv) == []


def test_prompts_that_begin_alike_keep_what_they_share(
    octavo: Octavo, tiny: str, text: Path, tmp_path: Path
) -> None:
    kv, longer = tmp_path / "kv", tmp_path / "longer.txt"
    other = tmp_path / "other.txt"
    shared = text.read_text()[:40]
    longer.write_text(shared + " in the morning, when it was cold there")
    other.write_text(shared + "! and he said it again, and again, and again")
    ids = []
    for file in (longer, other):
        result = octavo(
            "cache", "warm", tiny, str(file), "--kv-disk", str(kv), "--pin", "--system", *FLAGS
        )
        assert result.code == 0, result.err
        ids.append(result.out.strip())
    both = listed(octavo, kv)
    assert [p["is_pinned"] for p in both] == [True, True]
    assert octavo("cache", "pin", ids[0], "--off", "--kv-disk", str(kv)).code == 0
    by_id = {str(p["prefix_id"])[:12]: p["is_pinned"] for p in listed(octavo, kv)}
    assert by_id == {ids[0]: False, ids[1]: True}
    assert octavo("cache", "rm", ids[0], "--kv-disk", str(kv)).code == 0
    assert [str(p["prefix_id"])[:12] for p in listed(octavo, kv)] == [ids[1]]
    assert octavo("cache", "rm", "--model", "nobody", "--kv-disk", str(kv)).code == 0
    assert len(listed(octavo, kv)) == 1
    assert octavo("cache", "rm", "--all", "--kv-disk", str(kv)).code == 0
    assert listed(octavo, kv) == []


def test_warming_with_a_small_quota_keeps_what_is_there(
    octavo: Octavo, tiny: str, text: Path, tmp_path: Path
) -> None:
    kv, other = tmp_path / "kv", tmp_path / "other.txt"
    other.write_text("another text, of which one block is more than there is room for")
    assert octavo("cache", "warm", tiny, str(text), "--kv-disk", str(kv), *FLAGS).code == 0
    before = sum(path.stat().st_size for path in kv.glob("*/*/*.kv"))
    num_before = len(list(kv.glob("*/*/*.kv")))
    small = ("--kv-disk-size", str(before // num_before))
    assert octavo("cache", "warm", tiny, str(other), "--kv-disk", str(kv), *small, *FLAGS).code == 0
    assert len(list(kv.glob("*/*/*.kv"))) >= num_before - 1


def test_what_is_not_there_is_said_in_a_line(octavo: Octavo, tiny: str, tmp_path: Path) -> None:
    kv = tmp_path / "kv"
    for args, code, words in (
        (("ls",), 2, "--kv-disk"),
        (("ls", "--kv-disk", str(kv)), 1, "No such file"),
        (("rm", "--kv-disk", str(tmp_path)), 2, "name one thing"),
        (("rm", "abcd", "--kv-disk", str(tmp_path)), 1, "names none"),
        (("pin", "ab", "--kv-disk", str(tmp_path)), 1, "names none"),
        (("warm", tiny, str(tmp_path / "none.txt")), 2, "--kv-disk"),
    ):
        result = octavo("cache", *args)
        assert (result.code, result.out) == (code, ""), args
        assert words in result.err, args


def test_flags_that_cannot_be_are_wrong_usage(octavo: Octavo, tiny: str, tmp_path: Path) -> None:
    file = tmp_path / "a file"
    file.write_text("x")
    for flags, words in (
        (("--kv-disk", str(file)), "--kv-disk"),
        (("--kv-disk", str(tmp_path / "kv"), "--kv-disk-size", "10"), "holds no block"),
        (("--kv-disk", str(tmp_path), "--no-enable-prefix-caching"), "needs"),
    ):
        result = octavo("run", tiny, "hello", "--max-tokens", "1", *FLAGS, *flags)
        assert result.code == 2, result.err
        assert words in result.err
