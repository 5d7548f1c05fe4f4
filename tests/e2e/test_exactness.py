"""The same bits alone or together, in any chunk size, after preemption, on any number of threads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e import measures


@pytest.mark.slow
@pytest.mark.parametrize("is_seeded", [False, True], ids=["greedy", "seeded"])
def test_ids_do_not_depend_on_company_chunks_threads_or_memory(
    smollm2_path: Path, is_seeded: bool
) -> None:
    variants = list(measures.exactness_variants(smollm2_path, 8, 24, is_seeded=is_seeded))
    assert [v for v in variants if v[1]] == []
