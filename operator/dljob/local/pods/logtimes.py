"""
The lengths of trainings' logs over time, so that ``dljob logs --since`` knows where to begin.

Trainings write their logs themselves, without a time on each line, so :mod:`dljob.local.pods.rotating` notes the length of
each log at every check. The marks are in memory: output from before the start of the server has no time. All times are
by the server's clock, which changes of the machine's clock do not move.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

MOST_MARKS: Final = 1024
"""The most marks of one log; beyond that, every other mark of the older half is forgotten."""


class Begin(NamedTuple):
    """A position in a log."""

    parts: int
    """The number of rotated parts to go back; 0: the log itself."""
    offset: int


class _Mark(NamedTuple):
    at: float
    cut: int
    """The number of rotations before."""
    size: int


class LogTimes:
    def __init__(
        self, clock: Callable[[], float] = time.time, *, wall: Callable[[], float] = time.time
    ) -> None:
        """``clock`` is the server's, and ``wall`` the machine's, which stamps files."""
        self.clock = clock
        self._wall = wall
        self._marks: dict[Path, list[_Mark]] = {}
        self._cuts: dict[Path, int] = {}

    def note(self, path: Path, now: float) -> None:
        """Note the present length of a log."""
        try:
            status = path.stat(follow_symlinks=False)
        except OSError:
            return
        size, cut = status.st_size, self._cuts.get(path, 0)
        if path not in self._marks:
            # Now, because the machine's clock may be set before a request asks.
            since_written = max(0.0, self._wall() - status.st_mtime)
            self._marks[path] = [_Mark(now - since_written, cut, size)]
            return
        marks = self._marks[path]
        # The first mark stays, because it has the time of the last output before it.
        if len(marks) > 1 and marks[-1][1:] == (cut, size):
            marks[-1] = _Mark(now, cut, size)
            return
        marks.append(_Mark(now, cut, size))
        if len(marks) > MOST_MARKS:
            half = MOST_MARKS // 2
            marks[:half] = marks[:half:2]

    def note_cut(self, path: Path) -> None:
        """Note that a log was rotated."""
        self._cuts[path] = self._cuts.get(path, 0) + 1

    def forget_removed(self) -> None:
        """Forget logs that no longer exist."""
        for path in [path for path in self._marks if not os.path.lexists(path)]:
            del self._marks[path]
            self._cuts.pop(path, None)

    def find(self, path: Path, at: float) -> Begin | None:
        """Return where the output after a time begins; ``None`` if that may be the whole log."""
        marks = self._marks.get(path, [])
        known = [mark for mark in marks if mark.at <= at]
        if known:
            return Begin(self._cuts.get(path, 0) - known[-1].cut, known[-1].size)
        if marks:
            return None
        try:
            status = path.stat(follow_symlinks=False)
        except OSError:
            return None
        return Begin(0, status.st_size) if status.st_mtime <= at else None
