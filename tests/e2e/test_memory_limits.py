"""Real processes under limits from too small to ample: each answers, or refuses with what would fit."""

from __future__ import annotations

import resource
from pathlib import Path

import httpx
import pytest

from octavo.config import parse_size
from tests.e2e import limited, serving
from tests.e2e.limited import MIB, ask, fake_cgroup, run_in_address_space, run_in_cgroup


@pytest.mark.parametrize("mib", [60, 200, 320, 450, 650, 1000, 4096])
def test_steps_of_the_address_space(smollm2_path: Path, mib: int) -> None:
    outcome = run_in_address_space(ask(smollm2_path), mib * MIB)
    assert outcome.has_answered == (mib >= 650), outcome
    if not outcome.has_answered:
        assert outcome.has_refused, outcome
        assert outcome.advised_limit is not None, outcome
        assert run_in_address_space(ask(smollm2_path), outcome.advised_limit).has_answered


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("mib", [50, 200, 260, 1000])
def test_steps_of_a_cgroup(smollm2_path: Path, tmp_path: Path, mib: int, version: int) -> None:
    root = fake_cgroup(tmp_path, mib * MIB, version=version)
    outcome = run_in_cgroup(ask(smollm2_path), root)
    assert outcome.has_answered == (mib >= 260), outcome
    if outcome.has_answered:
        assert outcome.anonymous_bytes < mib * MIB
        return
    assert outcome.has_refused, outcome
    assert outcome.advised_raise is not None, outcome
    fake_cgroup(root, mib * MIB + parse_size(outcome.advised_raise), version=version)
    assert run_in_cgroup(ask(smollm2_path), root).has_answered


def test_what_was_asked_for_is_refused_with_a_command_that_fits(smollm2_path: Path) -> None:
    space = 700 * MIB
    small = run_in_address_space(ask(smollm2_path, "--ctx", "8000"), space)
    assert small.has_answered
    assert "KV type f16 -> int8" in small.errors
    plain = ["--ctx", "8000", "--kv-cache-dtype", "f16"]
    for flags in (plain, ["--strict-memory"], ["--kv-cache-memory-bytes=1GiB"]):
        outcome = run_in_address_space(ask(smollm2_path, *flags), space)
        assert outcome.has_refused, outcome
        assert outcome.advised_command is not None, outcome
        assert run_in_address_space(outcome.advised_command, space).has_answered


def test_llm_is_refused_before_its_libraries_end_the_process(smollm2_path: Path) -> None:
    code = "import octavo\ntry:\n    octavo.LLM\nexcept octavo.CapacityError as e:\n    print(e)"
    done = limited.run_python(code, 150 * MIB)
    assert done.code == 0, done
    assert "available (RLIMIT_AS" in done.answer


def test_a_server_under_a_tight_limit_survives_a_prompt_of_megabytes(smollm2_path: Path) -> None:
    space = 700 * MIB

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (space, space))

    with serving.server(smollm2_path, preexec=limit) as url, httpx.Client(timeout=120) as api:
        body = {"model": "m", "prompt": "tell me a long story " * 100_000, "max_tokens": 4}
        refused = api.post(f"{url}/v1/completions", json=body)
        assert refused.status_code == 400, refused.text
        body["prompt"] = "Once upon a time"
        assert api.post(f"{url}/v1/completions", json=body).status_code == 200
