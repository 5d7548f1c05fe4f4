"""A model name -> a loaded engine with its tokenizer: what `LLM` and `AsyncLLM` are started from."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from octavo.api.builds import build_to_start_from
from octavo.api.chat import load_chat_template
from octavo.api.models import resolve_model
from octavo.api.processor import Processor
from octavo.config import NO_LIMITS, EngineConfig, ModelConfig, QueueLimits, from_env
from octavo.engine.engine import Engine
from octavo.engine.loader import load_engine
from octavo.engine.process_client import ProcessClient, Supervision
from octavo.engine.spawn import EarlyProcess
from octavo.engine.start import within_limits
from octavo.engine.wire import EngineSpec
from octavo.observability.logs import log_format_in_use
from octavo.store.builds import stored_digest
from octavo.tokenization.chat_template import ChatTemplate
from octavo.tokenization.tokenizer import Tokenizer, load_tokenizer
from octavo.weights.source import Metadata, open_weights

_Engine = TypeVar("_Engine", Engine, ProcessClient)


def nothing() -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """An engine that nobody drives yet, and the front end that speaks to it."""

    engine: Engine
    processor: Processor


def load_runtime(
    config: EngineConfig,
    *,
    tokenizer: str | Path | Tokenizer | None = None,
    seed: int | None = None,
) -> Runtime:
    """Resolve the model's name, read its tokenizer, load its weights.

    `tokenizer` replaces the model's own: a tokenizer, or a model whose one is taken. `seed` makes the requests
    without seed reproducible. OCTAVO_ISA names the kernel table where the configuration does not.
    Raises: InvalidRequest, ModelError, StoreError, CapacityError.
    """
    path, home, config = _resolved(config)
    with within_limits(path), open_weights(path) as weights:
        build = build_to_start_from(home, weights.path, config.model)
        engine, (ready, template) = load_both(
            lambda on_planned: load_engine(
                config,
                weights,
                build=build,
                digest=stored_digest(home, weights.path),
                on_planned=on_planned,
            ),
            lambda: _front_end(config.model, weights.metadata, tokenizer),
        )
    return Runtime(engine, Processor(engine.info, ready, chat_template=template, seed=seed))


def start_engine_process(
    config: EngineConfig,
    *,
    tokenizer: str | Path | Tokenizer | None = None,
    seed: int | None = None,
    queue: QueueLimits = NO_LIMITS,
    replays: bool = True,
    early: EarlyProcess | None = None,
    on_lost: Callable[[], None] = nothing,
) -> tuple[ProcessClient, Processor]:
    """The same with the engine in a process of its own, supervised, and a client that speaks to it.

    `replays`: requests of an engine that dies go on in the next one. `early` is a process that waits to be the engine.
    `on_lost` is called, in a thread of the client's, when no engine can be started any more. Requests that stopped two
    engines are kept below OCTAVO_HOME.
    Raises: as `load_runtime`; EngineDead if the process ends without a word.
    """
    path, home, config = _resolved(config)
    supervision = Supervision(replays, home / "quarantine")
    with within_limits(path), open_weights(path) as weights:
        build = build_to_start_from(home, weights.path, config.model)
        spec = EngineSpec(
            config=config,
            path=str(path),
            build_path=None if build is None else str(build.path),
            build_digest=None if build is None else build.digest,
            digest=stored_digest(home, weights.path),
            log_level=logging.getLevelName(logging.getLogger("octavo").getEffectiveLevel()),
            log_format=log_format_in_use().value,
        )
        client, (ready, template) = load_both(
            lambda on_planned: ProcessClient(
                spec,
                limits=queue,
                supervision=supervision,
                early=early,
                on_planned=on_planned,
                on_lost=on_lost,
            ),
            lambda: _front_end(config.model, weights.metadata, tokenizer),
        )
    return client, Processor(client.info, ready, chat_template=template, seed=seed)


def load_both(
    load: Callable[[Callable[[], None]], _Engine],
    prepare: Callable[[], tuple[Tokenizer, ChatTemplate | None]],
) -> tuple[_Engine, tuple[Tokenizer, ChatTemplate | None]]:
    """Do both at once: native code reads or packs weights while Python builds the tokenizer.

    `load` calls its argument once the memory is planned: no tokenizer is built where the model will not fit. Where
    both fail after that, the error is the tokenizer's: it is about the file, the other may be about the machine only.
    """
    front_end: list[Future[tuple[Tokenizer, ChatTemplate | None]]] = []
    with ThreadPoolExecutor(1, "octavo-tokenizer") as pool:
        try:
            engine = load(lambda: front_end.append(pool.submit(prepare)))
        except Exception:
            for started in front_end:
                started.result()
            raise
    try:
        return engine, front_end[0].result()
    except BaseException:
        engine.close()
        raise


def _resolved(config: EngineConfig) -> tuple[Path, Path, EngineConfig]:
    """The model's file, OCTAVO_HOME, and the configuration with a name to show and the kernel table asked for."""
    path = resolve_model(config.model.model)
    env = from_env()
    compute = replace(config.compute, isa=config.compute.isa or env.isa)
    return path, env.home, replace(config, model=_named(config.model), compute=compute)


def _front_end(
    model: ModelConfig, metadata: Metadata, tokenizer: str | Path | Tokenizer | None
) -> tuple[Tokenizer, ChatTemplate | None]:
    ready = load_tokenizer(metadata) if tokenizer is None else _other_tokenizer(tokenizer)
    return ready, load_chat_template(ready, model.chat_template)


def _named(model: ModelConfig) -> ModelConfig:
    """The model with a name to show; of a path only the file's own name, for clients need not know the rest."""
    name = model.served_model_name
    if name is None:
        path = Path(model.model)
        name = path.stem if path.suffix == ".gguf" else path.name
    return replace(model, served_model_name=name)


def _other_tokenizer(tokenizer: str | Path | Tokenizer) -> Tokenizer:
    if not isinstance(tokenizer, str | Path):
        return tokenizer
    with open_weights(resolve_model(str(tokenizer))) as weights:
        return load_tokenizer(weights.metadata)
