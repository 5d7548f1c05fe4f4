"""A model file in every weight type, from the file to the answer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo import LLM, SamplingParams
from octavo.dtypes import QuantFormat
from octavo.weights.writer import write_gguf
from tests.tiny_models import tiny_source

LENGTHS = (1, 5, 8, 17, 33, 40)
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
SCORED = SamplingParams(temperature=0, max_tokens=0, prompt_logprobs=0)


def write_model(path: Path, format_: QuantFormat) -> Path:
    """A random llama whose matrices and embedding are all of this type."""
    source = tiny_source(
        formats=(format_,), embed_format=format_, hidden_size=256, intermediate_size=512
    )
    metadata = dict(source.metadata) | {"tokenizer.ggml.merges": ["h e"]}
    write_gguf(path, metadata, source.host_tensors.values())
    return path


def scores(llm: LLM, prompts: list[list[int]]) -> np.ndarray:
    """Log-probabilities of all tokens of all prompts but the first of each."""
    values = []
    for prompt, output in zip(prompts, llm.generate(prompts, SCORED, use_tqdm=False), strict=True):
        assert output.prompt_logprobs is not None
        for token_id, position in zip(prompt[1:], output.prompt_logprobs[1:], strict=True):
            assert position is not None
            values.append(position[token_id].logprob)
    return np.array(values)


@pytest.mark.parametrize("format_", list(QuantFormat), ids=lambda f: f.name)
def test_a_model_of_this_type_is_served_natively(format_: QuantFormat, tmp_path: Path) -> None:
    path = write_model(tmp_path / "tiny.gguf", format_)
    rng = np.random.default_rng(1)
    prompts = [rng.integers(0, 256, length).tolist() for length in LENGTHS]
    with LLM(path, max_model_len=64, num_threads=2) as llm:
        together = llm.generate(prompts, GREEDY, use_tqdm=False)
        for prompt, output in zip(prompts, together, strict=True):
            [alone] = llm.generate([prompt], GREEDY, use_tqdm=False)
            assert alone.outputs[0].token_ids == output.outputs[0].token_ids
        native = scores(llm, prompts)
    with LLM(path, max_model_len=64, backend="reference") as llm:
        expected = scores(llm, prompts)
    # Activations are rounded to 8 bits before every product: about 1 % each.
    assert np.abs(native - expected).mean() < 0.04 * np.std(expected)
