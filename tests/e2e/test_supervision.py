"""A server whose engine is killed under its streams."""

from __future__ import annotations

from pathlib import Path

from tests.e2e import supervised


def test_streams_end_as_if_nobody_had_killed_their_engine(smollm2_path: Path) -> None:
    result = supervised.kill_mid_stream(smollm2_path, num_kills=3)
    assert (result.num_equal, result.num_streams) == (8, 8)
