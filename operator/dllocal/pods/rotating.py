"""
Logs that grow no further than they may: what is too long is turned over into parts.

The program that writes a log has it open, and cannot be asked to open another one. So the
controller copies a log into its latest part, ``NAME.log.1``, and then truncates it; the program
continues at its new beginning. Lines that it writes in the microseconds between the last read and
the truncation are lost; that can happen once in each part. A program that writes faster than its log is copied loses
more: what it writes beyond 16 MiB during the copy, and beyond 4 MiB from there to the truncation. A program that follows a log sees the
new part, and reads on in it first (:mod:`dlclient.local.following`); the lock that it takes
while it looks puts a turn off.
"""

import asyncio
import errno
import fcntl
import logging
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import ParamSpec, TypeVar

from dlcontrol.situation.ports import Entry, PodKey
from dlcore.model import JobId
from dlcore.primitives.once_per_change import OncePerChange
from dllocal.folders import Folders
from dllocal.pods.logtimes import LogTimes

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

BLOCK = 1 << 20

MOST_OVER = 16 << 20
"""The part of a log beyond its limit that is copied: the output between two looks."""
MOST_MEANWHILE = 16 << 20
"""The output during the copy that is copied as well, before the log is cut."""
MOST_LATE = 4 << 20
"""The output after the copy that is copied while all else waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLimits:
    """How much is kept of what the trainings of a job write on each node."""

    largest_bytes: int = 64 << 20
    """A log that is longer than this is rotated."""
    kept_parts: int = 3
    """The number of parts of that size that are kept beside the log itself; beyond it, the oldest is deleted."""
    look_seconds: float = 5.0
    """The time between two checks for logs that are too long."""

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


def rotate(path: Path, limits: LogLimits) -> bool:
    """Rotation a log over if it is too long; tells whether it was. Raises :class:`OSError`."""
    turn = begin(path, limits)
    return turn is not None and turn.finish()


def begin(path: Path, limits: LogLimits) -> "Rotation | None":
    """Copy a log that is too long, which takes its time; to be finished at once afterwards."""
    source = _open_log(path)
    turn = Rotation(path, source, kept=limits.kept_parts)
    try:
        # The size of the open file, because the owner of
        # the folder can put another one in its place.
        size = os.fstat(source.fileno()).st_size
        if size > limits.largest_bytes:
            # The end of it is kept. A program that may write a log may also make it longer than the disk.
            most = limits.largest_bytes + MOST_OVER
            source.seek(max(0, size - most))
            # Up to the end of it, which moves on during the copy.
            turn.copy(most + MOST_MEANWHILE)
            return turn
    except OSError:
        turn.close()
        raise
    turn.close()
    return None


class Rotation:
    """A log that is being turned over."""

    def __init__(self, path: Path, source: FileIO, *, kept: int) -> None:
        self._path = path
        self._source = source
        self._kept = kept
        self._unfinished = path.with_name(f"{path.name}.unfinished")
        self._part: FileIO | None = None

    def copy(self, most: int) -> None:
        """Copy the output so far, but no more bytes than this."""
        if self._kept and self._part is None:
            self._part = _create_part(self._unfinished)
        while self._part and most > 0:
            size = min(BLOCK, most)
            # Without an offset it moves the position of the
            # source, so that `finish` goes on where `begin` ended.
            done = os.sendfile(self._part.fileno(), self._source.fileno(), None, size)
            most = most - done if done else 0

    def finish(self) -> bool:
        """
        Take over what came since, and cut the log: little of it, and nothing in between.

        Returns whether it was done. It is put off while a reader has the lock, because a stopped
        reader would block the controller.
        """
        try:
            fcntl.flock(self._source, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            return False
        try:
            if self._part is not None:
                # From the oldest part on, so that none is overwritten. A controller that is
                # killed here leaves a gap in the numbers, which readers of the parts do not mind.
                for number in reversed(range(1, self._kept + 1)):
                    _shift(self._path, number, kept=self._kept)
                # Before the cut: a controller that is killed in between leaves
                # the output twice, which is better than not at all. It raises
                # where the job was forgotten during the copy, and nothing is cut.
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
    # Left by a copy that was cancelled or killed. With O_EXCL
    # a link that a user makes right after this is refused.
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    part = FileIO(os.open(path, flags, 0o600), "wb")
    folder = path.parent.stat()
    if folder.st_uid != os.geteuid():
        os.fchown(part.fileno(), folder.st_uid, folder.st_gid)
    return part


def _shift(path: Path, number: int, *, kept: int) -> None:
    with suppress(FileNotFoundError):
        if number == kept:
            _part(path, number).unlink()
        else:
            _part(path, number).rename(_part(path, number + 1))


def _part(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


class JobLogs:
    """The logs that may be too long: those that are written to, and those that were too long at the end of a job."""

    def __init__(
        self,
        folders: Folders,
        entries: Callable[[], Mapping[JobId, Entry]],
        *,
        limits: LogLimits,
    ) -> None:
        self._folders = folders
        self._entries = entries
        self._limits = limits
        self._settled: dict[JobId, tuple[int, int]] = {}
        """
        The jobs without a pod whose logs are short enough, because no process writes there. Each with its place in
        the list and its last pod: a later job may have its name, and it may get pods again.
        """

    def __call__(self) -> Iterator[Path]:
        settled = {}
        for job, entry in self._entries().items():
            for booking in entry.status.pods:
                key = PodKey(job, booking.node)
                yield self._folders.training_log(key)
                yield self._folders.sidecar_log(key, booking.serial)
            if entry.status.pods:
                continue
            state = entry.order, entry.status.booked
            # A training may write more in its last seconds than is kept of it. Its folder is not listed at each
            # look, because most jobs of a long list have ended.
            is_new = self._settled.get(job) != state
            logs = self._folders.training_logs(job).values() if is_new else ()
            long = [path for path in logs if is_too_long(path, self._limits)]
            if not long:
                settled[job] = state
            yield from long
        self._settled = settled


class LogRotator:
    """Looks after the logs of one state folder, as long as it is run."""

    def __init__(
        self, limits: LogLimits, logs: Callable[[], Iterable[Path]], *, times: LogTimes
    ) -> None:
        self._limits = limits
        self._logs = logs
        self._times = times
        self._refused: OncePerChange[Path] = OncePerChange()
        """Why a log could not be turned over, so that this is logged once."""
        self._unlisted: OncePerChange[str] = OncePerChange()

    async def run(self) -> None:
        """Do this until cancelled."""
        while True:
            await asyncio.sleep(self._limits.look_seconds)
            self._times.forget_removed()
            for path in self._list():
                self._times.note(path, self._times.clock())
                turn = await self._begin(path)
                # Not in a thread, which might have to wait for its turn just before the cut.
                # No await between the cut and its note, else
                # `find` would look for a time in the wrong part.
                if turn is not None and self._attempt(path, turn.finish):
                    self._times.note_cut(path)

    def _list(self) -> list[Path]:
        try:
            # A list, because jobs come and go during the copies.
            found = list(self._logs())
        except OSError as error:
            # Such as too many open files, of which there may be fewer at the next look.
            if self._unlisted.note("logs", error):
                log.warning("logs are not rotated, because they cannot be listed: %s", error)
            return []
        self._unlisted.settle("logs")
        return found

    async def _begin(self, path: Path) -> "Rotation | None":
        """Copy a log in a thread; nothing of the copy is left where this is cancelled."""
        thread = asyncio.to_thread(self._attempt, path, begin, path, self._limits)
        copying = asyncio.ensure_future(thread)
        try:
            return await asyncio.shield(copying)
        except asyncio.CancelledError:
            # The thread cannot be cancelled. The end of the program would wait for it as well, and then
            # the lock of the state folder is free: the next controller may have a copy of this name.
            turn = await copying
            if turn is not None:
                self._attempt(path, turn.close)
            raise

    def _attempt(
        self, path: Path, act: Callable[P, T], *args: P.args, **named: P.kwargs
    ) -> T | None:
        try:
            done = act(*args, **named)
        except FileNotFoundError:
            return None
        except OSError as error:
            why = error.strerror or str(error)
            if self._refused.note(path, why):
                log.warning("%s is too long, and cannot be rotated: %s", path, why)
            return None
        self._refused.settle(path)
        return done
