"""The name of a stored model, a parsed value."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

from octavo.errors import InvalidRequest

DEFAULT_TAG: Final = "latest"

_PART: Final = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?\Z")


@dataclass(frozen=True, slots=True, order=True)
class ModelName:
    """`name[:tag]`, as in `gemma3:270m`. Case does not count; the tag is `latest` where none is given.

    Each part is 1 to 64 letters, digits, dots, dashes and underscores, begins and ends with a letter or digit, and
    holds no two dots in a row: so it is one component of a path and never leads out of the store.
    """

    name: str
    tag: str = DEFAULT_TAG

    def __post_init__(self) -> None:
        for part in (self.name, self.tag):
            if not _PART.match(part) or ".." in part:
                raise InvalidRequest(
                    f"{part[:80]!r} is not part of a model name: names look like smollm2 or gemma3:270m",
                    param="model",
                )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `name[:tag]`. Raises InvalidRequest that shows the part at fault."""
        name, separator, tag = text.strip().lower().partition(":")
        return cls(name, tag if separator else DEFAULT_TAG)

    def __str__(self) -> str:
        return self.name if self.tag == DEFAULT_TAG else f"{self.name}:{self.tag}"
