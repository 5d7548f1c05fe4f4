"""`octavo keys`: a file of API keys, made and changed."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from octavo.server.keys import KeyRing, read_keys
from tests.unit.cli.conftest import Octavo

BY_HAND = """# keys of the house

# for the night shift
[[keys]]
name = "night"  # [[keys]]
key = "night-0123456789abcdef"

[[keys]]
name = "day"
sha256 = "%s"
max_tokens = 10
""" % ("ab" * 32)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


def test_a_key_is_printed_once_and_opens_the_server(octavo: Octavo, file: Path) -> None:
    code, out, err = octavo("keys", "add", "--file", str(file), "--tenant", "research")
    assert code == 0, err
    key = out.strip()
    assert len(key) > 40
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert key not in file.read_text() + err
    caller = KeyRing(read_keys(file)).find(key)
    assert caller is not None
    assert (caller.entry.name, caller.tenant) == ("research", "research")


def test_limits_are_noted_and_listed(octavo: Octavo, file: Path) -> None:
    limits = (
        "--requests-per-minute",
        "60",
        "--max-tokens",
        "9",
        "--priority-floor",
        "-2",
        "--is-admin",
    )
    for more in (limits, (), ("--name", "other")):
        assert octavo("keys", "add", "--file", str(file), "--tenant", "t", *more).code == 0
    keys = json.loads(octavo("keys", "ls", "--file", str(file), "--json").out)["keys"]
    assert [(key["name"], key["tenant"]) for key in keys] == [
        ("t", "t"),
        ("t-2", "t"),
        ("other", "t"),
    ]
    assert {k: v for k, v in keys[0].items() if k not in ("name", "tenant", "sha256")} == {
        "requests_per_minute": 60,
        "max_tokens": 9,
        "priority_floor": -2,
        "is_admin": True,
    }
    lines = octavo("keys", "ls", "--file", str(file)).out.splitlines()
    assert len(lines) == 3
    assert "requests_per_minute 60, max_tokens 9, priority_floor -2, is_admin" in lines[0]


def test_what_people_wrote_stays(octavo: Octavo, file: Path) -> None:
    file.write_text(BY_HAND)
    file.chmod(0o640)
    assert octavo("keys", "add", "--file", str(file), "--tenant", "new").code == 0
    assert file.read_text().startswith(BY_HAND)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    shown = octavo("keys", "ls", "--file", str(file)).out
    assert "night-0123456789abcdef" not in shown
    for name in ("new", "day"):
        assert octavo("keys", "rm", name, "--file", str(file)).code == 0
    assert (
        file.read_text().rstrip() == BY_HAND[: BY_HAND.index('\n[[keys]]\nname = "day"')].rstrip()
    )
    code, _, err = octavo("keys", "rm", "night", "--file", str(file))
    assert (code, "no key is left" in err) == (0, True)
    assert file.read_text() == "# keys of the house\n\n"
    assert octavo("keys", "add", "--file", str(file), "--tenant", "new").code == 0


@pytest.mark.parametrize(
    ("text", "args", "word"),
    [
        (BY_HAND, ("add", "--tenant", "x", "--name", "day"), "already"),
        (BY_HAND, ("add", "--tenant", "a b"), "letters"),
        (BY_HAND, ("add", "--tenant", "x", "--max-tokens", "0"), "at least 1"),
        (BY_HAND, ("rm", "nobody"), "night, day"),
        ("keys = [{name = 'a', key = '0123456789abcdef'}]", ("rm", "a"), "author"),
        ("keys = [{name = 'a', key = '0123456789abcdef'}]", ("add", "--tenant", "x"), "author"),
        ("nonsense", ("ls",), "TOML"),
        (None, ("ls",), "keys.toml"),
    ],
)
def test_what_cannot_be_done_changes_nothing(
    octavo: Octavo, file: Path, text: str | None, args: tuple[str, ...], word: str
) -> None:
    if text is not None:
        file.write_text(text)
    code, out, err = octavo("keys", *args, "--file", str(file))
    assert code in (1, 2)
    assert out == ""
    assert word in err
    assert "0123456789abcdef" not in err
    assert (file.read_text() if file.exists() else None) == text
    assert not file.exists() or [file] == list(file.parent.glob("keys.toml*"))
