"""
Rotates the logs of trainings and SideCars.

A program that writes a log cannot be asked to open another file. So the controller copies the log into its latest part,
``NAME.log.1``, and truncates it. Lines that are written in the microseconds between the last read and the truncation are
lost, and so is output beyond 16 MiB during the copy or 4 MiB between copy and truncation. A reader that follows a log
finishes the new part first (:mod:`dljob.client.local.following`); its lock postpones a rotation.
"""

import asyncio
import errno
import fcntl
import logging
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import ParamSpec, TypeVar

from dljob.control.situation.ports import Entry, PodKey
from dljob.core.model import JobId
from dljob.core.primitives.once_per_change import OncePerChange
from dljob.local.folders import Folders, deletion_note
from dljob.local.pods.logtimes import LogTimes

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

BLOCK = 1 << 20

MOST_OVER = 16 << 20
"""The most bytes copied beyond the limit of a log: the output between two checks."""
MOST_MEANWHILE = 16 << 20
"""The most bytes of output during the copy that are copied as well."""
MOST_LATE = 4 << 20
"""The most bytes of output after the copy that are copied while the event loop waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLimits:
    """How much of the output of a job's trainings each node keeps."""

    largest_bytes: int = 64 << 20
    """A log that is longer than this is rotated."""
    kept_parts: int = 3
    """The number of older parts of that size that each node keeps; beyond it, the oldest is deleted."""
    look_seconds: float = 5.0
    """The time between two checks for logs that are too long."""

    def __post_init__(self) -> None:
        if self.largest_bytes < 4096:
            raise ValueError(f"largest_bytes is {self.largest_bytes}; give at least 4096")
        if self.look_seconds <= 0:
            raise ValueError(f"look_seconds is {self.look_seconds:g}; it must be above 0")


def is_too_long(path: Path, limits: LogLimits) -> bool:
    try:
        return path.lstat().st_size > limits.largest_bytes
    except OSError:
        return False


def rotate(path: Path, limits: LogLimits) -> bool:
    """Rotate a log if it is too long; return whether it was. Raises :class:`OSError`."""
    turn = begin(path, limits)
    return turn is not None and turn.finish()


def begin(path: Path, limits: LogLimits) -> "Rotation | None":
    """Copy a log that is too long (slow). The caller must finish the rotation at once."""
    source = _open_log(path)
    turn = Rotation(path, source, kept=limits.kept_parts)
    try:
        # Use the open file, because the owner of the folder can replace the path.
        size = os.fstat(source.fileno()).st_size
        if size > limits.largest_bytes:
            # Keep the end. A sparse file can be longer than the disk.
            most = limits.largest_bytes + MOST_OVER
            turn.skip(max(0, size - most))
            # Up to the end, which moves during the copy.
            turn.copy(most + MOST_MEANWHILE)
            return turn
    except OSError:
        turn.close()
        raise
    turn.close()
    return None


