"""What hostile bodies do to a server, and to those who stream from it meanwhile."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from scripts.proving.rows import SMALL, Paths, Row, on_quiet, quiet_bar
from tests.e2e import serving
from tests.e2e.hostile import (
    Neighbours,
    attack,
    oversized,
    resident_bytes,
    send_all,
)

_NUM_STREAMS, _NUM_TOKENS, _NUM_ROUNDS = (4, 100, 1) if SMALL else (8, 400, 3)
_PAUSE_S = 0.25
_MOST_S = 3.0
_MOST_GROWN_BYTES = 128 * 2**20
_MOST_RATIO = 1.5


def hostile(paths: Paths) -> Iterator[Row]:
    """Oversized and hostile bodies: status, time, memory, and the inter-token latency of neighbours."""
    with serving.server_process(paths["smollm2"], "--max-model-len", "2048") as (url, pid):
        Neighbours(url, 2, 8).run()  # warm up
        announced, streamed = oversized(url)
        yield Row(
            "a body of 300 MB: by Content-Length, and as it streams",
            f"{announced}, {streamed}",
            "413",
            announced == streamed == 413,
        )
        for name, got in send_all(url, lambda: resident_bytes(pid)).items():
            yield Row(
                name,
                f"{got.status} in {got.seconds:.2f} s, memory +{max(0, got.grown_bytes) / 2**20:.0f} MiB",
                f"4xx in {_MOST_S:.0f} s, < {_MOST_GROWN_BYTES >> 20} MiB",
                400 <= got.status < 500
                and got.seconds < _MOST_S
                and got.grown_bytes < _MOST_GROWN_BYTES,
            )
        yield _neighbours(url)


def _p99(url: str) -> float:
    streams = Neighbours(url, _NUM_STREAMS, _NUM_TOKENS)
    streams.run()
    return streams.percentile(0.99)


def _neighbours(url: str) -> Row:
    """p99 of the gaps between chunks, beside all the bodies in turn against without, in alternation."""
    alone: list[float] = []
    beside: list[float] = []
    for _ in range(_NUM_ROUNDS):
        alone.append(_p99(url))
        with attack(url, _PAUSE_S):
            beside.append(_p99(url))
    before, after = statistics.median(alone), statistics.median(beside)
    return Row(
        f"neighbours' p99 inter-token latency beside these, {1 / _PAUSE_S:.0f} a second",
        f"{1000 * after:.1f} ms against {1000 * before:.1f} ms: {after / before:.2f}x",
        quiet_bar(f"<= {_MOST_RATIO}x"),
        on_quiet(after <= _MOST_RATIO * before),
        {"alone_s": alone, "beside_s": beside},
    )
