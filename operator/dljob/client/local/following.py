"""
Logs that lie in files: their last lines, and what is added to them.

A rotated log – one that was renamed and started again, or cut – is read on from its new beginning. The parts
that :mod:`dljob.local.pods.rotating` has made of a log are read as one.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

from dljob.client.backend import Away, BackendError, LogLine, NotThere, never
from dljob.local.folders import deletion_note, older_parts
from dljob.local.pods.logtimes import Begin

LOOK_S = 0.2
ASK_S = 1.0
"""The interval of checks for new files and for the end of the job."""

BLOCK = 1 << 16
LONGEST_LINE = 1 << 20
"""Longer lines are passed on in pieces."""

Logs = Mapping[str, Path]


Begins = Mapping[str, Begin]
"""The place in the log of a node to begin at; the default is the beginning."""
WHOLE: Begins = MappingProxyType({})


def read_lines(logs: Logs, lines: int | None, *, begins: Begins = WHOLE) -> Iterator[LogLine]:
    """Yield the last lines of each log, one log after the other."""
    for node, path in logs.items():
        tail = _Tail(node, path, lines=lines, begin=begins.get(node))
        yield from tail.read()
        yield from tail.rest()


def follow(
    find: Callable[[], tuple[Logs, bool]],
    lines: int | None,
    *,
    begins: Begins = WHOLE,
    is_over: Callable[[], bool] = never,
) -> Iterator[LogLine]:
    """
    Yield the last lines of each log and then what is added, until the job has ended or ``is_over`` holds.

    ``find`` returns the logs by node, and whether the job has ended.
    """
    tails: dict[str, _Tail] = {}
    logs, ended = find()
    asked = time.monotonic()
    while True:
        for node, path in logs.items():
            if node not in tails:
                tails[node] = _Tail(node, path, lines=lines, begin=begins.get(node))
            yield from tails[node].read()
        # All output of a node that comes later is new.
        lines = None
        if ended:
            for tail in tails.values():
                yield from tail.rest()
            return
        time.sleep(LOOK_S)
        if is_over():
            return
        if time.monotonic() - asked >= ASK_S:
            logs, ended = _ask_again(find, logs)
            asked = time.monotonic()


def _ask_again(find: Callable[[], tuple[Logs, bool]], logs: Logs) -> tuple[Logs, bool]:
    """Treat an unreachable controller as no change, and a missing job as ended."""
    try:
        return find()
    except Away:
        return logs, False
    except NotThere:
        return logs, True


class _Tail:
    """The reading position in one log with its parts."""

    def __init__(self, node: str, path: Path, *, lines: int | None, begin: Begin | None) -> None:
        self._node = node
        self._path = path
        self._lines = lines
        self._from = begin
        self._file = -1
        self._identity = (0, 0)
        self._parts: set[tuple[int, int]] = set()
        """The parts that existed at the last read."""
        self._begun = b""

    def read(self) -> Iterator[LogLine]:
        """Yield the lines that were added; what a progress bar draws over itself is one, too."""
        for block in self._iter_blocks():
            lines = (self._begun + block).splitlines(keepends=True)
            is_begun = not lines[-1].endswith((b"\n", b"\r")) and len(lines[-1]) < LONGEST_LINE
            self._begun = lines.pop() if is_begun else b""
            for line in lines:
                yield LogLine(self._node, line)

    def rest(self) -> Iterator[LogLine]:
        """Yield the rest, which no line break ends."""
        if self._begun:
            yield LogLine(self._node, self._begun)
            self._begun = b""

    # --- bytes, from any part

    def _iter_blocks(self) -> Iterator[bytes]:
        try:
            there = self._path.stat()
            if self._file < 0:
                yield from self._begin()
            elif _identify(there) != self._identity:
                yield from _iter_file(self._file)
                self._parts.add(self._identity)
                self._open()
        except FileNotFoundError:
            if self._file < 0:
                return
        except OSError as error:
            raise BackendError(f"{self._path}: cannot be read ({error.strerror})") from error
        yield from self._read_on()

    def _begin(self) -> Iterator[bytes]:
        """Open the log where its last lines begin, having read the parts that they begin in."""
        self._open()
        with _kept_from_turning(self._file):
            files = self._open_new_parts()
            if self._lines is not None:
                _seek_tail([*files, self._file], self._lines)
            if self._from is not None:
                _skip_to([*files, self._file], self._from)
            if self._lines is None and self._from is None:
                with suppress(FileNotFoundError):
                    files.insert(0, _open(deletion_note(self._path)))
        yield from _iter_and_close(files)

    def _read_on(self) -> Iterator[bytes]:
        """Read new bytes, also those of parts that were rotated since."""
        while True:
            with _kept_from_turning(self._file):
                files = self._open_turned_over()
                block = b"" if files else os.read(self._file, BLOCK)
            if files:
                yield from _iter_and_close(files)
            elif block:
                yield block
            else:
                return

    def _open_turned_over(self) -> list[int]:
        """
        Open the parts that hold what was not read before the log was cut, if it was.

        A log that is shorter than before was cut, too, but it may have grown again meanwhile.
        """
        position = os.lseek(self._file, 0, os.SEEK_CUR)
        files = self._open_new_parts()
        if files:
            os.lseek(files[0], position, os.SEEK_SET)
        if files or os.fstat(self._file).st_size < position:
            os.lseek(self._file, 0, os.SEEK_SET)
        return files

    def _open_new_parts(self) -> list[int]:
        files = _open_parts(self._path)
        identities = [_identify(os.fstat(file)) for file in files]
        # The file that is read may itself be a part now, if another program renames logs.
        known = self._parts | {self._identity}
        new = [file for file, name in zip(files, identities, strict=True) if name not in known]
        for file in files:
            if file not in new:
                os.close(file)
        self._parts = set(identities)
        return new

    def _open(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = _open(self._path)
        self._identity = _identify(os.fstat(self._file))


def _identify(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _open_parts(path: Path) -> list[int]:
    """Open all parts; try again if they change their names meanwhile."""
    files: list[int] = []
    try:
        files += map(_open, older_parts(path))
    except FileNotFoundError:
        for file in files:
            os.close(file)
        return _open_parts(path)
    return files


@contextmanager
def _kept_from_turning(file: int) -> Iterator[None]:
    """Keep a log from being rotated (:meth:`dljob.local.pods.rotating.Turn.finish`)."""
    fcntl.flock(file, fcntl.LOCK_SH)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def _iter_and_close(files: Sequence[int]) -> Iterator[bytes]:
    try:
        for file in files:
            yield from _iter_file(file)
    finally:
        for file in files:
            os.close(file)


def _iter_file(file: int) -> Iterator[bytes]:
    while block := os.read(file, BLOCK):
        yield block


def _seek_tail(files: Sequence[int], lines: int) -> None:
    """Go to the beginning of the last ``lines`` lines, which may be in any of these files; together they are one log."""
    left, is_end = lines, True
    for file in reversed(files):
        position = os.fstat(file).st_size
        while left and position > 0:
            start = max(0, position - BLOCK)
            block = os.pread(file, position - start, start)
            # The last line ends with a line break, before which no other line begins.
            place = len(block) - is_end
            is_end = False
            while left and (place := block.rfind(b"\n", 0, place)) >= 0:
                left -= 1
            position = start + place + 1 if left == 0 else start
        # All of the file, or nothing if later files hold enough.
        os.lseek(file, position, os.SEEK_SET)


def _skip_to(files: Sequence[int], begin: Begin) -> None:
    """Leave out what is before a place, but for the beginning of the line that goes on there."""
    for parts, file in enumerate(reversed(files)):
        if parts < begin.parts:
            continue
        size = os.fstat(file).st_size
        least = _line_start(file, begin.offset) if parts == begin.parts else size
        os.lseek(file, max(os.lseek(file, 0, os.SEEK_CUR), min(least, size)), os.SEEK_SET)


def place_before_end(path: Path, size: int) -> Begin:
    """Return the place this number of bytes before the end of a log with its parts, or its beginning."""
    parts = 0
    for parts, file in enumerate((path, *reversed(older_parts(path)))):
        # A part may be rotated away meanwhile.
        there = file.stat().st_size if file.exists() else 0
        if there >= size:
            return Begin(parts, there - size)
        size -= there
    return Begin(parts, 0)


def _line_start(file: int, offset: int) -> int:
    start = max(0, offset - BLOCK)
    before = os.pread(file, offset - start, start)
    place = before.rfind(b"\n")
    return start + place + 1 if place >= 0 or start == 0 else offset
