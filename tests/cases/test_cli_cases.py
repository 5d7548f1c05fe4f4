"""Cases CLI-01, 03, 06 and 07, and GGF-01 and 02 as a user of the command line meets them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import termios
import time
from pathlib import Path

import pytest

from octavo import __version__
from tests.cases.octavo_process import (
    Terminal,
    finish,
    is_refused,
    run,
    run_confined,
    served,
    start,
)
from tests.tiny_models import tiny_source, write_gguf

LONG = ("run", "--raw", "--ignore-eos", "--max-tokens", "4000")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound small file."""
    return write_gguf(tiny_source("llama"), tmp_path_factory.mktemp("cli") / "tiny.gguf")


# ---- CLI-01 ----


def test_cli_01_a_missing_file_is_named() -> None:
    for verb in ("serve", "show", "run"):
        assert is_refused(run(verb, "./nope.gguf"), "./nope.gguf")


def test_cli_01_a_port_in_use_is_named(smollm2_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, out, err = run("serve", smollm2_path, "--port", port)
    assert (code, out) == (5, "")
    assert len(err.splitlines()) == 1
    assert f"port {port}" in err


def test_cli_01_wrong_usage_is_explained(smollm2_path: Path) -> None:
    for args, word in (
        (("serve", smollm2_path, "--port", "99999"), "99999"),
        (("run", smollm2_path, "--temperature", "hot"), "hot"),
        (("frobnicate",), "frobnicate"),
    ):
        ended = run(*args)
        assert is_refused(ended, word)
        assert ended[0] == 2


def test_cli_01_help_and_version_are_no_errors() -> None:
    assert run("--version") == (0, f"{__version__}\n", "")
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    assert "perplexity" in out


# ---- CLI-03 ----


def interrupt(process: subprocess.Popen[bytes], times: int) -> tuple[int, str, str]:
    """Press Ctrl-C and wait at most 2 s for the end; nobody of its process group may live on."""
    for _ in range(times):
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    ended = finish(process, 2)
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    return ended


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("verb", ["run", "serve"])
def test_cli_03_ctrl_c_while_loading_ends_with_130(
    smollm2_path: Path, verb: str, times: int
) -> None:
    args = ("run", smollm2_path, "Hi") if verb == "run" else ("serve", smollm2_path, "--port", "0")
    with start(*args, "--log-level", "INFO") as process:
        assert process.stderr is not None
        process.stderr.readline()  # of the model's header: its weights come next
        code, out, err = interrupt(process, times)
    assert (code, out) == (130, "")
    assert "Traceback" not in err


@pytest.mark.parametrize("times", [1, 2])
def test_cli_03_ctrl_c_during_an_answer_ends_with_130(smollm2_path: Path, times: int) -> None:
    with start(*LONG, smollm2_path, "Once") as process:
        assert process.stdout is not None
        os.read(process.stdout.fileno(), 1)
        code, _, err = interrupt(process, times)
    assert (code, err) == (130, "")


def test_cli_03_ctrl_c_in_a_chat_ends_the_answer_and_not_the_chat(smollm2_path: Path) -> None:
    terminal = Terminal("run", smollm2_path, "--temperature", "0", "--ignore-eos")
    try:
        assert ">>> " in terminal.read_until([">>> "])
        before = termios.tcgetattr(terminal.fd)
        terminal.type("Tell a long story about a dragon.\n")
        assert "dragon" in terminal.read_until(["dragon.\r\n"])  # the terminal's echo
        assert terminal.read_until([" "]), "the answer has begun"
        pressed = time.monotonic()
        terminal.type("\x03")
        assert ">>> " in terminal.read_until([">>> "], timeout_s=2)
        assert time.monotonic() - pressed < 2
        assert termios.tcgetattr(terminal.fd) == before
        # The line editor sets the terminal up after its prompt, and drops what was typed before.
        time.sleep(0.2)
        terminal.type("\x03")
        assert "Ctrl-D leaves" in terminal.read_until(["leaves)"])
        terminal.type("/exit\n")
        terminal.read_until([])
    finally:
        code = terminal.wait()
    assert code == 0


# ---- CLI-06 ----


SMOLLM2 = {
    "architecture": "llama",
    "num_parameters": 134515008,
    "num_layers": 30,
    "hidden_size": 576,
    "num_heads": 9,
    "num_kv_heads": 3,
    "context_length": 8192,
    "vocab_size": 49152,
    "quantization": "Q4_1",
    "tokenizer_model": "gpt2",
    "tokenizer_pre": "smollm",
    "has_chat_template": True,
}
GEMMA3 = {
    "architecture": "gemma3",
    "num_parameters": 268098176,
    "num_layers": 18,
    "hidden_size": 640,
    "num_heads": 4,
    "num_kv_heads": 1,
    "head_dim": 256,
    "sliding_window": 512,
    "context_length": 32768,
    "quantization": "Q4_K_M",
    "has_chat_template": False,
}


@pytest.mark.parametrize(
    ("model", "expected"), [("smollm2_path", SMOLLM2), ("gemma3_path", GEMMA3)]
)
def test_cli_06_show_tells_the_facts_of_a_model(
    model: str, expected: dict[str, object], request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(model)
    code, out, err = run("show", path, "--json")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert {key: facts[key] for key in expected} == expected
    text = dict(line.split(maxsplit=1) for line in run("show", path)[1].splitlines())
    assert {key: text[key] for key in expected} == {k: str(v) for k, v in expected.items()}


# ---- CLI-07 ----


def test_cli_07_a_context_beyond_the_trained_one_is_warned_of(smollm2_path: Path) -> None:
    with served(smollm2_path, "--ctx", "16384") as log:
        assert "WARNING" in log
        assert "8192" in log
        assert "context 16384" in log


def test_cli_07_context_0_is_the_trained_one(smollm2_path: Path) -> None:
    with served(smollm2_path, "--ctx", "0") as log:
        assert "WARNING" not in log
        assert "context 8192" in log


@pytest.mark.parametrize("ctx", ["-1", "1"])
def test_cli_07_a_context_that_holds_nothing_is_wrong_usage(smollm2_path: Path, ctx: str) -> None:
    ended = run("serve", smollm2_path, "--ctx", ctx)
    assert is_refused(ended, "--max-model-len", ctx)
    assert ended[0] == 2


def test_cli_07_a_context_beyond_the_memory_is_refused_with_numbers(smollm2_path: Path) -> None:
    ended = run("serve", smollm2_path, "--ctx", "100000000")
    assert is_refused(ended, "100000000", "KV cache", "--max-model-len")
    assert ended[0] == 4


# ---- GGF-01, GGF-02 ----

NO_MODELS = {
    "magic": (b"GGUX" + bytes(100), "b'GGUX'"),
    "empty": (b"", "empty"),
    "three bytes": (b"GGU", "3 bytes"),
    "web page": (b"<!DOCTYPE html>\n<html><head></head></html>", "web page"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
}


@pytest.mark.parametrize("kind", NO_MODELS)
def test_ggf_01_what_is_no_model_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    content, word = NO_MODELS[kind]
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    for verb in ("show", "serve") if kind == "magic" else ("show",):
        assert is_refused(run_confined(verb, path), str(path), word)


def test_ggf_01_a_folder_is_no_model(tmp_path: Path) -> None:
    for verb in ("show", "serve"):
        assert is_refused(run_confined(verb, tmp_path), str(tmp_path), "folder")


@pytest.mark.parametrize("cut", ["header", "keys", "tensor list", "tail", "byte"])
def test_ggf_02_a_cut_file_is_refused_with_the_reason(tmp_path: Path, tiny: Path, cut: str) -> None:
    data = tiny.read_bytes()
    names = data.index(b"token_embd.weight")
    ends = {
        "header": 20,
        "keys": 200,
        "tensor list": names + 10,
        "tail": len(data) - 4096,
        "byte": len(data) - 1,
    }
    path = tmp_path / "cut.gguf"
    path.write_bytes(data[: ends[cut]])
    for verb in ("show", "serve") if cut == "byte" else ("show",):
        ended = run_confined(verb, path)
        assert is_refused(ended, str(path))
        assert "truncated" in ended[2] or "incomplete" in ended[2], ended[2]
