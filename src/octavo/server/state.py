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
    """The served model and what is counted. `is_draining` is set once, when the server is told to stop.

    The model answers to `model_name`, which is also the name in its answers, and to `aliases`.
    """

    llm: AsyncLLM
    model_name: str
    metrics: Metrics
    access: Access = OPEN
    observability: ObservabilityConfig = QUIET
    aliases: tuple[str, ...] = ()
    created: int = field(default_factory=lambda: int(time.time()))
    is_draining: bool = False

    @property
    def fingerprint(self) -> str:
        """What an answer depends on besides the request: version and kernels."""
        return f"octavo-{__version__}-{self.llm.info.kernel_table}"

    def check_model(self, name: str | None) -> None:
        """Raise ApiError 404 unless this model is served here."""
        if name is not None and name != self.model_name and name not in self.aliases:
            shown = name if len(name) <= _MAX_NAME else name[:_MAX_NAME] + "..."
            raise ApiError(
                HTTPStatus.NOT_FOUND,
                f"the model {shown!r} does not exist; this server has {self.model_name!r}",
                param="model",
                code="model_not_found",
            )

    def model_card(self, name: str | None = None) -> dict[str, Any]:
        """The entry of /v1/models under one of the model's names, with vLLM's fields."""
        model_id = name or self.model_name
        permission = {
            "id": f"modelperm-{model_id}",
            "object": "model_permission",
            "created": self.created,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        return {
            "id": model_id,
            "object": "model",
            "created": self.created,
            "owned_by": "octavo",
            "root": self.model_name,
            "parent": None,
            "max_model_len": self.llm.info.max_model_len,
            "permission": [permission],
        }
