"""What an API process and its engine process say to each other: typed messages, one frame each. No pickle.

    API -> engine      AddRequest | Abort | ResetCache | Close
    engine -> API      Planned | Ready | Refused | StepOutputs | CacheReset

The first message to an engine is its EngineSpec; it comes over stdin, whose end tells that the API process is gone.
"""

from __future__ import annotations

from typing import Final

import msgspec

from octavo.config import EngineConfig
from octavo.messages import AddRequest, EngineInfo, EngineStats, StepOutputs


class EngineSpec(msgspec.Struct, frozen=True):
    """What an engine process is started with.

    `path` is the model's file; `digest` and the place of the build as in `load_engine`. `commands`, `outputs` are ZeroMQ addresses:
    the engine reads from the one and writes to the other. `board` is the file of its progress.
    """

    config: EngineConfig
    path: str
    commands: str = ""
    outputs: str = ""
    board: str = ""
    build_path: str | None = None
    build_digest: str | None = None
    digest: str | None = None
    log_level: str = "WARNING"
    log_format: str = "text"


class Abort(msgspec.Struct, array_like=True, gc=False, tag=True):
    """End these requests."""

    request_ids: list[str]


class ResetCache(msgspec.Struct, array_like=True, gc=False, tag=True):
    """Forget what is stored of earlier prompts; CacheReset with the same number says that it is done."""

    number: int


class Close(msgspec.Struct, array_like=True, gc=False, tag=True):
    """End all requests, then the process."""


class Planned(msgspec.Struct, array_like=True, gc=False, tag=True):
    """The model will be loaded: its memory is planned."""


class Ready(msgspec.Struct, array_like=True, gc=False, tag=True):
    """The engine takes requests."""

    info: EngineInfo
    stats: EngineStats


class Refused(msgspec.Struct, array_like=True, gc=False, tag=True):
    """The engine could not be started, and why: the class of the error, what it says, what it carries."""

    kind: str
    message: str
    param: str | None = None
    flags: list[str] = []


class CacheReset(msgspec.Struct, array_like=True, gc=False, tag=True):
    """The prefix cache was reset."""

    number: int
    stats: EngineStats


ToEngine = AddRequest | Abort | ResetCache | Close
FromEngine = Planned | Ready | Refused | StepOutputs | CacheReset

encode: Final = msgspec.msgpack.Encoder().encode
to_engine_decoder: Final = msgspec.msgpack.Decoder(ToEngine)
from_engine_decoder: Final = msgspec.msgpack.Decoder(FromEngine)
spec_decoder: Final = msgspec.msgpack.Decoder(EngineSpec)