class Rotation:
    def __init__(self, path: Path, source: FileIO, *, kept: int) -> None:
        self._path = path
        self._source = source
        self._kept = kept
        self._unfinished = path.with_name(f"{path.name}.unfinished")
        self._part: FileIO | None = None
        self._skipped = 0

    def skip(self, size: int) -> None:
        """Leave out this number of bytes at the beginning of the log."""
        self._skipped = self._source.seek(size)

    def copy(self, most: int) -> None:
        """Copy at most this number of bytes."""
        if self._kept and self._part is None:
            self._part = _create_part(self._unfinished)
        while self._part and most > 0:
            size = min(BLOCK, most)
            # Without an offset this moves the position of the source, so that `finish` continues the copy.
            done = os.sendfile(self._part.fileno(), self._source.fileno(), None, size)
            most = most - done if done else 0

    def finish(self) -> bool:
        """
        Copy the output since the copy, and truncate the log; returns whether it was done.

        A rotation is postponed while a reader has the lock: waiting for a stopped reader would block the controller.
        """
        try:
            fcntl.flock(self._source, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            return False
        try:
            deleted = self._skipped
            if self._part is None:
                deleted = os.fstat(self._source.fileno()).st_size
            else:
                oldest = _part(self._path, self._kept)
                deleted += oldest.lstat().st_size if oldest.exists() else 0
                # From the oldest part on. Readers accept the gap in the numbers that a crash leaves here.
                for number in reversed(range(1, self._kept + 1)):
                    _shift(self._path, number, kept=self._kept)
                # Before the truncation: a crash in between duplicates output instead of losing it. The rename raises if the
                # job was forgotten during the copy.
                self._unfinished.rename(_part(self._path, 1))
                self.copy(MOST_LATE)
            if deleted:
                _note_deleted(self._path, deleted)
            self._source.truncate(0)
            return True
        finally:
            self.close()

    def close(self) -> None:
        """Close the files, and remove an unfinished part."""
        if self._part is not None:
            self._part.close()
            self._unfinished.unlink(missing_ok=True)
        self._source.close()


def _open_log(path: Path) -> FileIO:
    """
    Open a log in the folder of another user.

    Links are refused: a server that runs as root would truncate the file that the user links to.
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
    """Create a file that belongs to the owner of its folder."""
    # Of a copy that was killed. O_EXCL refuses a link that a user makes after this.
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    part = FileIO(os.open(path, flags, 0o600), "wb")
    folder = path.parent.stat()
    if folder.st_uid != os.geteuid():
        os.fchown(part.fileno(), folder.st_uid, folder.st_gid)
    return part


def _note_deleted(path: Path, size: int) -> None:
    """Write the line with which readers begin a log whose first bytes are deleted."""
    note = deletion_note(path)
    with suppress(FileNotFoundError), _open_log(note) as file:
        # The owner of the folder can have written anything there.
        written = re.match(rb"dljob: the first (\d{1,18}) bytes", file.read(64))
        size += int(written[1]) if written else 0
    with _create_part(note) as file:
        file.write(
            f"dljob: the first {size} bytes of this output are deleted;"
            " logs.largestBytes and logs.keptParts limit how much is kept\n".encode()
        )


def _shift(path: Path, number: int, *, kept: int) -> None:
    with suppress(FileNotFoundError):
        if number == kept:
            _part(path, number).unlink()
        else:
            _part(path, number).rename(_part(path, number + 1))


def _part(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


class JobLogs:
    """The logs that may be too long: those of living pods, and those that were too long at the end of a job."""

    def __init__(
        self, folders: Folders, entries: Callable[[], Mapping[JobId, Entry]], *, limits: LogLimits
    ) -> None:
        self._folders = folders
        self._entries = entries
        self._limits = limits
        self._settled: dict[JobId, tuple[int, int]] = {}
        """Jobs without pods whose logs are short enough, with their place in the list and their last pod."""

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
            # A training may write much in its last seconds. Folders of settled jobs are not listed at each check, because
            # most jobs of a long list have ended.
            is_new = self._settled.get(job) != state
            logs = self._folders.training_logs(job).values() if is_new else ()
            long = [path for path in logs if is_too_long(path, self._limits)]
            if not long:
                settled[job] = state
            yield from long
        self._settled = settled


class LogRotator:
    def __init__(
        self, limits: LogLimits, logs: Callable[[], Iterable[Path]], *, times: LogTimes
    ) -> None:
        self._limits = limits
        self._logs = logs
        self._times = times
        self._refused: OncePerChange[Path] = OncePerChange()
        """Logs that could not be rotated, each logged once."""
        self._unlisted: OncePerChange[str] = OncePerChange()

    async def run(self) -> None:
        """Rotate until cancelled."""
        while True:
            await asyncio.sleep(self._limits.look_seconds)
            self._times.forget_removed()
            for path in self._list():
                self._times.note(path, self._times.clock())
                turn = await self._begin(path)
                # Not in a thread, which could be delayed just before the truncation; and without an await before the
                # note, because `find` would look in the wrong part.
                if turn is not None and self._attempt(path, turn.finish):
                    self._times.note_cut(path)

    def _list(self) -> list[Path]:
        try:
            found = list(self._logs())
        except OSError as error:
            # Such as too many open files.
            if self._unlisted.note("logs", error):
                log.warning("logs are not rotated, because they cannot be listed: %s", error)
            return []
        self._unlisted.settle("logs")
        return found

    async def _begin(self, path: Path) -> "Rotation | None":
        """Copy a log in a thread; a cancellation removes the copy."""
        thread = asyncio.to_thread(self._attempt, path, begin, path, self._limits)
        copying = asyncio.ensure_future(thread)
        try:
            return await asyncio.shield(copying)
        except asyncio.CancelledError:
            # The thread cannot be cancelled. After this controller, the next one may have a copy of this name.
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
