"""
Logs that lie in files: their last lines, and what is added to them.

A log that is turned over – renamed and begun anew, or cut – is read on from its new beginning.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from dlctl.backends import Away, BackendError, LogLine, NotThere

LOOK_S = 0.2
ASK_S = 1.0
"""How often it is asked whether there are other files by now, and whether the job has ended."""

BLOCK = 1 << 16
LONGEST_LINE = 1 << 20
"""A line that goes on for longer is passed on in pieces."""

Logs = Mapping[str, Path]


def read_lines(logs: Logs, lines: int | None) -> Iterator[LogLine]:
    """Yield the last lines of each log, one log after the other."""
    for node, path in logs.items():
        tail = _Tail(node, path, lines)
        yield from tail.read()
        yield from tail.rest()


def follow(find: Callable[[], tuple[Logs, bool]], lines: int | None) -> Iterator[LogLine]:
    """
    Yield the last lines of each log and then what is added, until the job has ended.

    ``find`` tells where the logs are and whether it has.
    """
    tails: dict[str, _Tail] = {}
    logs, ended = find()
    asked = time.monotonic()
    while True:
        for node, path in logs.items():
            if node not in tails:
                tails[node] = _Tail(node, path, lines)
            yield from tails[node].read()
        # Of a node that comes later everything is news.
        lines = None
        if ended:
            for tail in tails.values():
                yield from tail.rest()
            return
        time.sleep(LOOK_S)
        if time.monotonic() - asked >= ASK_S:
            logs, ended = _ask_again(find, logs)
            asked = time.monotonic()


def _ask_again(find: Callable[[], tuple[Logs, bool]], logs: Logs) -> tuple[Logs, bool]:
    """A controller that is away changes nothing about the training; a job that is gone has ended."""
    try:
        return find()
    except Away:
        return logs, False
    except NotThere:
        return logs, True


class _Tail:
    """One file, as far as it was read."""

    def __init__(self, node: str, path: Path, lines: int | None) -> None:
        self._node = node
        self._path = path
        self._lines = lines
        self._file = -1
        self._identity = (0, 0)
        self._begun = b""

    def read(self) -> Iterator[LogLine]:
        """Yield the lines that were added; what a progress bar draws over itself is one, too."""
        if not self._open():
            return
        while block := os.read(self._file, BLOCK):
            lines = (self._begun + block).splitlines(keepends=True)
            is_begun = not lines[-1].endswith((b"\n", b"\r")) and len(lines[-1]) < LONGEST_LINE
            self._begun = lines.pop() if is_begun else b""
            for line in lines:
                yield LogLine(self._node, line)

    def rest(self) -> Iterator[LogLine]:
        """Yield what nobody has ended by a line break."""
        if self._begun:
            yield LogLine(self._node, self._begun)
            self._begun = b""

    def _open(self) -> bool:
        """Whether the file is there, open, and read no further than it is long."""
        try:
            there = self._path.stat()
            if (there.st_dev, there.st_ino) != self._identity:
                self._turn_over((there.st_dev, there.st_ino))
            elif there.st_size < os.lseek(self._file, 0, os.SEEK_CUR):
                os.lseek(self._file, 0, os.SEEK_SET)
        except FileNotFoundError:
            return self._file >= 0
        except OSError as error:
            raise BackendError(f"{self._path}: cannot be read ({error.strerror})") from error
        return True

    def _turn_over(self, identity: tuple[int, int]) -> None:
        first = self._file < 0
        if not first:
            os.close(self._file)
        self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        self._identity = identity
        if first and self._lines is not None:
            os.lseek(self._file, _find_tail(self._file, self._lines), os.SEEK_SET)


def _find_tail(file: int, lines: int) -> int:
    """Where the last so many lines begin."""
    end = os.fstat(file).st_size
    if lines == 0:
        return end
    position, left = end, lines
    while position > 0:
        start = max(0, position - BLOCK)
        block = os.pread(file, position - start, start)
        # The last line ends with a line break, before which no other line begins.
        place = len(block) - (position == end)
        while left and (place := block.rfind(b"\n", 0, place)) >= 0:
            left -= 1
        if left == 0:
            return start + place + 1
        position = start
    return 0
