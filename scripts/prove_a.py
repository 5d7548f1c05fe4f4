"""Measures every promise of the first milestone and prints a row for each: what, measured, bar, ok.

    make prove-A            everything (about ten minutes)
    SMALL=1 make prove-A    a short version: fewer prompts and steps, the same bars

Needs the `dev` extra; vectors through OCTAVO_TEST_DATA; models through the store. Exit code 1 if a row is not ok.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("PYTHONPATH", str(ROOT))

from scripts.proving.rows import SMALL, Row, print_rows, pytest_row, suite_row  # noqa: E402
from tests.e2e import measures, serving  # noqa: E402

from octavo import LLM  # noqa: E402
from octavo.api.models import resolve_model  # noqa: E402
from octavo.api.perplexity import measure_perplexity  # noqa: E402

GPL_3 = Path("/usr/share/common-licenses/GPL-3")
MODELS = {"smollm2": (18.33, 18.52), "gemma3:270m": (15.00, 15.15)}


def main() -> int:
    """Print the rows as they come."""
    paths = {name: resolve_model(name) for name in MODELS}
    sections = (
        readme,
        perplexity,
        vectors,
        products,
        exactness,
        serving_rows,
        cycles,
        start,
        cases,
    )
    return print_rows(sections, paths)


def readme(paths: dict[str, Path]) -> Iterator[Row]:
    """The README's two commands, each in a fresh copy of the tree."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    for what, command in zip(
        ("README: answer a prompt", "README: run the tests"), blocks, strict=False
    ):
        if SMALL:
            yield Row(what, "run by CI before this", "exit code 0", None)
            continue
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "octavo"
            ignored = shutil.ignore_patterns(".venv*", "build", "*.so", ".git", "__pycache__")
            shutil.copytree(ROOT, copy, ignore=ignored)
            environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
            started = time.monotonic()
            done = subprocess.run(
                ["bash", "-euc", command], cwd=copy, env=environment, capture_output=True, text=True
            )
            last = (done.stdout.strip().splitlines() or [""])[-1][:28]
            measured = f"{time.monotonic() - started:.0f} s: {last}"
            yield Row(what, measured, "exit code 0", done.returncode == 0)


def perplexity(paths: dict[str, Path]) -> Iterator[Row]:
    """GPL-3, 8 windows of 512."""
    for name, (exact, bar) in MODELS.items():
        with LLM(str(paths[name]), max_model_len=512) as llm:
            got = measure_perplexity(llm, GPL_3.read_text(), ctx=512, max_windows=8)
        what = f"perplexity of {name}, GPL-3, 8 x 512"
        yield Row(what, f"{got.perplexity:.3f} ({got.num_tokens} tokens)", f"<= {bar} (exact {exact})",
                  got.perplexity <= bar and got.num_tokens == 2048)  # fmt: skip


def vectors(paths: dict[str, Path]) -> Iterator[Row]:
    """Greedy vectors and reference logprobs."""
    data = Path(os.environ.get("OCTAVO_TEST_DATA", "/nonexistent"))
    if not data.exists():
        yield Row("greedy vectors, reference logprobs", "OCTAVO_TEST_DATA is not set", "", None)
        return
    for name in MODELS:
        with LLM(str(paths[name]), max_model_len=1024) as llm:
            greedy = measures.greedy_agreement(
                llm, measures.records(data / "greedy_vectors.jsonl", name)
            )
            yield Row(f"greedy vectors of {name}", f"{greedy.num_agreeing}/{greedy.num_vectors} vectors, {greedy.num_steps} steps",
                      f"a difference only where gap <= {measures.MAX_GAP}", not greedy.failures)  # fmt: skip
            for record in measures.records(data / "reference_logprobs.jsonl", name):
                yield _logprob_row(name, record["name"], measures.logprob_agreement(llm, record))


def _logprob_row(name: str, text: str, got: measures.LogprobAgreement) -> Row:
    measured = f"mean {got.mean:.3f}, mean diff {got.mean_difference:.3f}, max {got.largest_difference:.2f}"
    what = f"prompt logprobs of {name}, '{text}'"
    if text == "lighthouse":
        centre = -3.36 if "gemma" in name else -3.57
        ok = abs(got.mean - centre) <= 0.05 and got.largest_difference <= 0.6
        return Row(
            what,
            measured,
            f"{centre} +- 0.05, diff <= 0.12, max 0.6",
            ok and got.mean_difference <= 0.12,
        )
    if "gemma" in name:
        measured = (
            ", ".join(f"{k}: {v:.3f}" for k, v in got.mean_of.items())
            + f"; diff {got.mean_difference:.3f}"
        )
        wanted = {"1-99": (-3.36, 0.06), "200-499": (-3.15, 0.05), "600-899": (-2.97, 0.05)}
        ok = all(abs(got.mean_of[k] - v) <= tolerance for k, (v, tolerance) in wanted.items())
        return Row(
            what,
            measured,
            "-3.36+-.06 -3.15+-.05 -2.97+-.05, .12",
            ok and got.mean_difference <= 0.12,
        )
    return Row(what, measured, "mean diff <= 0.12", got.mean_difference <= 0.12)


