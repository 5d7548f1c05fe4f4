"""Beam search finds what `generate(num_beams=...)` of transformers finds, on the same weights in float32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo import LLM, BeamSearchParams
from tests.tiny_models import TinySource, tiny_source, write_gguf
from tests.unit.api.fakes import FakeTokenizer

VOCAB, EOS, LENGTH = 12, 3, 12
PROMPTS = [np.random.default_rng(i).integers(0, VOCAB, 7).tolist() for i in range(4)]


class Bytes(FakeTokenizer):
    """Ids of a few bytes, without control tokens."""

    vocab_size = VOCAB
    eos_token_id = EOS
    eos_token_ids = frozenset({EOS})
    control_token_ids = ()

    def is_control(self, token_id: int) -> bool:
        return False


@pytest.fixture(scope="module")
def source() -> TinySource:
    return tiny_source("llama", vocab_size=VOCAB, seed=11)


@pytest.fixture(scope="module")
def llm(source: TinySource, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path: Path = write_gguf(source, tmp_path_factory.mktemp("beams") / "small.gguf")
    with LLM(
        path,
        tokenizer=Bytes(None),
        max_model_len=64,
        backend="reference",
        kv_cache_dtype="f32",
    ) as llm:
        yield llm


@pytest.fixture(scope="module")
def theirs(source: TinySource) -> Iterator[Any]:
    """The same model in transformers."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    meta = source.metadata
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=meta["llama.embedding_length"],
        intermediate_size=source.tensors["blk.0.ffn_gate.weight"].shape[0],
        num_hidden_layers=meta["llama.block_count"],
        num_attention_heads=meta["llama.attention.head_count"],
        num_key_value_heads=meta["llama.attention.head_count_kv"],
        rms_norm_eps=meta["llama.attention.layer_norm_rms_epsilon"],
        rope_theta=meta["llama.rope.freq_base"],
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=0,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads}
    state = {
        "model.norm.weight": "output_norm.weight",
        "model.embed_tokens.weight": "token_embd.weight",
    }
    for i in range(config.num_hidden_layers):
        for ours, name in (
            ("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm"),
            ("attn_q", "self_attn.q_proj"), ("attn_k", "self_attn.k_proj"),
            ("attn_v", "self_attn.v_proj"), ("attn_output", "self_attn.o_proj"),
            ("ffn_gate", "mlp.gate_proj"), ("ffn_up", "mlp.up_proj"), ("ffn_down", "mlp.down_proj"),
        ):  # fmt: skip
            state[f"model.layers.{i}.{name}.weight"] = f"blk.{i}.{ours}.weight"
    weights = {}
    for name, ours in state.items():
        tensor = source.tensor(ours)
        values = np.frombuffer(tensor.data, np.float32).reshape(tensor.shape)
        kind = ours.split("attn_")[-1][0]
        if ours.endswith(
            ("attn_q.weight", "attn_k.weight")
        ):  # GGUF has the halves of a rotation side by side
            values = values.reshape(heads[kind], -1, 2, values.shape[1]).swapaxes(1, 2)
        weights[name] = torch.tensor(values.reshape(tensor.shape).copy())
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert set(missing) <= {"lm_head.weight"}
    assert not unexpected
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more would only wait for each other: the matrices are tiny
    yield model
    torch.set_num_threads(num_threads)


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("length_penalty", [1.0, 0.0, 2.0, -1.0])
def test_the_same_sequences_are_found(
    llm: LLM, theirs: Any, early_stopping: Any, length_penalty: float
) -> None:
    import torch

    for width in (1, 2, 4):
        params = BeamSearchParams(
            beam_width=width,
            max_tokens=LENGTH,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            include_stop_str_in_output=True,
        )
        ours = llm.beam_search(PROMPTS, params)
        for prompt, output in zip(PROMPTS, ours, strict=True):
            more: dict[str, Any] = {} if width == 1 else {
                "length_penalty": length_penalty, "early_stopping": early_stopping,
            }  # fmt: skip
            if width == 1 and early_stopping == "never":
                continue  # there it is greedy search, which looks no further than the first end
            found = theirs.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                num_beams=width,
                num_return_sequences=width,
                max_new_tokens=LENGTH,
                do_sample=False,
                return_dict_in_generate=True,
                output_scores=True,
                **more,
            )
            expected = [_until_end(row.tolist(), len(prompt)) for row in found.sequences]
            assert [one.tokens for one in output.sequences] == expected
            if width > 1:
                scores = [
                    one.cum_logprob / (len(one.tokens) - len(prompt)) ** length_penalty
                    for one in output.sequences
                ]
                assert scores == pytest.approx(found.sequences_scores.tolist(), abs=1e-3, rel=1e-4)


def _until_end(tokens: list[int], num_prompt: int) -> list[int]:
    """Without what fills up a sequence shorter than others."""
    answer = tokens[num_prompt:]
    return tokens[:num_prompt] + answer[: answer.index(EOS) + 1 if EOS in answer else None]
