"""Progress bars for downloads and long runs. Nothing is drawn where standard error is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


@contextmanager
def download_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a callback (what, done bytes, total bytes) that draws one bar per `what`."""
    bar: Progress | None = None
    tasks: dict[str, TaskID] = {}

    def report(what: str, done: int, total: int) -> None:
        nonlocal bar
        if not sys.stderr.isatty():
            return
        if bar is None:
            bar = _new_bar()
            bar.start()
        if what not in tasks:
            tasks[what] = bar.add_task(what, total=total or None)
        bar.update(tasks[what], completed=done)

    try:
        yield report
    finally:
        if bar is not None:
            bar.stop()


@contextmanager
def count_progress(what: str, count_all: Callable[[], int]) -> Iterator[Callable[[int], None]]:
    """Yield a callback (how many are done) that draws one bar. `count_all` is asked only if there is one."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(what, total=count_all())
        yield lambda done: bar.update(task, completed=done)


def _new_bar() -> Progress:
    """Loaded when there is something to draw: a stored model starts without it."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
