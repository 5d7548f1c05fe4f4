"""One short run of an engine as a process of its own; figures in tokens per second by the same names for all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from scripts.proving.commands import octavo_json
from scripts.proving.pairs import Rates
from scripts.proving.rows import ROOT

from octavo.errors import OctavoError

_THREADS = ("--threads", "2")

# What a user would write: no class of ours but LLM, and the clock.
_STRANGER = """
import random, sys, time
from octavo import LLM, SamplingParams
llm = LLM(sys.argv[1], num_threads=2)
params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
for _ in range(2):
    prompts = [[random.randrange(1000, 40000) for _ in range(128)] for _ in range(32)]
    started = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - started
print(32 * 64 / seconds)
"""
_QUANTISE = """
import sys, llama_cpp as llama
params = llama.llama_model_quantize_default_params()
params.ftype, params.nthread, params.allow_requantize = llama.LLAMA_FTYPE_MOSTLY_Q4_0, 2, True
sys.exit(llama.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), params))
"""


class PeerFailed(OctavoError):
    """A peer did not run."""


def peer_python(venv: str) -> Path:
    """The interpreter of a peer's virtual environment; it may not exist."""
    return Path(os.environ.get("OCTAVO_PEERS", "/nonexistent")) / venv / "bin" / "python"


def octavo_rates(path: Path, *flags: str) -> Rates:
    """`octavo bench engine`, one timed round after one that is not; "share 1" is of the limit at batch 1."""
    report = octavo_json("bench", "engine", path, *_THREADS, "--repeat", "1", *flags)
    rates = rates_of(report)
    if report["limits"] is not None and "1" in report["decode"]:
        rates["share 1"] = report["limits"]["shares"]["decode"]["1"]["share"]
    return rates


def llama_rates(python: Path, path: Path, *flags: str) -> Rates:
    """llama.cpp, batch 1 and 32."""
    script = _script("llama_cpp_bench.py")
    return rates_of(_peer_json(python, script, path, "--batch", "1,32", "--repeat", "1", *flags))


def openvino_rates(path: Path) -> Rates:
    """OpenVINO GenAI, the better of two rounds: it compiles in the first."""
    python, script = peer_python("ov"), _script("openvino_bench.py")
    with tempfile.TemporaryDirectory() as folder:
        named = Path(folder) / "model.gguf"  # files of the store have no suffix, and it needs one
        named.symlink_to(path.resolve())
        return rates_of(_peer_json(python, script, named, "--batch", "32", "--repeat", "2"))


def outside_rates(path: Path) -> Rates:
    """`LLM.generate` of 32 requests of 128 random ids + 64, by a stopwatch."""
    done = subprocess.run(
        [sys.executable, "-c", _STRANGER, str(path)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return {"mixed 32": float(done.stdout.split()[-1])}


def rates_of(report: dict[str, Any]) -> dict[str, float]:
    """ "prefill", "decode 1", "mixed 32" ... of a report of ours or of a peer's script."""
    rates = {"prefill": report["prefill"]} if "prefill" in report else {}
    for kind in ("decode", "mixed"):
        rates |= {f"{kind} {batch}": rate for batch, rate in report.get(kind, {}).items()}
    return rates


def requantised(python: Path, source: Path, target: Path) -> Path:
    """Write `source` as Q4_0 with llama.cpp. Raises: PeerFailed."""
    _peer(python, "-c", _QUANTISE, source, target)
    return target


def _script(name: str) -> Path:
    folder = os.environ.get("OCTAVO_PEER_SCRIPTS")
    path = (Path(folder) if folder else ROOT.parent / "shared" / "peers") / name
    if not path.exists():
        raise PeerFailed(f"no {name}: set OCTAVO_PEER_SCRIPTS")
    return path


def _peer_json(python: Path, script: Path, path: Path, *flags: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(
        _peer(python, script, path, *_THREADS, *flags).splitlines()[-1]
    )
    return report


def _peer(python: Path, *arguments: str | Path) -> str:
    """Standard output. Our own PYTHONPATH is no business of a peer's."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [str(python), *map(str, arguments)], capture_output=True, text=True, env=environment, check=False
    )  # fmt: skip
    if done.returncode:
        if done.returncode < 0:
            raise PeerFailed(f"ended by {signal.Signals(-done.returncode).name}")
        raise PeerFailed((done.stderr.strip().splitlines() or ["no output"])[-1][:80])
    return done.stdout
