"""Verbs, exit codes, help: what scripts and newcomers see first."""

from __future__ import annotations

import subprocess
import sys

import pytest

from octavo import __version__
from octavo.cli.verbs import VERBS
from tests.unit.cli.conftest import Octavo

REFERENCE = ("--backend", "reference", "--ctx", "64", "--temperature", "0")


def test_version_and_help_go_to_standard_output(octavo: Octavo) -> None:
    assert octavo("--version") == (0, f"{__version__}\n", "")
    code, out, err = octavo("--help")
    assert (code, err) == (0, "")
    assert all(name in out and verb.summary in out for name, verb in VERBS.items())


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_each_verb_has_an_example(octavo: Octavo, verb: str) -> None:
    code, out, err = octavo(verb, "--help")
    assert (code, err) == (0, "")
    assert f"Example: octavo {verb}" in out


def test_help_spells_values_as_users_write_them(octavo: Octavo) -> None:
    out = octavo("run", "--help").out
    for text in (
        "--kv-cache-memory-bytes SIZE",
        "--logit-bias JSON",
        "int8/int4 or int4",
        "--strict-memory",
        "--threads",
    ):
        assert text in out
    assert "--no-ignore-eos" not in out
    assert "default: ()" not in out
    assert " --n " not in out


def test_an_unknown_verb_is_wrong_usage_with_a_guess(octavo: Octavo) -> None:
    code, out, err = octavo("lst")
    assert (code, out) == (2, "")
    assert err == "octavo: unknown verb 'lst': did you mean list?\nTry 'octavo --help'.\n"


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("run",), "MODEL"),
        (("run", "m", "a", "b"), "'b' is left over"),
        (("run", "m", "a", "--temperature", "hot"), '"hot"'),
        (("run", "m", "a", "--temperature", "-3"), "--temperature must be between 0.0 and 100.0"),
        (("run", "m", "a", "--min-tokens", "9", "--max-tokens", "2"), "--min-tokens 9"),
        (("run", "m", "a", "--seed", "5.5"), "'5.5' is not a whole number"),
        (("run", "m", "a", "--temprature", "1"), "Did you mean --temperature?"),
        (("run", "m", "a", "--logit-bias", "[1]"), "JSON object"),
        (("run", "m", "a", "--kv-cache-memory-bytes", "12zz"), "512MiB"),
        (("run", "m", "a", "--kv-cache-dtype", "f8"), '"f16"'),
        (("run", "m", "a", "--kv-cache-dtype", "int1"), '"int8/int4"'),
        (("run", "m", "a", "--raw", "--system", "b"), "--system"),
        (("perplexity", "m", "f", "--ctx", "2"), "--ctx"),
        (("list", "--log-level", "silly"), "DEBUG, INFO, WARNING, ERROR"),
    ],
)
def test_wrong_usage_ends_with_2_and_two_lines(
    octavo: Octavo, args: tuple[str, ...], expected: str
) -> None:
    code, out, err = octavo(*args)
    assert (code, out) == (2, "")
    assert expected in err
    assert err.splitlines()[1:] == [f"Try 'octavo {args[0]} --help'."]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--ctx", "-1"), "--max-model-len must be at least 2"),
        (("--max-num-seqs", "0"), "--max-num-seqs must be at least 1"),
        (("--chat-template", "nowhere"), "'nowhere'"),
    ],
)
def test_a_flag_that_the_engine_refuses_is_wrong_usage_too(
    octavo: Octavo, tiny: str, flags: tuple[str, ...], expected: str
) -> None:
    code, out, err = octavo("run", tiny, "a", "--backend", "reference", *flags)
    assert (code, out) == (2, "")
    assert expected in err


def test_what_cannot_be_done_ends_with_1_and_one_line(octavo: Octavo, tiny: str) -> None:
    for args, expected in (
        (("show", "nowhere.gguf"), "no file nowhere.gguf"),
        (("run", "smolm2", "a"), "did you mean smollm2"),
        (("run", tiny, ""), "the prompt is empty"),
        (("run", tiny, "a" * 100, *REFERENCE), "64 tokens"),
        (("perplexity", tiny, "nowhere.txt"), "nowhere.txt"),
        (("perplexity", tiny, tiny), "not a UTF-8 text"),
    ):
        code, out, err = octavo(*args)
        assert (code, out) == (1, ""), args
        assert expected in err
        assert len(err.splitlines()) == 1


def test_a_context_beyond_the_memory_ends_with_4(octavo: Octavo, tiny: str) -> None:
    code, _, err = octavo("run", tiny, "a", "--ctx", "1000000000", "--backend", "reference")
    assert code == 4
    assert "1000000000 tokens" in err


def test_run_prints_the_answer_only(octavo: Octavo, tiny: str) -> None:
    code, out, err = octavo("run", tiny, "Hi", "--max-tokens", "3", *REFERENCE)
    assert code == 0
    assert out.endswith("\n")
    assert err == ""
    assert octavo("run", tiny, "--max-tokens", "3", *REFERENCE, stdin=b"Hi\n").out == out


def test_the_log_goes_to_standard_error_when_asked_for(octavo: Octavo, tiny: str) -> None:
    quiet = octavo("run", tiny, "Hi", "--max-tokens", "1", *REFERENCE)
    told = octavo("--log-level", "info", "run", tiny, "Hi", "--max-tokens", "1", *REFERENCE)
    assert told.out == quiet.out
    assert "octavo: INFO: tiny ready in" in told.err


def test_standard_input_that_is_no_text_is_refused(octavo: Octavo, tiny: str) -> None:
    code, _, err = octavo("run", tiny, stdin=b"ab\xffc")
    assert (code, err) == (1, "octavo: standard input is not UTF-8: see byte 2\n")


def test_a_reader_that_leaves_is_no_error_message() -> None:
    command = [sys.executable, "-m", "octavo", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""


@pytest.mark.parametrize(
    ("verb", "unwanted"),
    [
        ("--version", ("numpy", "rich.progress", "httpx", "jinja2", "tokenizers", "asyncio")),
        ("list", ("numpy", "rich.progress", "httpx", "jinja2", "tokenizers", "octavo.api.llm")),
    ],
)
def test_light_verbs_load_nothing_heavy(verb: str, unwanted: tuple[str, ...]) -> None:
    code = (
        "import sys\nfrom octavo.cli.main import main\ntry:\n    main([sys.argv[1]])\n"
        "except SystemExit:\n    pass\nprint(*sys.modules, sep='\\n', file=sys.stderr)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, verb], capture_output=True, text=True, check=True
    )
    assert not {*ended.stderr.splitlines()} & {*unwanted}
