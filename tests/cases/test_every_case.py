"""No case of the areas served over HTTP is forgotten."""

from __future__ import annotations

import json
from pathlib import Path

AREAS = {
    "detokenizer/streaming",
    "sampling",
    "stop/limits",
    "logprobs",
    "context overflow",
    "errors/validation",
    "prefix cache",
}
SECURITY = {f"SEC-{number}" for number in ("09", "10", "12", "13", "14")}
"""Of what there is: no schemas, adapters or uploads yet. Templates have their own tests."""


def test_every_case_has_a_test_of_its_name(test_data: Path) -> None:
    lines = (test_data.parent / "cases.jsonl").read_text().splitlines()
    cases = [json.loads(line) for line in lines]
    wanted = {case["id"] for case in cases if case["area"] in AREAS} | SECURITY
    source = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    missing = {
        case for case in wanted if f"def test_{case.lower().replace('-', '_')}_" not in source
    }
    assert missing == set()
