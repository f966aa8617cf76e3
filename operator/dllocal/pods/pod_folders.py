"""
The files about one pod in a folder of its own, read without trust.

:mod:`dllocal.pods.processes` writes and reads them. A disk can damage a file, and its user can put anything in its place.
An error in the folder of one pod concerns that pod alone: reading never waits, follows no link, and takes
unreadable files for missing. The lock and the kernel's list of processes say whether the pod lives.

- ``launched``: the pod was asked for; how long its start takes at least, and when that was in the life of
  the machine;
- ``alive``: locked by the SideCar for as long as it lives;
- ``pid``: its process, with the time of its start;
- ``removed``: the controller has ended it;
- ``ended``: when its end was first seen.
"""

import contextlib
import fcntl
import logging
import os
import stat
from pathlib import Path

from dlcontrol.situation.clocks import Stamp
from dlcontrol.situation.ports import Entry, PodKey
from dlcontrol.situation.status import Booking
from dlcore.model import JobId
from dllocal.folders import Folders

log = logging.getLogger(__name__)

LONGEST_BYTES = 256
"""No file of a pod that is read is longer."""


class PodFolder:
    """The folder of one pod."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def make(self) -> None:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    # --- that it was asked for

    @property
    def was_launched(self) -> bool:
        """Whether its SideCar may have been started, even if the note of it is lost."""
        return os.path.lexists(self.path / "launched")

    def note_launch(self, seconds: float) -> None:
        """Note it before the SideCar starts, so that a controller that dies in between leaves a
        trace."""
        boot, since_boot = Stamp.now()
        _write(self.path / "launched", f"{seconds:g} {since_boot:.3f} {boot}\n")

    def seconds_to_start(self) -> float:
        """Return for how long its start still takes, as it was noted."""
        words = _read(self.path / "launched").split()
        return _seconds_left(words[1:], _number(words[0])) if len(words) == 3 else 0.0

    # --- that it was ended

    @property
    def was_removed(self) -> bool:
        return os.path.lexists(self.path / "removed")

    def note_removal(self) -> None:
        _write(self.path / "removed", "")

    def seconds_to_end(self, seconds: float) -> float:
        """Return for how long its end still takes, counted from when that was first asked."""
        path = self.path / "ended"
        if not os.path.lexists(path):
            boot, since_boot = Stamp.now()
            with contextlib.suppress(OSError):
                _write(path, f"{since_boot:.3f} {boot}\n")
            return seconds
        return _seconds_left(_read(path).split(), seconds)

    # --- that it lives

    def lock(self) -> int | None:
        """
        Take the lock that lives as long as any process that inherits it; none if others have it.

        Raises :class:`OSError` where there is something else in its place.
        """
        return self._take(os.O_RDWR | os.O_CREAT)

    def is_locked(self) -> bool:
        """Whether the SideCar lives; raises :class:`OSError` where there is no lock that could tell."""
        held = self._take(os.O_RDONLY)
        if held is None:
            return True
        os.close(held)
        return False

    def _take(self, flags: int) -> int | None:
        safe = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        held = os.open(self.path / "alive", flags | safe, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
            return None
        except OSError:
            os.close(held)
            raise
        return held

    def note_process(self, pid: int) -> None:
        """Note which process it is. One that is not noted is found by its command all the same."""
        with contextlib.suppress(OSError):
            _write(self.path / "pid", f"{pid} {started_at(pid)}\n")

    def noted_process(self) -> str:
        """Return the note of its process, which another process does not have; empty without one."""
        return _read(self.path / "pid").strip()

    def process(self) -> int | None:
        """Return the process that was noted, if it still is that one."""
        words = self.noted_process().split()
        if len(words) != 2 or not (words[0].isascii() and words[0].isdigit()):
            return None
        pid = int(words[0])
        return pid if pid > 0 and started_at(pid) == words[1] else None


def find_sidecars(socket: Path) -> list[int]:
    """All processes that were started with this socket."""
    wanted, found = os.fsencode(f"--socket={socket}"), []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def started_at(pid: int) -> str:
    """
    When a process began, in ticks since the machine did: with its id it names it for ever.

    Nothing of one that has ended, also where its parent does not ask for that.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return "" if fields[0] in (b"Z", b"X") else fields[19].decode()
    except (OSError, IndexError):
        return ""


def _seconds_left(since: list[str], seconds: float) -> float:
    """Return the rest of ``seconds`` since a note of the kernel's time and the boot."""
    if len(since) != 2 or not seconds > 0.0:
        return 0.0
    then = Stamp(since[1], _number(since[0]))
    return min(seconds, max(0.0, seconds - then.seconds_ago()))


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return 0.0


def _read(path: Path) -> str:
    """Return the contents of a file, and nothing if it is no regular file."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        opened = os.open(path, flags)
    except (OSError, ValueError):
        return ""
    try:
        # A FIFO would let its reader wait, and a device do anything.
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            return ""
        return os.read(opened, LONGEST_BYTES).decode("ascii", errors="replace")
    except OSError:
        return ""
    finally:
        os.close(opened)


def _write(path: Path, text: str) -> None:
    """Write a file where it is, so that a full disk takes nothing away that was there."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    opened = os.open(path, flags, 0o600)
    try:
        data = text.encode("ascii")
        os.pwrite(opened, data, 0)
        os.ftruncate(opened, len(data))
    finally:
        os.close(opened)


class BookedPod:
    """Reads what is on the disk and in the kernel's list of processes, and changes nothing."""

    def __init__(self, folders: Folders, job: JobId, booking: Booking) -> None:
        self.key = PodKey(job, booking.node)
        self.booking = booking
        self.folder = PodFolder(folders.pod(self.key, booking.serial))
        self.socket = folders.pod_socket(self.key, booking.serial)
        self.log = folders.sidecar_log(self.key, booking.serial)

    @property
    def name(self) -> tuple[PodKey, int]:
        """A key that no other pod has, also none that the job had on this node before."""
        return self.key, self.booking.serial

    @property
    def was_launched(self) -> bool:
        return self.folder.was_launched

    @property
    def has_ever_been_up(self) -> bool:
        """Whether it came so far as to hold its lock; before that it cannot have received a command."""
        return os.path.lexists(f"{self.socket}.lock")

    def pids(self) -> list[int]:
        """The process that was started, if it still is that one."""
        noted = self.folder.process()
        # The controller that started it may have been killed before it could note that.
        return [noted] if noted else find_sidecars(self.socket)


def pods_of(folders: Folders, entry: Entry) -> list[BookedPod]:
    """Return the pods that are booked for a job."""
    return [BookedPod(folders, entry.job.id, booking) for booking in entry.status.pods]
