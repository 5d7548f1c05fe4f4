"""Against other engines on the same machine in the same minutes: each run a short process of its own, in turn."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.proving.commands import octavo_json
from scripts.proving.loaded import Loaded
from scripts.proving.pairs import alternate, compared, ratio_of_medians
from scripts.proving.peer_runs import (
    PeerFailed,
    llama_rates,
    octavo_rates,
    openvino_rates,
    outside_rates,
    peer_python,
    requantised,
)
from scripts.proving.rows import SMALL, Paths, Row, skipped

Readings = dict[str, dict[str, list[float]]]

_SHARE = 0.85
_LARGE_DISK, _LARGE_MEMORY = 4e9, 9e9


@dataclass(frozen=True)
class Bars:
    """Least ratios to a peer. `or_share`: batch 1 may instead reach its share of the bandwidth limit."""

    prefill: float
    decode_1: float
    decode_32: float
    or_share: bool = True

    @property
    def mixed_32(self) -> float:
        """Prompts and decoding together: no less than the weaker of the two."""
        return min(self.prefill, self.decode_32)


def peers(paths: Paths) -> Iterator[Row]:
    """llama.cpp on the three files, OpenVINO on the one it loads; from inside, and by a stranger's stopwatch."""
    yield from _against("llama", "smollm2 Q4_1", paths["smollm2"], Bars(6.0, 2.8, 8.0))
    with _q4_0(paths["smollm2"]) as (path, why):
        if path is None:
            yield skipped("smollm2 Q4_0: llama.cpp", why)
        else:
            yield from _against("llama", "smollm2 Q4_0", path, Bars(2.5, 2.8, 4.5))
    yield from _against("llama", "gemma3 Q4_K_M", paths["gemma3:270m"], Bars(3.5, 1.7, 4.5))


def openvino(paths: Paths) -> Iterator[Row]:
    """OpenVINO GenAI, mixed batch 32."""
    what, bar = "smollm2 Q4_1: OpenVINO GenAI, mixed 32", ">= 1.3x"
    why = _why_not("ov")
    if why is not None:
        yield skipped(what, why, bar)
        return
    path = paths["smollm2"]
    runs = {
        "ours": functools.partial(octavo_rates, path, "--batch", "32", "--no-limits"),
        "outside": functools.partial(outside_rates, path),
        "peer": functools.partial(openvino_rates, path),
    }
    try:
        got = alternate(runs)
    except PeerFailed as error:
        yield skipped(what, str(error), bar)
        return
    for name, label in (("ours", what), ("outside", f"{what}, from outside")):
        yield _ratio_row(label, got[name]["mixed 32"], got["peer"]["mixed 32"], 1.3)


def avx2(paths: Paths) -> Iterator[Row]:
    """The AVX2 kernels against llama.cpp built for AVX2, FMA and F16C."""
    bars = Bars(1.5, 1.2, 1.5, or_share=False)
    for label, name in (("smollm2 Q4_1", "smollm2"), ("gemma3 Q4_K_M", "gemma3:270m")):
        yield from _against("llama-avx2", label, paths[name], bars, isa="avx2")


def large(paths: Paths) -> Iterator[Row]:
    """A file of real size."""
    why = _why_not_large()
    if why is not None:
        yield skipped("random 3b Q4_K_M", why)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "random-3b.gguf"
        octavo_json(
            "bench", "make-model", path, "--arch", "llama", "--size", "3b", "--type", "q4_k_m"
        )
        yield _alone_and_together(path)
        yield from _large_rows(path)


def _large_rows(path: Path) -> Iterator[Row]:
    """Few tokens of each request: a run takes minutes as it is."""
    flags, label = ("--gen", "16"), "random 3b Q4_K_M"
    runs = {"ours": functools.partial(octavo_rates, path, "--batch", "1,32", *flags)}
    failed = _why_not("llama")
    if failed is None:
        python = peer_python("llama")
        runs["peer"] = functools.partial(llama_rates, python, path, *flags)
    try:
        got = alternate(runs)
    except PeerFailed as error:
        failed = str(error)
        got = alternate({"ours": runs["ours"]})
    yield _share_row(f"{label}: decode 1, share of read bandwidth", got["ours"]["share 1"])
    for figure, bar in (("decode 1", 1.0), ("prefill", 1.5), ("decode 32", 1.5)):
        what = f"{label}: llama.cpp, {figure}"
        if failed is not None:
            yield skipped(what, failed, f">= {bar}x")
        else:
            yield _ratio_row(what, got["ours"][figure], got["peer"][figure], bar)