def products(paths: dict[str, Path]) -> Iterator[Row]:
    """Native products against float64 and chi-square of the samplers: the op tests hold the bars."""
    yield pytest_row(
        "native products per type, extremes included",
        "within 1 % of float64",
        "tests/ops",
        "-k",
        "product or linear",
    )
    yield pytest_row(
        "20,000 draws per sampler against reference", "chi-square", "tests/ops", "-k", "20_000"
    )


def exactness(paths: dict[str, Path]) -> Iterator[Row]:
    """Bit-equal ids."""
    num_prompts, max_tokens = (8, 24) if SMALL else (32, 32)
    for name in ("smollm2",) if SMALL else MODELS:
        for is_seeded in (False, True):
            variants = measures.exactness_variants(
                paths[name], num_prompts, max_tokens, is_seeded=is_seeded
            )
            for variant, num_different, note in variants:
                measured = f"{num_different} of {num_prompts} differ" + (
                    f" ({note})" if note else ""
                )
                kind = "seeded" if is_seeded else "greedy"
                what = f"{kind} ids, {name}: {variant} = each alone"
                yield Row(what, measured, "0 differ", num_different == 0)


def serving_rows(paths: dict[str, Path]) -> Iterator[Row]:
    """Streaming with the official client, in a real server process."""
    with serving.server(paths["smollm2"]) as url:
        text, whole, num_chunks = serving.stream_and_whole(url)
        yield Row(
            "official openai client: stream = whole answer",
            f"{num_chunks} chunks, {len(text)} characters",
            "equal",
            text == whole,
        )
        got = serving.concurrent_streams(url, 32)
        yield Row(
            "32 concurrent streams",
            f"{got.num_complete} complete, {got.num_equal} equal to the answer alone",
            "32, 32",
            got.num_complete == got.num_equal == 32,
        )
        left = serving.disconnect(url)
        measured = f"{left.num_blocks_held} held; {left.num_tokens_after} more tokens, none held after {left.freed_after_s * 1000:.0f} ms"
        # One token may be under way when the client leaves, one when the server hears of it, one when it is asked.
        yield Row(
            "a client that disconnects frees its blocks",
            measured,
            "<= 3 more tokens, 0 blocks held",
            left.num_tokens_after <= 3 and left.freed_after_s < 5,
        )


def cycles(paths: dict[str, Path]) -> Iterator[Row]:
    """Random add/finish/abort cycles."""
    yield pytest_row(
        "1000 random add/finish/abort cycles",
        "all blocks free, counts zero",
        "tests/engine",
        "-k",
        "cycles",
    )


def start(paths: dict[str, Path]) -> Iterator[Row]:
    """Import time, cold start, memory."""
    seconds = [
        _timed([sys.executable, "-c", "import octavo"]) - _timed([sys.executable, "-c", "pass"])
        for _ in range(5)
    ]
    median = statistics.median(seconds)
    yield Row("import octavo", f"{median:.3f} s (median of 5)", "< 0.3 s", median < 0.3)
    for name, path in paths.items():
        runs = [serving.cold_start(name) for _ in range(3 if SMALL else 5)]
        first_s = statistics.median(run.first_token_s for run in runs)
        if name == "smollm2":
            yield Row(
                f'octavo run {name} "Hi": process start to first token',
                f"{first_s:.2f} s (median of {len(runs)})",
                "< 1.5 s",
                first_s < 1.5,
            )
        peak, limit = max(run.peak_bytes for run in runs), 2.2 * path.stat().st_size + 300e6
        yield Row(
            f"VmHWM of that command, {name}",
            f"{peak / 1e6:.0f} MB",
            f"<= {limit / 1e6:.0f} MB",
            peak <= limit,
        )


def cases(paths: dict[str, Path]) -> Iterator[Row]:
    """The black-box cases, as tests."""
    yield suite_row("cases of the areas of this milestone, bad input", "all pass", "tests/cases")


def _timed(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
