"""`octavo run`: chat with a model, or answer one prompt."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import CycloptsError, Parameter

from octavo.api.async_llm import AsyncLLM
from octavo.cli.chat_loop import chat_loop
from octavo.cli.fetch import model_file
from octavo.cli.flags import with_flags
from octavo.cli.session import Session
from octavo.config import CacheConfig, ComputeConfig, EngineConfig, ModelConfig, SchedulerConfig
from octavo.errors import InvalidRequest
from octavo.params import SamplingParams


@with_flags(
    {"max_tokens": None},
    sampling=SamplingParams,
    model_options=ModelConfig,
    scheduler=SchedulerConfig,
    cache=CacheConfig,
    compute=ComputeConfig,
)
def run(
    model: str,
    prompt: str | None = None,
    /,
    *,
    system: Annotated[str | None, Parameter(help="system message of the chat")] = None,
    raw: Annotated[
        bool, Parameter(help="complete the text as it is, no chat", negative=(), show_default=False)
    ] = False,
    stats: Annotated[
        bool,
        Parameter(
            help="print time to first token, tokens/s and cached tokens",
            negative=(),
            show_default=False,
        ),
    ] = False,
    sampling: SamplingParams,
    model_options: ModelConfig,
    scheduler: SchedulerConfig,
    cache: CacheConfig,
    compute: ComputeConfig,
) -> int:
    """Chat with MODEL, or answer PROMPT once. Fetches a catalog model on first use.

    Without PROMPT a terminal starts a chat; otherwise the prompt is read from
    standard input. Only the answer goes to standard output. Ctrl-C stops an answer.

    Example: octavo run smollm2 "Why is the sky blue?" --temperature 0

    Parameters
    ----------
    model
        Catalog name or path of a .gguf file.
    prompt
        What to answer.
    """
    if raw and system is not None:
        raise CycloptsError(msg="--raw completes the text as it is: no --system with it")
    model_file(model)
    is_chat = prompt is None and sys.stdin.isatty()
    text = _standard_input(raw) if prompt is None and not is_chat else prompt
    if text == "":
        raise InvalidRequest("the prompt is empty: there is nothing to answer", param="prompt")
    config = EngineConfig(model=model_options, scheduler=scheduler, cache=cache, compute=compute)
    with (
        AsyncLLM.from_config(config) as llm,
        Session(llm, sampling, system=system, is_raw=raw, shows_stats=stats) as session,
    ):
        return chat_loop(session) if text is None else session.answer(text)


def _standard_input(is_raw: bool) -> str:
    """All of standard input. The newline that `echo` adds is no part of a message; of a raw text everything counts."""
    try:
        text = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"standard input is not UTF-8: see byte {error.start}") from None
    return text if is_raw else text.removesuffix("\n").removesuffix("\r")
