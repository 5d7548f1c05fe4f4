"""A tokenizer and engines that need no model: tokens come from a script."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence

from octavo.api.chat import load_chat_template
from octavo.api.processor import Processor
from octavo.errors import EngineDead
from octavo.messages import (
    AddRequest,
    ChoiceOutput,
    EngineInfo,
    EngineStats,
    StepOutputs,
    TokenScore,
)

END, START, WORLD = 256, 257, 258
_EXTRA = [b"<|end|>", b"<|start|>", b" world", b"ABC", b"DEF", b"GH", b"\xf0\x9f", b"\x99"]
VOCAB_SIZE = 256 + len(_EXTRA)
TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)

Script = Callable[[AddRequest, int], Sequence[int]]


class FakeTokenizer:
    """One token per byte, and a few longer ones that encode never makes."""

    vocab_size = VOCAB_SIZE
    bos_token_id: int | None = None
    eos_token_id: int | None = END
    eos_token_ids = frozenset({END})
    control_token_ids = (END, START)
    adds_bos = False

    def __init__(self, chat_template: str | None = TEMPLATE) -> None:
        self.chat_template = chat_template

    def encode(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool = False,
        mark: str | None = None,
    ) -> list[int]:
        ids: list[int] = []
        rest = text
        while rest:
            for token_id in (END, START):
                name = _EXTRA[token_id - 256].decode()
                if parse_special and rest.startswith(name):
                    ids.append(token_id)
                    rest = rest[len(name) :]
                    break
            else:
                ids += rest[0].encode()
                rest = rest[1:]
        return ids

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        data = b"".join(
            self.token_bytes(i) for i in ids if not (skip_special_tokens and self.is_control(i))
        )
        return data.decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes((token_id,)) if token_id < 256 else _EXTRA[token_id - 256]

    def is_control(self, token_id: int) -> bool:
        return token_id in (END, START)


INFO = EngineInfo(
    model_name="fake",
    architecture="fake",
    vocab_size=VOCAB_SIZE,
    max_model_len=100,
    num_blocks=64,
    block_size=16,
    max_num_seqs=8,
    num_parameters=1,
    kernel_table="fake",
    num_threads=1,
)


def ids_of(text: str) -> list[int]:
    """One token per byte."""
    return list(text.encode())


def always(text: str) -> Script:
    """The same text, then the end token."""
    return lambda request, index: [*ids_of(text), END]


def token(token_id: int) -> Script:
    """One token, for ever."""
    return lambda request, index: [token_id] * 1000


class FakeClient:
    """An engine that plays a script, `per_step` tokens of every choice a step, and keeps the engine's contract."""

    def __init__(self, script: Script, *, per_step: int = 1, info: EngineInfo = INFO) -> None:
        self.info = info
        self.requests: list[AddRequest] = []
        self.aborted: list[str] = []
        self.fails_at: int | None = None
        self.is_closed = False
        self._script = script
        self._per_step = per_step
        self._open: dict[tuple[str, int], tuple[AddRequest, list[int], int]] = {}
        self._outbox: list[ChoiceOutput] = []
        self._num_steps = 0

    @property
    def has_work(self) -> bool:
        return bool(self._open or self._outbox)

    def add(self, message: AddRequest) -> None:
        if self.is_closed:
            raise EngineDead("closed")
        self.requests.append(message)
        for index in range(message.params.n):
            tokens = list(self._script(message, index))
            self._open[message.request_id, index] = (message, tokens, 0)

    def abort(self, request_ids: Sequence[str]) -> None:
        self.aborted += request_ids
        for request_id, index in list(self._open):
            if request_id in request_ids:
                del self._open[request_id, index]
                self._outbox.append(ChoiceOutput(request_id, index, finish_reason="abort"))

    def reset_prefix_cache(self) -> None:
        pass

    def predict_first_token_s(self, num_tokens: int) -> float | None:
        return None

    def outputs(self) -> StepOutputs:
        self._num_steps += 1
        outputs, self._outbox = self._outbox, []
        for key in list(self._open):
            outputs.append(self._step(key))
        return StepOutputs(outputs, self.stats())

    def stats(self) -> EngineStats:
        if self.is_closed:
            raise EngineDead("closed")
        return EngineStats(num_running=len(self._open), num_blocks=64, num_free_blocks=60)

    def close(self) -> None:
        if not self.is_closed:
            self.abort([request_id for request_id, _ in self._open])
            self.is_closed = True

    def _step(self, key: tuple[str, int]) -> ChoiceOutput:
        message, tokens, at = self._open[key]
        params = message.params
        output = ChoiceOutput(*key)
        if at == 0 and params.prompt_logprobs is not None and key[1] == 0:
            output.prompt_scores = [self._score(t) for t in message.prompt_token_ids[1:]]
        if self.fails_at is not None and at >= self.fails_at:
            output.finish_reason, output.error = "error", "it broke at /secret/path"
        elif params.max_tokens == 0:
            output.finish_reason = "length"
        while output.finish_reason is None and len(output.token_ids) < self._per_step:
            token_id = tokens[at]
            at += 1
            output.token_ids.append(token_id)
            if params.logprobs is not None:
                output.scores.append(self._score(token_id))
            if token_id in message.eos_token_ids and not params.ignore_eos:
                output.finish_reason = "stop"
            elif token_id in params.stop_token_ids:
                output.finish_reason, output.stop_reason = "stop", token_id
            elif at >= (params.max_tokens or 0):
                output.finish_reason = "length"
        if output.finish_reason is None:
            self._open[key] = (message, tokens, at)
        else:
            del self._open[key]
        return output

    @staticmethod
    def _score(token_id: int) -> TokenScore:
        other = (token_id + 1) % VOCAB_SIZE
        return TokenScore(
            token_id, -0.25, 1, [token_id, other], [-0.25, math.log1p(-math.exp(-0.25))]
        )


class LoopClient:
    """A FakeClient that the event loop steps whenever it has nothing better to do."""

    def __init__(self, inner: FakeClient, deliver: Callable[[StepOutputs], None]) -> None:
        self._inner = inner
        self._deliver = deliver
        self._is_scheduled = False

    @property
    def info(self) -> EngineInfo:
        return self._inner.info

    def add(self, message: AddRequest) -> None:
        self._inner.add(message)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._step)

    def abort(self, request_ids: Sequence[str]) -> None:
        self._inner.abort(request_ids)

    def reset_prefix_cache(self) -> None:
        pass

    def predict_first_token_s(self, num_tokens: int) -> float | None:
        return None

    def outputs(self) -> StepOutputs:
        raise RuntimeError("outputs go to the callback")

    def stats(self) -> EngineStats:
        return self._inner.stats()

    def close(self) -> None:
        self._inner.close()

    def _step(self) -> None:
        self._deliver(self._inner.outputs())
        self._is_scheduled = self._inner.has_work
        if self._is_scheduled:
            asyncio.get_running_loop().call_soon(self._step)


def processor(
    *, info: EngineInfo = INFO, chat_template: str | None = TEMPLATE, seed: int | None = 0
) -> Processor:
    """A processor over the fake vocabulary."""
    tokenizer = FakeTokenizer(chat_template)
    return Processor(info, tokenizer, chat_template=load_chat_template(tokenizer), seed=seed)
