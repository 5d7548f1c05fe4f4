"""A real server that gets hostile bodies, and what its start says."""

from __future__ import annotations

from pathlib import Path

import httpx

from tests.e2e import hostile, serving


def test_hostile_bodies_are_refused_soon_and_with_little_memory(smollm2_path: Path) -> None:
    with serving.server_process(smollm2_path, "--max-model-len", "2048") as (url, pid):
        assert hostile.oversized(url) == (413, 413)
        for name, got in hostile.send_all(url, lambda: hostile.resident_bytes(pid)).items():
            assert 400 <= got.status < 500, name
            assert got.seconds < 3, name
            assert got.grown_bytes < 128 * 2**20, name
        streams = hostile.Neighbours(url, 2, 16)
        with hostile.attack(url, 0.0):
            streams.run()
        assert len(streams.gaps_s) > 2
        assert httpx.get(url + "/health", headers={"host": "evil.example"}).status_code == 403
        assert httpx.get(url + "/health").status_code == 200
