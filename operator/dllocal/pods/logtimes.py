"""
When the logs of trainings were how long, so that ``dljob logs --since`` knows where to begin.

Trainings write into their logs themselves, without a time at each line. So the length of each log is noted
whenever :mod:`dllocal.pods.rotating` looks at it. This is kept in memory alone: of what was written before the
server started it is only known that it is older. All times are by the clock of the server, which no setting of
the machine's clock moves; ``dljob logs --since`` counts back by the same clock.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

MOST_MARKS: Final = 1024
"""Of one log; beyond that every other one of the older half is forgotten."""


class Begin(NamedTuple):
    """Where to begin to read a log."""

    parts: int
    """In how many parts before the present log; 0: in the log itself."""
    offset: int


class _Mark(NamedTuple):
    at: float
    cut: int
    """How often the log had been turned over."""
    size: int


class LogTimes:
    """Those of all logs of one server."""

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``clock`` is the server's, and ``wall`` the machine's, by which the kernel stamps files."""
        self.clock = clock
        self._wall = wall
        self._marks: dict[Path, list[_Mark]] = {}
        self._cuts: dict[Path, int] = {}

    def note(self, path: Path, now: float) -> None:
        """Note how long a log is now."""
        try:
            status = path.stat(follow_symlinks=False)
        except OSError:
            return
        size, cut = status.st_size, self._cuts.get(path, 0)
        if path not in self._marks:
            # How long ago it was written is asked now, because the
            # machine's clock may be set until the next request.
            since_written = max(0.0, self._wall() - status.st_mtime)
            self._marks[path] = [_Mark(now - since_written, cut, size)]
            return
        marks = self._marks[path]
        # The first mark stays, because no other one shows when the log was written before it was noted.
        if len(marks) > 1 and marks[-1][1:] == (cut, size):
            marks[-1] = _Mark(now, cut, size)
            return
        marks.append(_Mark(now, cut, size))
        if len(marks) > MOST_MARKS:
            half = MOST_MARKS // 2
            marks[:half] = marks[:half:2]

    def note_cut(self, path: Path) -> None:
        """Note that a log has become a part and begins again."""
        self._cuts[path] = self._cuts.get(path, 0) + 1

    def forget_removed(self) -> None:
        """Forget the logs that are there no more. Those of a job that has ended stay until it goes."""
        for path in [path for path in self._marks if not os.path.lexists(path)]:
            del self._marks[path]
            self._cuts.pop(path, None)

    def find(self, path: Path, at: float) -> Begin | None:
        """Say where that begins which was written after this time; ``None``: all that there is may be."""
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
