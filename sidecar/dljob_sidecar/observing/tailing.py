"""
Follows a file that another program writes: a log on one machine, or a progress file.

The file may lie on a network, where each read can take long or never end, so a
:class:`~dljob_sidecar.observing.file_threads.FileThread` reads it. The thread queues its findings in
the order of the file; the event loop takes them from the queue.
"""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections import deque
from typing import Callable, Union

from dljob_sidecar.observing.file_threads import FileThread, rest_after

BLOCK = 65536
BLOCKS_AT_ONCE = 4
SILENT = "it has not answered for {:g} s; everything else goes on without it"


class Skipped:
    """Marks dropped output, or the beginning of another file."""


class Readable:
    """Marks that the file can be read from here on."""


Found = Union[bytes, str, Skipped, Readable]
"""Appended bytes, the reason why the file cannot be read, or one of the two classes above."""


class FollowedFile:
    """
    The file as the thread sees it; the event loop uses only ``found``.

    One read runs at a time, because a read may take long or never end.
    """

    def __init__(self, path: str, *, farthest: int) -> None:
        self._path = path
        self._farthest = farthest
        self.found: deque[Found] = deque()
        """Filled by the thread and emptied by the loop, in the order of the file."""
        # Only the thread uses the next two attributes.
        self._file = -1
        self._identity: tuple[int, int] = (0, 0)

    def read(self) -> None:
        """Read further, up to a limit that does not block the loop."""
        self._read_on()

    def read_to_end(self) -> None:
        """Read to the end, up to a limit for a file that still grows."""
        for _ in range(1 + self._farthest // (BLOCK * BLOCKS_AT_ONCE)):
            if not self._read_on():
                return

    def _read_on(self) -> bool:
        """Read further; return True if there is more."""
        try:
            return self._follow()
        except OSError as error:
            self.found.append(error.strerror or str(error))
            return False

    def _follow(self) -> bool:
        try:
            there = os.stat(self._path)  # noqa: PTH116
        except FileNotFoundError:
            return False
        if self._file < 0:
            self.open(at_end=False)
        elif (there.st_dev, there.st_ino) != self._identity:
            self.found.append(Skipped())
            self.open(at_end=False)
        if self._file < 0:
            return False
        size = os.fstat(self._file).st_size
        position = os.lseek(self._file, 0, os.SEEK_CUR)
        # A file that was cut and has since grown beyond this position is not detected, because both
        # would have to happen between two reads.
        if size < position:
            self.found.append(Skipped())
            os.lseek(self._file, 0, os.SEEK_SET)
        elif size - position > self._farthest:
            os.lseek(self._file, size - BLOCK, os.SEEK_SET)
            self.found.append(Skipped())
        for _ in range(BLOCKS_AT_ONCE):
            block = os.read(self._file, BLOCK)
            if not block:
                return False
            self.found.append(block)
        return True

    def open(self, *, at_end: bool) -> None:
        self.close()
        try:
            # Do not open a named pipe, because its writer would take this process for the reader.
            if not stat.S_ISREG(os.stat(self._path).st_mode):  # noqa: PTH116
                self.found.append("not a regular file")
                return
            self._file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except OSError as error:
            self.found.append(error.strerror or str(error))
            return
        status = os.fstat(self._file)
        self._identity = (status.st_dev, status.st_ino)
        if at_end:
            os.lseek(self._file, 0, os.SEEK_END)
        self.found.append(Readable())

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


class Tail:
    """
    Follows a file that another program writes, and passes on the appended lines.

    The tail polls a few times a second, because network file systems send no notifications. If it
    is far behind, it skips to the end, because only the newest progress matters.
    """

    period_seconds = 0.2
    farthest = 1 << 20
    first_look_seconds = 5.0
    """The longest delay of a start by a file that does not answer."""
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
        """Call ``on_problem`` with why the file cannot be read, and ``on_relief`` when it can."""
        self.path = path
        self._show = show
        self._skip = skip
        self._on_problem = on_problem
        self._on_relief = on_relief
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._file_thread = FileThread("tail")
        self._file = FollowedFile(path, farthest=self.farthest)
        self._moment: object = None
        self._caught = threading.Event()
        """Set when the read for the current moment has ended."""
        self._told = ""
        self._silent = SILENT.format(self._file_thread.patience_seconds)
        # Existing lines belong to an earlier start and do not count for the speed of this one.
        self._file_thread.run(
            lambda: self._file.open(at_end=True), limit_seconds=self.first_look_seconds
        )

    def begin(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(self.period_seconds, self._tick)

    def _tick(self) -> None:
        if not self._file_thread.send(self._file.read, self._hear) and self._file_thread.is_lost:
            self._tell(self._silent)
        self._rest(0.0)

    def _hear(self, _: None, took_seconds: float) -> None:
        # This runs on the event loop while the thread rests, so the findings do not change.
        if self._told == self._silent:
            self._relieve()
        self._take()
        # After close(), a read that was under way must not restart the timer.
        if self._timer is not None:
            self._rest(took_seconds)

    def _rest(self, took_seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        seconds = rest_after(took_seconds, at_least=self.period_seconds)
        self._timer = self._loop.call_later(seconds, self._tick)

    def read_now(self) -> None:
        """Read what was appended since the last read, if the file answers."""
        self._file_thread.run(self._file.read, limit_seconds=self.hasty_look_seconds)
        self._take()

    def catch_up(self, moment: object) -> bool:
        """
        Read what was appended, and return True once everything up to this moment was passed on.

        The first call for a moment starts a read to the end; later calls for the same moment check
        whether the read is over. No call waits for a slow file.
        """
        if moment != self._moment:
            self._moment = moment
            # A read for an earlier moment may be under way, and sets that moment's event.
            self._caught = caught = threading.Event()

            def read_to_end() -> None:
                self._file.read_to_end()
                caught.set()

            self._file_thread.post(read_to_end)
            caught.wait(self.hasty_look_seconds)
        # Check before taking the blocks: later findings count for the next call.
        is_over = self._caught.is_set()
        self._take()
        return is_over

    def _take(self) -> None:
        # The thread may append meanwhile: a deque is safe for one appender and one taker.
        while self._file.found:
            found = self._file.found.popleft()
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
        # If the thread is busy reading, it closes the file afterwards.
        self._file_thread.run(self._file.close, limit_seconds=self.hasty_look_seconds)
        self._file_thread.close()
