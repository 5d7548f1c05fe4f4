"""What one rendering of a chat template owns, found through its context."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Final

from jinja2.runtime import Context

from octavo.tokenization.template_limits import Budget, weigh

STATE_KEY: Final = "<state>"
"""Context key of the RenderState; no template can name it."""


class PrintsArguments(Exception):
    """The template prints tool arguments as they are, so it wants them as JSON text."""


@dataclass(slots=True)
class RenderState:
    """What one rendering owns."""

    budget: Budget
    arguments: list[object] = field(default_factory=list)
    """Tool arguments that are passed as objects."""

    def check_printed(self, value: object) -> None:
        """Pay for turning `value` into text. Raises PrintsArguments or TemplateRefused."""
        if isinstance(value, str):
            self.budget.charge(sys.getsizeof(value))
            return
        if any(value is item for item in self.arguments):
            raise PrintsArguments
        weigh(self.budget, value, with_text=True, is_printed=True)


def state_of(context: Context) -> RenderState:
    """The state of the rendering that `context` belongs to."""
    state = context.parent[STATE_KEY]
    assert isinstance(state, RenderState)
    return state
