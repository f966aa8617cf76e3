"""Progress bars on standard error."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from dljob.cli.output.streams import raw

PATIENCE_S = 1.5
"""Shorter replays get no bar."""

PERIOD_S = 0.1
"""The shortest time between two updates of the bar: replays complete thousands of jobs a second."""


class Bar:
    """A progress bar that appears after a while."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._began: dict[str, float] = {}
        self._tasks: dict[str, TaskID] = {}
        self._told = 0.0

    def watch(self, label: str, done: int, total: int) -> None:
        now = time.monotonic()
        began = self._began.setdefault(label, now)
        if now - began < PATIENCE_S or (now - self._told < PERIOD_S and done < total):
            return
        self._told = now
        if label not in self._tasks:
            self._tasks[label] = self._progress.add_task(label, total=total)
            self._progress.start()
        self._progress.update(self._tasks[label], completed=done, total=total)


@contextmanager
def progress_bar() -> Iterator[Bar | None]:
    """Return a bar if standard error is a terminal; else ``None``."""
    if not sys.stderr.isatty():
        yield None
        return
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
        console=Console(file=raw(sys.stderr)),
        transient=True,
    )
    try:
        yield Bar(progress)
    finally:
        progress.stop()
