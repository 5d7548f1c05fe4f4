"""Predictions of the first token, under Poisson load at 70 % of what the server can take."""

from __future__ import annotations

import time
from collections.abc import Iterator

from scripts.proving.commands import octavo_json
from scripts.proving.rows import SMALL, Paths, Row, on_quiet, quiet_bar
from tests.e2e import serving
from tests.engine.test_first_token import share_within

_LOAD = 0.7
_NUM_FLOOD, _NUM_TIMED = (24, 16) if SMALL else (96, 120)


def predictions(paths: Paths) -> Iterator[Row]:
    """On an engine whose steps cost what the model of them says; then on a real server."""
    share, busy = share_within(rate=1.7)
    yield Row(
        "first tokens predicted within 30 %, steps as the model says",
        f"{share:.0%} at {busy:.0%} load",
        ">= 80%",
        share >= 0.8,
    )
    with serving.server(paths["smollm2"]) as url:
        flood = _run(url, "--concurrency", "32", "--num-requests", str(_NUM_FLOOD))
        rate = _LOAD * flood["requests_per_s"]
        run = _run(url, "--rate", f"{rate:.2f}", "--num-requests", str(_NUM_TIMED))
    share = run["predicted_ttft_share"]
    yield Row(
        "first tokens predicted within 30 %, lengths of chats, smollm2",
        f"{share:.0%} of {_NUM_TIMED} at {rate:.2f} requests/s",
        quiet_bar(">= 80%"),
        on_quiet(share >= 0.8),
    )


def _run(url: str, *load: str) -> dict[str, float]:
    seed = str(time.monotonic_ns() % 2**31)
    report = octavo_json(
        "bench",
        "serve",
        "--url",
        url,
        "--no-limits",
        "--workload",
        "sharegpt",
        "--seed",
        seed,
        *load,
    )
    [run] = report["runs"]
    return run  # type: ignore[no-any-return]
