"""Measures every promise of the second milestone and prints a row for each: what, measured, bar, ok.

    make prove-B                          everything; needs a quiet machine (about an hour with all peers)
    SMALL=1 make prove-B                  a short version for a shared machine: counters and exactness keep their bars
    python scripts/prove_b.py SECTION ..  some of it: peers openvino avx2 large op_shares context competitor overhead
                                          exactness two_terms perplexity http start

Needs the `dev` extra; models through the store. Environment:
    OCTAVO_PEERS            folder with virtual environments llama/, llama-avx2/ and ov/; else peers are left out
    OCTAVO_PEER_SCRIPTS     folder with llama_cpp_bench.py and openvino_bench.py (default ../shared/peers)
    OCTAVO_SMOLLM2_Q4_0     smollm2 as Q4_0; else llama.cpp requantises it
    PAIRS                   timed pairs of each comparison (default 5)
    PROVE_JSON              file that keeps the rows with all readings; sections measured later replace their own
Exit code 1 if a row is not ok.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("PYTHONPATH", str(ROOT))

from scripts.proving import counters, exact, peers, rows, served, steps  # noqa: E402

SECTIONS: tuple[rows.Section, ...] = (
    peers.peers,
    peers.openvino,
    peers.avx2,
    peers.large,
    counters.op_shares,
    steps.context,
    steps.competitor,
    steps.overhead,
    exact.exactness,
    exact.two_terms,
    exact.perplexity,
    served.http,
    served.start,
)


def main(names: list[str]) -> int:
    """Print the rows of the sections of these names, or of all."""
    return rows.run_sections(SECTIONS, names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
