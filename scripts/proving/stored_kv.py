"""Keys and values in smaller types, and on disk."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from scripts.proving.rows import SMALL, Paths, Row, on_quiet, quiet_bar, suite_row
from tests.e2e import serving
from tests.e2e.test_disk_tier import killed_server

from octavo import LLM
from octavo.api.perplexity import measure_perplexity
from octavo.dtypes import KV_DTYPE_BY_NAME, KVDType
from octavo.kv_layout import KVLayout

_GPL_3 = Path("/usr/share/common-licenses/GPL-3")
_LEAST_GAIN = {"int8": 1.9, "fp8": 1.9, "int8/int4": 2.4, "int4": 3.5}
_MOST_PERCENT = {
    "smollm2": {"int8": 0.5, "fp8": 1.0, "int8/int4": 2.5},
    "gemma3:270m": {"int8": 1.0, "fp8": 1.0, "int8/int4": 3.0},
}
_NUM_WINDOWS = 4 if SMALL else 8
_NUM_RULES = 30 if SMALL else 120


def kv_types(paths: Paths) -> Iterator[Row]:
    """Tokens in the same bytes, a count; and what they cost, in perplexity."""
    plain = KVLayout(num_layers=30, num_kv_heads=3, head_dim=64, dtype=KVDType.F16)
    for name, least in _LEAST_GAIN.items():
        layout = replace(plain, dtype=KV_DTYPE_BY_NAME[name])
        gain = plain.block_bytes / layout.block_bytes
        yield Row(
            f"tokens in the same bytes, heads of 64, {name} / f16",
            f"{gain:.2f}",
            f">= {least}",
            gain >= least,
        )
    for model in ("smollm2",) if SMALL else tuple(paths):
        full = _perplexity(paths[model], "f16")
        for name in ("int8", "fp8", "int8/int4", "int4"):
            cost = 100 * (_perplexity(paths[model], name) / full - 1)
            most = _MOST_PERCENT[model].get(name)
            yield Row(
                f"perplexity of {model}, GPL-3, {_NUM_WINDOWS} x 512, {name} / f16",
                f"{cost:+.2f} %",
                "none" if most is None else f"<= +{most} %",
                True if most is None else cost <= most,
            )


def _perplexity(path: Path, dtype: str) -> float:
    with LLM(str(path), max_model_len=512, kv_cache_dtype=dtype, num_threads=2) as llm:
        text = _GPL_3.read_text()
        return measure_perplexity(llm, text, ctx=512, max_windows=_NUM_WINDOWS).perplexity


def disk_restart(paths: Paths) -> Iterator[Row]:
    """The same bits from disk, for every KV type; the time to the first token, cold and after `kill -9`."""
    yield suite_row(
        "restart from disk, every KV type, llama and gemma3: ids and log-probabilities",
        "the same bits",
        "tests/engine/test_disk_restart.py",
    )
    cold_s, warm_s, texts, cached = [], [], set(), 0
    for i in range(1 if SMALL else 3):
        rules = (
            f"Rule {i}.{j}: number {j * 37 % 101} goes to room {j * 13 % 29}."
            for j in range(_NUM_RULES)
        )
        prompt = " ".join(rules)
        with tempfile.TemporaryDirectory() as folder:
            flags = (
                "--kv-disk",
                folder,
                "--kv-disk-size",
                "1GiB",
                "--ctx",
                "4096",
                "--threads",
                "2",
            )
            for times in (cold_s, warm_s):
                with killed_server(paths["smollm2"], *flags) as url:
                    seconds, text, cached = _first_token(url, prompt)
                    times.append(seconds)
                    texts.add((i, text))
                    time.sleep(2)
    ratio = statistics.median(cold_s) / statistics.median(warm_s)
    bar = 5
    yield Row(
        f"smollm2, long prompt, first token cold : after kill -9 and restart ({cached} tokens from disk)",
        f"{1000 * statistics.median(cold_s):.0f} : {1000 * statistics.median(warm_s):.0f} ms = {ratio:.1f}x",
        quiet_bar(f">= {bar}x"),
        on_quiet(ratio >= bar),
        {"cold": cold_s, "warm": warm_s},
    )
    yield Row(
        "the same text from disk as cold, tokens found",
        f"{len(texts)} texts of {len(cold_s)} prompts, {cached} tokens",
        "one each, > 0 tokens",
        len(texts) == len(cold_s) and cached > 0,
    )


def _first_token(url: str, prompt: str) -> tuple[float, str, int]:
    with serving.client(url) as api:
        # Loading the model's pages, and the first step's, is not the prompt's time.
        api.completions.create(model="m", prompt="Hi", max_tokens=1)
        started = time.perf_counter()
        got = api.completions.create(model="m", prompt=prompt, temperature=0, max_tokens=1)
        seconds = time.perf_counter() - started
    assert got.usage is not None
    details = got.usage.prompt_tokens_details
    return seconds, got.choices[0].text, (details.cached_tokens or 0) if details else 0
