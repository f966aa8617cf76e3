"""
Follows a file that another program writes: the log on one machine, and a file of progress.

The file may lie on a network, where each read can take long or never end, so a
:class:`~dlsidecar.observing.file_threads.FileThread` reads it. It queues its findings in the order of
the file; the event loop takes them from the queue.
"""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections import deque
from typing import Callable, Union

from dlsidecar.observing.file_threads import FileThread, rest_after

BLOCK = 65536
BLOCKS_AT_ONCE = 4
SILENT = "it has not answered for {:g} s; everything else goes on without it"


class Skipped:
    """Something was left out here, or another file begins."""


class Readable:
    """It can be read, from here on."""


Found = Union[bytes, str, Skipped, Readable]
"""Appended bytes; why the file cannot be read; or one of the two above."""


class FollowedFile:
    """
    The file as the thread sees it; nothing of it but ``found`` is used on the event loop.

    A look may take long or never end, so that only one is under way at a time.
    """

    def __init__(self, path: str, *, farthest: int) -> None:
        self._path = path
        self._farthest = farthest
        self.found: deque[Found] = deque()
        """Filled on the thread, emptied on the loop, in the order of the file."""
        # These two belong to the thread alone.
        self._file = -1
        self._identity: tuple[int, int] = (0, 0)

    def read(self) -> None:
        """Read on, but only so far that the loop is not kept from its other work."""
        self._read_on()

    def read_to_end(self) -> None:
        """Read on to the end, or as far as a file that still grows is worth it."""
        for _ in range(1 + self._farthest // (BLOCK * BLOCKS_AT_ONCE)):
            if not self._read_on():
                return

    def _read_on(self) -> bool:
        """Read on; return whether there is more."""
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
        # A file that was cut and has grown beyond this place since is not noticed: its writer
        # would have to do both between two looks.
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
            # A named pipe is not even opened, lest its writer take us for the reader.
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
    Follows a file that another program writes, and passes on the lines that it appends.

    It polls a few times a second, because network file systems send no notifications. Far behind,
    it skips to the end: progress is news, not an archive.
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
        self._file_thread = FileThread("tail")
        self._file = FollowedFile(path, farthest=self.farthest)
        self._moment: object = None
        self._caught = threading.Event()
        """Set when the look that belongs to this moment is over."""
        self._told = ""
        self._silent = SILENT.format(self._file_thread.patience_seconds)
        # Lines that exist already are of an earlier life and say nothing about the speed of this one.
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
        # Back on the event loop: the thread rests, so that nothing changes in what it has found.
        if self._told == self._silent:
            self._relieve()
        self._take()
        # None after close(): a look that was out then must not begin the series again.
        if self._timer is not None:
            self._rest(took_seconds)

    def _rest(self, took_seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        seconds = rest_after(took_seconds, at_least=self.period_seconds)
        self._timer = self._loop.call_later(seconds, self._tick)

    def read_now(self) -> None:
        """Show at once what has been appended since the last look, if the file lets us."""
        self._file_thread.run(self._file.read, limit_seconds=self.hasty_look_seconds)
        self._take()

    def catch_up(self, moment: object) -> bool:
        """
        Show what has been appended, and return whether all is shown that was there at this moment.

        The first call for a moment has the file read to its end; later calls for the same moment find out whether
        that is over. No call waits for a slow file.
        """
        if moment != self._moment:
            self._moment = moment
            # A look for an earlier moment may still be out, and sets the event of that moment.
            self._caught = caught = threading.Event()

            def read_to_end() -> None:
                self._file.read_to_end()
                caught.set()

            self._file_thread.post(read_to_end)
            caught.wait(self.hasty_look_seconds)
        # Asked before the blocks are taken: what is found after that counts for the next call.
        is_over = self._caught.is_set()
        self._take()
        return is_over

    def _take(self) -> None:
        # A look that was not waited for may append meanwhile: a deque is safe for one that
        # appends and one that takes.
        while self._file.found:
            self._take_one(self._file.found.popleft())

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
        self._file_thread.run(self._file.close, limit_seconds=self.hasty_look_seconds)
        self._file_thread.close()
