"""`bench claims`: every claim has a row with our figures."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from octavo.bench.claims import CLAIMS, bench_claims
from octavo.bench.experiments import NUM_PLACES, output_lengths, paged
from octavo.bench.gaps import gap_room
from octavo.bench.options import ClaimsConfig
from octavo.bench.tables import claims_table
from octavo.cli.main import main
from octavo.config import BackendName, ComputeConfig, EngineConfig, ModelConfig
from octavo.errors import InvalidRequest

SMALL = ClaimsConfig(
    num_requests=10, output_len=4, gen=3, long_prompt=48, shared_len=40, num_sharing=4, repeat=1
)


def test_every_claim_is_measured(tiny: Path) -> None:
    config = EngineConfig(model=ModelConfig(model=str(tiny)), compute=ComputeConfig(num_threads=1))
    said: list[str] = []
    report = bench_claims(config, SMALL, lambda key: f"again {key}", on_figure=said.append)
    json.dumps(report)
    rows = report["claims"]
    assert isinstance(rows, list)
    assert [row["key"] for row in rows] == [claim.key for claim in CLAIMS]
    for row, claim in zip(rows, CLAIMS, strict=True):
        assert row["command"] == f"again {claim.key}"
        assert set(row["figures"]) == set(claim.figures)
        assert all(value > 0 for value in row["figures"].values())
    assert said[0] == "continuous (warm-up)"
    assert "chunked 1" in said
    assert len(list(claims_table(report))) == 1 + 5 * len(CLAIMS)


def test_a_backend_without_int8_has_no_row_for_it(tiny: Path) -> None:
    config = EngineConfig(
        model=ModelConfig(model=str(tiny)), compute=ComputeConfig(backend=BackendName.REFERENCE)
    )
    report = bench_claims(
        config, replace(SMALL, num_requests=2, output_len=2, gen=2, long_prompt=32), str
    )
    rows = report["claims"]
    assert isinstance(rows, list)
    assert [row["key"] for row in rows] == [claim.key for claim in CLAIMS[:-1]]


def test_paged_requests_are_counted_by_blocks() -> None:
    figures = paged(16, ClaimsConfig(reserved_len=2048))
    assert figures["reserved"] == 64
    assert figures["paged"] * figures["reserved_used"] == pytest.approx(64, rel=0.35)
    assert 0.9 < figures["paged_used"] < 1
    assert figures == paged(16, ClaimsConfig(reserved_len=2048))
    least = paged(16, ClaimsConfig(reserved_len=16))  # every request is cut to one block
    assert (least["paged"], least["reserved"]) == (64, 64)


def test_outputs_differ_in_length_and_have_a_most() -> None:
    lengths = output_lengths(ClaimsConfig(num_requests=64, output_len=48))
    assert len(lengths) == 64
    assert len(set(lengths)) > NUM_PLACES
    assert max(lengths) <= 4 * 48


def test_there_is_room_for_what_runs_beside_a_long_prompt() -> None:
    assert gap_room(10_000) == 10_001
    assert gap_room(100) > 100 + 1


def test_an_unknown_claim_is_refused_with_the_known(tiny: Path) -> None:
    config = EngineConfig(model=ModelConfig(model=str(tiny)))
    with pytest.raises(InvalidRequest, match="no claim 'x'; there are continuous"):
        bench_claims(config, ClaimsConfig(only="paged,x"), str)


def test_the_command_of_a_row_measures_that_row(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["bench", "claims", str(tiny), "--only", "paged", "--threads", "1", "--json"]
    monkeypatch.setattr(sys, "argv", ["octavo", *words])
    with pytest.raises(SystemExit) as end:
        main(words)
    assert not end.value.code
    [row] = json.loads(capsys.readouterr().out)["claims"]
    assert row["command"] == f"octavo bench claims {tiny} --threads 1 --only paged"
