"""A server process and the official client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import serving


@pytest.fixture(scope="module")
def url(smollm2_path: Path) -> Iterator[str]:
    with serving.server(smollm2_path) as address:
        yield address


def test_the_official_client_streams_the_whole_answer(url: str) -> None:
    text, whole, num_chunks = serving.stream_and_whole(url)
    assert text == whole
    assert num_chunks > 10


def test_32_concurrent_streams_give_what_each_gives_alone(url: str) -> None:
    result = serving.concurrent_streams(url, 32)
    assert (result.num_complete, result.num_equal) == (32, 32)


def test_a_client_that_leaves_frees_its_blocks_within_a_step(url: str) -> None:
    left = serving.disconnect(url)
    assert left.num_blocks_held > 0
    assert left.num_tokens_after <= 3
    assert left.freed_after_s < 5
