"""Measures every promise of the server's milestone and prints a row for each: what, measured, bar, ok.

    make prove-D1                         everything
    SMALL=1 make prove-D1                 a short version for a shared machine
    python scripts/prove_d1.py SECTION .. some of it

Needs the `dev` extra; models through the store. PROVE_JSON as in prove_b.py. Exit code 1 if a row is not ok.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("PYTHONPATH", str(ROOT))

from scripts.proving import hostile, rows, served, supervised, wire_tests  # noqa: E402

SECTIONS: tuple[rows.Section, ...] = (
    supervised.kills,
    supervised.churn,
    supervised.end,
    hostile.hostile,
    wire_tests.wire,
    served.streams,
)


def main(names: list[str]) -> int:
    """Print the rows of the sections of these names, or of all."""
    return rows.run_sections(SECTIONS, names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
