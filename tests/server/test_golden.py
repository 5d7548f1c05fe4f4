"""Transcripts of the OpenAI API, byte for byte: requests to a tiny random model on the scalar kernels, and the answers.

After a change that is meant: OCTAVO_UPDATE_GOLDEN=1 python -m pytest tests/server/test_golden.py, then read the diff.
Ids, times, the version and what lies behind the fourth decimal of a log-probability are evened out.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from fastapi import FastAPI

from octavo.api.async_llm import AsyncLLM
from octavo.api.runtime import load_runtime
from octavo.config import CacheConfig, ComputeConfig, EngineConfig, ModelConfig
from octavo.engine.client import InProcessClient
from octavo.server.app import create_app
from tests.server.test_protocol import FullClient
from tests.server.wire import ask, fake_app
from tests.tiny_models import tiny_source, write_gguf
from tests.unit.api.fakes import TEMPLATE, FakeClient, LoopClient, always

GOLDEN: Final = Path(__file__).parent / "golden"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ASK: Final[dict[str, Any]] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Hi"}],
    "max_tokens": 6,
    "temperature": 0,
}
# Small letters, so that the transcripts can be read.
LETTERS: Final = {"logit_bias": {str(i): 40 for i in range(97, 123)}}
STREAM: Final = {"stream": True}
USAGE: Final = {"stream": True, "stream_options": {"include_usage": True}}

EXCHANGES: Final[dict[str, list[tuple[str, str, Any]]]] = {
    "chat": [("POST", CHAT, ASK | LETTERS)],
    "chat_stream": [("POST", CHAT, ASK | LETTERS | STREAM)],
    "chat_stream_bytes": [("POST", CHAT, ASK | {"temperature": 1, "seed": 3} | STREAM)],
    "chat_stream_n2_usage": [
        ("POST", CHAT, ASK | LETTERS | USAGE | {"n": 2, "temperature": 1, "seed": 5})
    ],
    "chat_stream_logprobs": [
        ("POST", CHAT, ASK | LETTERS | STREAM | {"logprobs": True, "top_logprobs": 2})
    ],
    "chat_stop": [("POST", CHAT, ASK | {"logit_bias": {"256": 100}} | USAGE)],
    "completion_echo_logprobs": [
        ("POST", COMPLETIONS, {"prompt": "Hello", "echo": True, "logprobs": 1, "max_tokens": 2, "temperature": 0})
    ],
    "completion_stream": [
        ("POST", COMPLETIONS, {"prompt": ["a", "b"], "max_tokens": 3, "temperature": 0} | LETTERS | USAGE)
    ],
    "tokenize": [
        ("POST", "/tokenize", {"prompt": "Hello é", "return_token_strs": True}),
        ("POST", "/tokenize", {"messages": ASK["messages"]}),
        ("POST", "/detokenize", {"tokens": [72, 105]}),
    ],
    "models": [("GET", "/v1/models", None), ("GET", "/v1/models/tiny", None)],
    "errors": [
        ("POST", CHAT, "not json"),
        ("POST", CHAT, ASK | {"temperature": -1}),
        ("POST", CHAT, ASK | {"max_tokens": "ten"} | STREAM),
        ("POST", CHAT, ASK | {"max_tokens": 5000}),
        ("POST", CHAT, ASK | {"model": "nope"}),
        ("GET", "/v1/nope", None),
        ("GET", CHAT, None),
    ],
}  # fmt: skip


class _Stepped(LoopClient):
    """The real engine, a step of one token at a time, in the event loop: the same chunks in every run."""

    def __init__(self, engine: Any, deliver: Callable[[Any], None]) -> None:
        engine._max_call_s = 0.0
        super().__init__(_WithWork(engine), deliver)  # type: ignore[arg-type]


class _WithWork(InProcessClient):
    @property
    def has_work(self) -> bool:
        return self._engine.has_work


@pytest.fixture(scope="module")
def tiny_app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FastAPI]:
    source = tiny_source("llama")
    tokens, types = (source.metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type"))
    source = source.with_metadata(  # a vocabulary of bytes and one merge: a file has at least one
        tokenizer__ggml__tokens=[*tokens[:258], "he", *tokens[259:]],  # type: ignore[index]
        tokenizer__ggml__token_type=np.where(np.arange(len(types)) == 258, 1, types),  # type: ignore[arg-type]
        tokenizer__ggml__merges=["h e"],
    )
    path = write_gguf(source, tmp_path_factory.mktemp("golden") / "tiny.gguf")
    config = EngineConfig(
        model=ModelConfig(model=str(path), chat_template=TEMPLATE, build=False),
        cache=CacheConfig(kv_cache_memory_bytes=1 << 22, enable_prefix_caching=False),
        compute=ComputeConfig(isa="scalar", num_threads=1),
    )
    runtime = load_runtime(config, seed=0)
    engine = runtime.engine
    with AsyncLLM.from_client(
        lambda deliver: _Stepped(engine, deliver), runtime.processor, lambda: not engine.is_dead
    ) as llm:
        yield create_app(llm)


def transcript(app: FastAPI, method: str, path: str, body: Any) -> str:
    """One exchange: the request, the status, the type, and the body as it came."""
    sent = body if isinstance(body, str) else "" if body is None else json.dumps(body)
    response = ask(app, method, path, content=sent.encode(), headers={"x-api-key": "key"})
    kind = response.headers["content-type"]
    extra = response.headers.get("retry-after")
    head = f"{method} {path}\n{sent}\n\n{response.status_code} {kind}\n"
    head += f"retry-after: {extra}\n" if extra else ""
    return head + normal(response.content.decode()) + "\n\n"


def normal(text: str) -> str:
    """The text without what differs between runs and machines."""
    text = re.sub(r"(chatcmpl|cmpl)-[0-9a-f]{32}", r"\1-ID", text)
    text = re.sub(r'"created":\d+', '"created":0', text)
    text = re.sub(r'"system_fingerprint":"[^"]*"', '"system_fingerprint":"FINGERPRINT"', text)
    return re.sub(r"-?\d+\.\d+(e-?\d+)?", lambda m: f"{float(m[0]):.4f}", text)


def check(name: str, text: str) -> None:
    """Compare with the file of this name, or write it."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("OCTAVO_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8", newline="")
    assert text == path.read_bytes().decode()


