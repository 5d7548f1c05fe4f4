"""Case CLI-08: the Python interface on a real model."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams

PARAMS = SamplingParams(temperature=0.0, max_tokens=4)


def load(path: Path, **options: Any) -> LLM:
    backend = os.environ.get("OCTAVO_TEST_BACKEND", "native")
    return LLM(path, backend=backend, max_model_len=256, kv_cache_memory_bytes="16MiB", **options)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def texts(llm: LLM, prompts: Any) -> list[str]:
    return [output.outputs[0].text for output in llm.generate(prompts, PARAMS, use_tqdm=False)]


def test_cli_08_results_are_ordered_and_errors_are_harmless(smollm2_path: Path) -> None:
    with load(smollm2_path) as llm, load(smollm2_path) as other:
        assert texts(llm, []) == []
        prompts = ["a", "Count: one, two, three,"] * 10
        assert [o.prompt for o in llm.generate(prompts, PARAMS)] == prompts
        first, second = texts(llm, "a"), texts(llm, prompts[1])
        assert texts(llm, prompts) == (first + second) * 10
        assert (
            texts(llm, [[19556, 905]]) == texts(llm, "Hello world") == texts(other, "Hello world")
        )
        for bad in ("", [""], ["good", [49152]], [[]], "\ud800"):
            with pytest.raises(ValueError, match=r"."):
                llm.generate(bad, PARAMS)
        results: dict[int, list[str]] = {}
        threads = [
            threading.Thread(target=lambda i=i: results.update({i: texts(llm, prompts[:4])}))
            for i in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [results[i] for i in range(4)] == [(first + second) * 2] * 4


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_cli_08_closing_gives_the_memory_back(smollm2_path: Path) -> None:
    threads = set(threading.enumerate())  # other tests' servers have threads too
    sizes = []
    for round_ in range(6):
        llm = load(smollm2_path)
        texts(llm, "Hello")
        if round_ % 2:
            llm.close()
        del llm
        gc.collect()
        sizes.append(resident_bytes())
    assert sizes[-1] <= 1.1 * sizes[0]
    assert set(threading.enumerate()) <= threads
