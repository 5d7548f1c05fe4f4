"""No case of the areas served over HTTP is forgotten."""

from __future__ import annotations

import json
import re
from pathlib import Path

AREAS = {
    "detokenizer/streaming",
    "sampling",
    "stop/limits",
    "logprobs",
    "context overflow",
    "errors/validation",
    "prefix cache",
    "security",
    "scheduling/cancel",
}


def test_every_case_has_a_test_of_its_name(test_data: Path) -> None:
    lines = (test_data.parent / "cases.jsonl").read_text().splitlines()
    cases = [json.loads(line) for line in lines]
    wanted = {case["id"] for case in cases if case["area"] in AREAS}
    source = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    names = " ".join(re.findall(r"def test_(\w+)", source))
    missing = {
        case
        for case in wanted
        if f"{case[:3].lower()}_{case[4:]}_" not in names and f"and_{case[4:]}_" not in names
    }
    assert missing == set()
