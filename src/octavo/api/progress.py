"""A progress bar over the requests of one call. Draws only where standard error is a terminal."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class RequestProgress:
    """Counts finished requests and generated tokens. A context manager; it costs nothing when nothing is drawn."""

    def __init__(self, num_requests: int, *, is_wanted: bool) -> None:
        console = Console(stderr=True)
        self._bar: Progress | None = None
        if is_wanted and console.is_terminal and num_requests > 0:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[tokens]} tokens"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=console,
                transient=True,
            )
            self._task = self._bar.add_task("Prompts", total=num_requests, tokens=0)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    @property
    def is_drawn(self) -> bool:
        """Whether anybody sees it."""
        return self._bar is not None

    def show(self, num_finished: int, num_tokens: int) -> None:
        """Draw the new counts."""
        if self._bar is not None:
            self._bar.update(self._task, completed=num_finished, tokens=num_tokens)
