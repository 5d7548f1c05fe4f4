"""What steps cost: with a long context, with a competitor for a core, outside the model."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator

from scripts.proving.loaded import Loaded
from scripts.proving.pairs import alternate
from scripts.proving.rows import SMALL, Paths, Row, on_quiet, quiet_bar, skipped

_NUM_ROUNDS, _NUM_TOKENS = (1, 16) if SMALL else (7, 48)
_BUSY = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"


def context(paths: Paths) -> Iterator[Row]:
    """A decode step at 2,048 tokens of context against one at 128."""
    with Loaded(paths["smollm2"], max_model_len=2560, num_threads=2) as loaded:

        def at(length: int) -> dict[str, float]:
            return {"ms": 1000 / loaded.decode(loaded.prompts(1, length), 16).tokens_per_s}

        got = alternate({"long": lambda: at(2048), "short": lambda: at(128)}, _NUM_ROUNDS)
    long_ms, short_ms = (statistics.median(got[name]["ms"]) for name in ("long", "short"))
    ratio = long_ms / short_ms
    yield Row(
        "decode step at 2,048 tokens of context / at 128, smollm2",
        f"{ratio:.2f} ({long_ms:.2f} : {short_ms:.2f} ms, {_NUM_ROUNDS} pairs)",
        quiet_bar("<= 1.75"),
        on_quiet(ratio <= 1.75),
        {"long_ms": got["long"]["ms"], "short_ms": got["short"]["ms"]},
    )


def competitor(paths: Paths) -> Iterator[Row]:
    """Two threads where one core is shared with a busy process, against one thread alone."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        yield skipped("decode beside a competitor", "one core only")
        return
    path = paths["smollm2"]
    with (
        Loaded(path, max_model_len=512, num_threads=2) as two,
        Loaded(path, max_model_len=512, num_threads=1) as one,
    ):
        prompts = two.prompts(1, 128)
        ids: list[list[int]] = []

        def run(loaded: Loaded) -> dict[str, float]:
            decoded = loaded.decode(prompts, _NUM_TOKENS)
            ids.append(decoded.ids[0][:_NUM_TOKENS])
            return {"rate": decoded.tokens_per_s}

        def beside() -> dict[str, float]:
            with _busy_on(cores[1]):
                return run(two)

        got = alternate({"two": beside, "one": lambda: run(one)}, _NUM_ROUNDS)
    rates = {name: statistics.median(got[name]["rate"]) for name in got}
    ratio = rates["two"] / rates["one"]
    yield Row(
        "decode, 2 threads beside a competitor / 1 thread alone",
        f"{ratio:.2f} ({rates['two']:.0f} : {rates['one']:.0f} tok/s, {_NUM_ROUNDS} pairs)",
        quiet_bar(">= 0.85"),
        on_quiet(ratio >= 0.85),
        {name: got[name]["rate"] for name in got},
    )
    num_different = sum(one != ids[0] for one in ids)
    yield Row(
        "the ids of these runs",
        f"{num_different} of {len(ids)} differ",
        "0 differ",
        num_different == 0,
    )


@contextlib.contextmanager
def _busy_on(core: int) -> Iterator[None]:
    """A process of equal weight that never sleeps, on one core."""
    process = subprocess.Popen([sys.executable, "-c", _BUSY, str(core)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def overhead(paths: Paths) -> Iterator[Row]:
    """Scheduling, handling, text and messages: the part of the time that the engine does not count as the model's."""
    with Loaded(paths["smollm2"], max_model_len=512, num_threads=2) as loaded:
        for batch, bar in ((1, 0.03), (32, 0.05)):
            num_tokens = 24 if SMALL else 128
            loaded.share_outside_model(batch, num_tokens)
            shares = [
                loaded.share_outside_model(batch, num_tokens) for _ in range(3 if SMALL else 7)
            ]
            share = statistics.median(shares)
            yield Row(
                f"time outside the model, batch {batch}, smollm2",
                f"{share:.1%} of the step (median of {len(shares)})",
                quiet_bar(f"< {bar:.0%}"),
                on_quiet(share < bar),
                {"share": shares},
            )
