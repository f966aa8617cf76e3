"""
Following a file that somebody else writes: the log on one machine, and a file of progress.

The file may lie on a network, where each look can take long or never end, so a
:class:`~dlsidecar.observing.file_threads.Scout` does the looking. What it finds it puts down in the order in
which it stands in the file; the event loop takes it up from there.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections import deque
from typing import Callable, Union

from dlsidecar.observing.file_threads import Scout, rest_after

BLOCK = 65536
BLOCKS_AT_ONCE = 4
SILENT = "it has not answered for {:g} s; everything else goes on without it"


class Skipped:
    """Something was left out here, or another file begins."""


class Readable:
    """It can be read, from here on."""


Found = Union[bytes, str, Skipped, Readable]
"""What was appended; why it cannot be read; or one of the two above."""


class Tail:
    """
    Follows a file that somebody else writes, and shows what is appended to it.

    It looks a few times a second instead of being told, because network file systems tell
    nobody. Far behind, it skips to the end: what is shown is news, not an archive.
    """

    period_seconds = 0.2
    farthest = 1 << 20
    first_look_seconds = 5.0
    """For how long a beginning may be held up by a file that does not answer."""
    hasty_look_seconds = 0.1

    def __init__(
        self,
        path: str,
        *,
        show: Callable[[bytes], None],
        skip: Callable[[], None],
        on_problem: Callable[[str], None],
        on_relief: Callable[[], None],
    ) -> None:
        """``on_problem`` hears why the file cannot be read, ``on_relief`` when it can again."""
        self.path = path
        self._show = show
        self._skip = skip
        self._on_problem = on_problem
        self._on_relief = on_relief
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._scout = Scout("tail")
        self._found: deque[Found] = deque()
        """Filled on the thread, emptied on the loop, in the order of the file."""
        self._told = ""
        self._silent = SILENT.format(self._scout.patience_seconds)
        # What belongs to the thread alone:
        self._file = -1
        self._identity: tuple[int, int] = (0, 0)
        # Lines that exist already are of an earlier life and say nothing about the speed of this one.
        self._scout.run(lambda: self._open(at_end=True), limit_seconds=self.first_look_seconds)

    # --- on the loop ------------------------------------------------------------------------

    def begin(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(self.period_seconds, self._tick)

    def _tick(self) -> None:
        if not self._scout.send(self._look, self._hear) and self._scout.is_lost:
            self._tell(self._silent)
        self._rest(0.0)

    def _hear(self, _: None, took_seconds: float) -> None:
        if self._told == self._silent:
            self._relieve()
        self._take()
        if self._timer is not None:
            self._rest(took_seconds)

    def _rest(self, took_seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        seconds = rest_after(took_seconds, at_least=self.period_seconds)
        self._timer = self._loop.call_later(seconds, self._tick)

    def look(self) -> None:
        """Show at once what has been appended since the last look, if the file lets us."""
        self._scout.run(self._look, limit_seconds=self.hasty_look_seconds)
        self._take()

    def _take(self) -> None:
        while self._found:
            self._take_one(self._found.popleft())

    def _take_one(self, found: Found) -> None:
        if isinstance(found, bytes):
            self._show(found)
        elif isinstance(found, str):
            self._tell(found)
        elif isinstance(found, Skipped):
            self._skip()
        else:
            self._relieve()

    def _tell(self, message: str) -> None:
        if message != self._told:
            self._told = message
            self._on_problem(f"{self.path}: {message}")

    def _relieve(self) -> None:
        if self._told:
            self._told = ""
            self._on_relief()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # It may be in there: it closes behind itself when it is back.
        self._scout.run(self._close, limit_seconds=self.hasty_look_seconds)
        self._scout.close()

    # --- on the thread ----------------------------------------------------------------------

    def _look(self) -> None:
        try:
            self._follow()
        except OSError as error:
            self._found.append(error.strerror or str(error))

    def _follow(self) -> None:
        try:
            there = os.stat(self.path)  # noqa: PTH116
        except FileNotFoundError:
            return
        if self._file < 0:
            self._open(at_end=False)
        elif (there.st_dev, there.st_ino) != self._identity:
            self._found.append(Skipped())
            self._open(at_end=False)
        if self._file < 0:
            return
        size = os.fstat(self._file).st_size
        position = os.lseek(self._file, 0, os.SEEK_CUR)
        if size < position:
            self._found.append(Skipped())
            os.lseek(self._file, 0, os.SEEK_SET)
        elif size - position > self.farthest:
            os.lseek(self._file, size - BLOCK, os.SEEK_SET)
            self._found.append(Skipped())
        for _ in range(BLOCKS_AT_ONCE):
            block = os.read(self._file, BLOCK)
            if not block:
                break
            self._found.append(block)

    def _open(self, *, at_end: bool) -> None:
        self._close()
        try:
            # A named pipe is not even opened, lest its writer take us for the reader.
            if not stat.S_ISREG(os.stat(self.path).st_mode):  # noqa: PTH116
                self._found.append("not a regular file")
                return
            self._file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except OSError as error:
            self._found.append(error.strerror or str(error))
            return
        status = os.fstat(self._file)
        self._identity = (status.st_dev, status.st_ino)
        if at_end:
            os.lseek(self._file, 0, os.SEEK_END)
        self._found.append(Readable())

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1
