"""What quantised keys and values cost real models, against what is promised and what the start of an engine says."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo import LLM
from octavo.api.perplexity import measure_perplexity

pytestmark = pytest.mark.slow

GPL_3 = Path("/usr/share/common-licenses/GPL-3")

MOST_PERCENT = {
    "smollm2": {"int8": 0.5, "fp8": 1.0, "int8/int4": 2.5},
    "gemma3": {"int8": 1.0, "fp8": 1.0, "int8/int4": 3.0},
}


def perplexity(path: Path, dtype: str) -> float:
    with LLM(str(path), max_model_len=512, kv_cache_dtype=dtype) as llm:
        return measure_perplexity(llm, GPL_3.read_text(), ctx=512, max_windows=8).perplexity


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_perplexity_rises_no_more_than_promised(name: str, request: pytest.FixtureRequest) -> None:
    if not GPL_3.exists():
        pytest.skip("no GPL-3 text on this machine")
    path = request.getfixturevalue(f"{name}_path")
    full = perplexity(path, "f16")
    for dtype, most in MOST_PERCENT[name].items():
        assert (perplexity(path, dtype) / full - 1) * 100 <= most, dtype
