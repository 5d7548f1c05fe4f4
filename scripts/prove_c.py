"""Measures every promise of the third milestone and prints a row for each: what, measured, bar, ok.

    make prove-C                          everything
    SMALL=1 make prove-C                  a short version for a shared machine: counters and exactness keep their bars
    python scripts/prove_c.py SECTION ..  some of it

Needs the `dev` extra; models through the store. PROVE_JSON as in prove_b.py. Exit code 1 if a row is not ok.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("PYTHONPATH", str(ROOT))

from scripts.proving import (  # noqa: E402
    beams,
    explained,
    limits,
    predictions,
    prefixes,
    rows,
    scheduling,
    stored_kv,
)

SECTIONS: tuple[rows.Section, ...] = (
    prefixes.exactness,
    prefixes.shared_prompts,
    beams.beam_search,
    stored_kv.kv_types,
    stored_kv.disk_restart,
    scheduling.fairness,
    scheduling.waste,
    scheduling.churn,
    predictions.predictions,
    explained.explain_rows,
    limits.memory_limits,
)


def main(names: list[str]) -> int:
    """Print the rows of the sections of these names, or of all."""
    return rows.run_sections(SECTIONS, names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
