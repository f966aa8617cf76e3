"""
Logs that grow no further than they may: what is too long is turned over into parts.

Whoever writes a log has it open, and cannot be told to open another one. So a log is copied into its
latest part, ``NAME.log.1``, and then cut to nothing; whoever appends goes on at its new beginning.
What is written in the instant between the last look and the cut is lost; that are microseconds, and
as much can be lost once in so many megabytes. Whoever follows a log sees that there is a new part,
and goes on in it first (:mod:`dlctl.backends.local.following`); the lock that it takes while it looks puts a turn off.
"""

import asyncio
import errno
import fcntl
import logging
import os
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import ParamSpec, TypeVar

from dllocal.pods.logtimes import LogTimes

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

BLOCK = 1 << 20

MOST_OVER = 16 << 20
"""So much more than a log may be long is copied of it: what comes between two looks."""
MOST_LATE = 4 << 20
"""So much of what came during the copy is copied while all else waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLimits:
    """How much is kept of what the trainings of a job write on each node."""

    largest_bytes: int = 64 << 20
    """A log that is longer than this is turned over."""
    kept_parts: int = 3
    """So many parts of that size are kept besides the log itself; of more, the oldest is forgotten."""
    look_seconds: float = 5.0
    """How often it is looked for logs that are too long."""

    def __post_init__(self) -> None:
        """Refuse what would turn logs over all the time."""
        if self.largest_bytes < 4096:
            raise ValueError(f"largest_bytes is {self.largest_bytes}; give at least 4096")
        if self.look_seconds <= 0:
            raise ValueError(f"look_seconds is {self.look_seconds:g}; it must be above 0")


def is_too_long(path: Path, limits: LogLimits) -> bool:
    """Whether there is more of a log than may be; of none that cannot be asked."""
    try:
        return path.lstat().st_size > limits.largest_bytes
    except OSError:
        return False


def turn_over(path: Path, limits: LogLimits) -> bool:
    """Turn a log over if it is too long; tells whether it was. Raises :class:`OSError`."""
    turn = begin(path, limits)
    return turn is not None and turn.finish()


def begin(path: Path, limits: LogLimits) -> "Turn | None":
    """Copy a log that is too long, which takes its time; to be finished at once afterwards."""
    source = _open_log(path)
    turn = Turn(path, source, limits.kept_parts)
    try:
        size = os.fstat(source.fileno()).st_size
        if size > limits.largest_bytes:
            # The end of it is kept. Who may write a log may also make it longer than the disk.
            most = limits.largest_bytes + MOST_OVER
            source.seek(max(0, size - most))
            turn.copy(most)
            return turn
    except OSError:
        turn.close()
        raise
    turn.close()
    return None


class Turn:
    """A log that is being turned over."""

    def __init__(self, path: Path, source: FileIO, kept: int) -> None:
        self._path = path
        self._source = source
        self._kept = kept
        self._unfinished = path.with_name(f"{path.name}.unfinished")
        self._part: FileIO | None = None

    def copy(self, most: int) -> None:
        """Take over what is there by now, but no more bytes than this."""
        if self._kept and self._part is None:
            self._part = _create_part(self._unfinished)
        while self._part and most > 0:
            size = min(BLOCK, most)
            done = os.sendfile(self._part.fileno(), self._source.fileno(), None, size)
            most = most - done if done else 0

    def finish(self) -> bool:
        """
        Take over what came since, and cut the log: little of it, and nothing in between.

        Tells whether that was done. Not while somebody reads on, for whom it would wait in vain
        if that one is stopped.
        """
        try:
            fcntl.flock(self._source, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            return False
        try:
            if self._part is not None:
                for number in reversed(range(1, self._kept + 1)):
                    _shift(self._path, number, self._kept)
                self._unfinished.rename(_part(self._path, 1))
                self.copy(MOST_LATE)
            self._source.truncate(0)
            return True
        finally:
            self.close()

    def close(self) -> None:
        """Let go of it; what was not finished is not kept."""
        if self._part is not None:
            self._part.close()
            self._unfinished.unlink(missing_ok=True)
        self._source.close()


def _open_log(path: Path) -> FileIO:
    """
    Open a log that may lie in the folder of another user.

    That user may have put a link in its place, which is refused: else a server that runs as root would
    cut the file that the link names.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    source = FileIO(os.open(path, flags), "rb+")
    status, owner = os.fstat(source.fileno()), path.parent.stat().st_uid
    is_foreign = owner != os.geteuid()
    is_linked = is_foreign and (status.st_nlink > 1 or status.st_uid != owner)
    if not stat.S_ISREG(status.st_mode) or is_linked:
        source.close()
        raise OSError(errno.EPERM, "is not a log of its job", str(path))
    return source


def _create_part(path: Path) -> FileIO:
    """Make a file that was not there, for the one whose folder it is in."""
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    part = FileIO(os.open(path, flags, 0o600), "wb")
    folder = path.parent.stat()
    if folder.st_uid != os.geteuid():
        os.fchown(part.fileno(), folder.st_uid, folder.st_gid)
    return part


def _shift(path: Path, number: int, kept: int) -> None:
    with suppress(FileNotFoundError):
        if number == kept:
            _part(path, number).unlink()
        else:
            _part(path, number).rename(_part(path, number + 1))


def _part(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


class Rotation:
    """Looks after the logs of one state folder, as long as it is run."""

    def __init__(
        self, limits: LogLimits, logs: Callable[[], Iterable[Path]], times: LogTimes
    ) -> None:
        self._limits = limits
        self._logs = logs
        self._times = times
        self._refused: dict[Path, str] = {}
        """Why a log could not be turned over, so that it is told once."""

    async def run(self) -> None:
        """Do this until cancelled."""
        while True:
            await asyncio.sleep(self._limits.look_seconds)
            self._times.forget_removed()
            for path in list(self._logs()):
                self._times.note(path, time.time())
                turn = await asyncio.to_thread(self._attempt, path, begin, path, self._limits)
                # Not in a thread, which might have to wait for its turn just before the cut.
                if turn is not None and self._attempt(path, turn.finish):
                    self._times.note_cut(path)

    def _attempt(
        self, path: Path, act: Callable[P, T], *args: P.args, **named: P.kwargs
    ) -> T | None:
        try:
            done = act(*args, **named)
        except FileNotFoundError:
            return None
        except OSError as error:
            why = error.strerror or str(error)
            if self._refused.get(path) != why:
                log.warning("%s is too long, and cannot be rotated: %s", path, why)
            self._refused[path] = why
            return None
        self._refused.pop(path, None)
        return done
