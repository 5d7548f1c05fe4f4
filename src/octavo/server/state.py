"""What the routes of one server share."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from octavo import __version__
from octavo.api.async_llm import AsyncLLM
from octavo.observability.config import QUIET, ObservabilityConfig
from octavo.server.errors import ApiError
from octavo.server.metrics import Metrics
from octavo.server.security import OPEN, Access

_MAX_NAME: Final = 100


@dataclass(slots=True)
class ServerState:
    """The served model and what is counted. `is_draining` is set once, when the server is told to stop."""

    llm: AsyncLLM
    model_name: str
    metrics: Metrics
    access: Access = OPEN
    observability: ObservabilityConfig = QUIET
    created: int = field(default_factory=lambda: int(time.time()))
    is_draining: bool = False

    @property
    def fingerprint(self) -> str:
        """What an answer depends on besides the request: version and kernels."""
        return f"octavo-{__version__}-{self.llm.info.kernel_table}"

    def check_model(self, name: str | None) -> None:
        """Raise ApiError 404 unless this model is served here."""
        if name is not None and name != self.model_name:
            shown = name if len(name) <= _MAX_NAME else name[:_MAX_NAME] + "..."
            raise ApiError(
                HTTPStatus.NOT_FOUND,
                f"the model {shown!r} does not exist; this server has {self.model_name!r}",
                param="model",
                code="model_not_found",
            )

    def model_card(self) -> dict[str, Any]:
        """The entry of /v1/models."""
        return {
            "id": self.model_name,
            "object": "model",
            "created": self.created,
            "owned_by": "octavo",
            "root": self.model_name,
            "parent": None,
            "max_model_len": self.llm.info.max_model_len,
        }