def _alone_and_together(path: Path) -> Row:
    num_tokens = 6
    with Loaded(path, max_model_len=512, num_threads=2) as loaded:
        prompts = [loaded.prompts(1, length)[0] for length in (5, 33, 70, 130)]
        together = loaded.decode(prompts, num_tokens).ids
        alone = [loaded.decode([prompt], num_tokens).ids[0] for prompt in prompts]
    num_different = sum(
        a[:num_tokens] != b[:num_tokens] for a, b in zip(alone, together, strict=True)
    )
    measured = f"{num_different} of {len(prompts)} differ"
    return Row(
        "greedy ids, random 3b: all together = each alone", measured, "0 differ", num_different == 0
    )


def _against(
    venv: str, label: str, path: Path, bars: Bars, isa: str | None = None
) -> Iterator[Row]:
    """The rows of one file against one build of llama.cpp."""
    label += f" ({isa})" if isa else ""
    why = _why_not(venv)
    got: Readings = {}
    if why is None:
        flags = ("--isa", isa) if isa else ()
        runs = {
            "ours": functools.partial(octavo_rates, path, "--batch", "1,32", *flags),
            "peer": functools.partial(llama_rates, peer_python(venv), path),
        }
        if isa is None:
            runs["outside"] = functools.partial(outside_rates, path)
        try:
            got = alternate(runs)
        except PeerFailed as error:
            why = str(error)
    if why is not None:
        yield skipped(
            f"{label}: llama.cpp", why, f">= {bars.prefill}x, {bars.decode_1}x, {bars.decode_32}x"
        )
        return
    ours, peer = got["ours"], got["peer"]
    yield _ratio_row(
        f"{label}: llama.cpp, prefill 512", ours["prefill"], peer["prefill"], bars.prefill
    )
    yield _batch_1_row(label, ours, peer["decode 1"], bars)
    yield _ratio_row(
        f"{label}: llama.cpp, decode 32", ours["decode 32"], peer["decode 32"], bars.decode_32
    )
    if isa is None:
        yield _ratio_row(f"{label}: llama.cpp, mixed 32 from outside", got["outside"]["mixed 32"],
                         peer["mixed 32"], bars.mixed_32)  # fmt: skip


def _ratio_row(what: str, ours: Sequence[float], theirs: Sequence[float], bar: float) -> Row:
    return Row(
        what,
        compared(ours, theirs, "tok/s"),
        f">= {bar}x",
        ratio_of_medians(ours, theirs) >= bar,
        {"ours": ours, "peer": theirs},
    )


def _batch_1_row(
    label: str, ours: Mapping[str, Sequence[float]], theirs: Sequence[float], bars: Bars
) -> Row:
    row = _ratio_row(f"{label}: llama.cpp, decode 1", ours["decode 1"], theirs, bars.decode_1)
    share = statistics.median(ours["share 1"])
    return Row(
        row.what,
        f"{row.measured}; {share:.0%} of limit",
        row.bar + (f" or {_SHARE:.0%}" if bars.or_share else ""),
        bool(row.ok) or (bars.or_share and share >= _SHARE),
        {**row.values, "share": ours["share 1"]},
    )


def _share_row(what: str, shares: Sequence[float]) -> Row:
    share = statistics.median(shares)
    return Row(
        what,
        f"{share:.0%}, {len(shares)} runs",
        f">= {_SHARE:.0%}",
        share >= _SHARE,
        {"share": shares},
    )


def _why_not(venv: str) -> str | None:
    """Why this peer cannot be measured here; None: it can."""
    if SMALL:
        return "the short version"
    return None if peer_python(venv).exists() else f"OCTAVO_PEERS has no {venv}"


def _why_not_large() -> str | None:
    if SMALL:
        return "the short version"
    if shutil.disk_usage(tempfile.gettempdir()).free < _LARGE_DISK:
        return f"less than {_LARGE_DISK / 1e9:.0f} GB of disk"
    lines = Path("/proc/meminfo").read_text().splitlines()
    [kib] = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return (
        None if kib * 1024 >= _LARGE_MEMORY else f"less than {_LARGE_MEMORY / 1e9:.0f} GB of memory"
    )


@contextlib.contextmanager
def _q4_0(source: Path) -> Iterator[tuple[Path | None, str]]:
    """smollm2 as Q4_0, or why there is none."""
    given = os.environ.get("OCTAVO_SMOLLM2_Q4_0")
    why = None if given else _why_not("llama")
    if given or why is not None:
        yield (Path(given) if given else None), why or ""
        return
    with tempfile.TemporaryDirectory() as folder:
        try:
            yield requantised(peer_python("llama"), source, Path(folder) / "smollm2-q4_0.gguf"), ""
        except PeerFailed as error:
            yield None, str(error)