@pytest.mark.parametrize("name", EXCHANGES)
def test_a_transcript_is_the_same_to_the_byte(tiny_app: FastAPI, name: str) -> None:
    check(name, "".join(transcript(tiny_app, *exchange) for exchange in EXCHANGES[name]))


def test_the_other_statuses_are_the_same_to_the_byte() -> None:
    body = {"messages": ASK["messages"]}
    broken, late, dead = (FakeClient(always("abc")) for _ in range(3))
    broken.fails_at, late.fails_at = 0, 2
    draining, stopped = fake_app(always("x")), fake_app(dead)
    draining.state.server.is_draining = True
    dead.close()
    parts = [
        transcript(fake_app(always("x"), api_key="other"), "POST", CHAT, body),
        transcript(fake_app(always("x")), "POST", CHAT, " " * (17 * 2**20)),
        transcript(fake_app(FullClient(always("x"))), "POST", CHAT, body),
        transcript(fake_app(broken), "POST", CHAT, body | STREAM),
        transcript(fake_app(late), "POST", CHAT, body | STREAM),
        transcript(draining, "POST", CHAT, body),
        transcript(stopped, "GET", "/health", None),
    ]
    check("errors_of_the_server", re.sub(r"\n {1000,}\n", "\n(17 MiB)\n", "".join(parts)))


def test_every_file_is_compared() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == {*EXCHANGES, "errors_of_the_server"}
