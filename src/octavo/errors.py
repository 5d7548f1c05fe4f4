"""The errors Octavo raises on purpose.

OctavoError
├── InvalidRequest          the caller's input is wrong; the engine is fine
│   └── ContextLengthExceeded
├── ModelError              the model cannot be served
│   ├── ModelNotFound
│   ├── UnsupportedArchitecture
│   ├── CorruptWeights
│   └── UnusableBuild
├── StoreError              fetching or storing a model failed
├── CapacityError           the machine, or what it was granted, is too small
├── QueueFull               too many requests wait; later there will be room
└── EngineDead              the engine stopped; nothing more will be answered
"""

from __future__ import annotations

from collections.abc import Sequence


class OctavoError(Exception):
    """Root of every error that Octavo raises on purpose."""


class InvalidRequest(OctavoError, ValueError):
    """The input of one request is wrong. `param` names the field, `code` a machine-readable kind."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class ContextLengthExceeded(InvalidRequest):
    """Prompt, or prompt plus the requested output, does not fit the context. Nothing is ever cut."""

    def __init__(self, message: str, *, param: str | None = "prompt") -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class ModelError(OctavoError):
    """The model cannot be served."""


class ModelNotFound(ModelError):
    """No file, catalog entry or stored model has this name."""


class UnsupportedArchitecture(ModelError):
    """The file is sound but needs something Octavo does not have."""


class CorruptWeights(ModelError):
    """The file breaks its own format. `field` and `offset` (bytes) say where."""

    def __init__(
        self, message: str, *, path: str = "", field: str = "", offset: int | None = None
    ) -> None:
        where = f" [{field}" + (f" at byte {offset}" if offset is not None else "") + "]"
        prefix = f"{path}: " if path else ""
        super().__init__(prefix + message + (where if field else ""))
        self.path = path
        self.field = field
        self.offset = offset


class UnusableBuild(ModelError):
    """A build is damaged, of another version or of another model; the model file itself can still be loaded."""


class StoreError(OctavoError):
    """A model could not be fetched or stored."""


class CapacityError(OctavoError):
    """The machine, or the share of it that was granted, is too small. The message has the numbers.

    `flags` are the options of the command line that would fit, such as "--max-model-len 4096".
    """

    def __init__(self, message: str, *, flags: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.flags = tuple(flags)


class QueueFull(OctavoError):
    """Too many requests wait. After `retry_after_s` seconds there is room, as it looks. `reason` is the limit met."""

    def __init__(
        self, message: str, *, retry_after_s: int, reason: str = "max_num_queued_reqs"
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.reason = reason


class EngineDead(OctavoError):
    """The engine stopped; requests in flight end with an error."""
