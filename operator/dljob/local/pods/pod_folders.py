"""
The folder of one pod, whose files are not trusted, and the note of the end of a job next to its pods.

A disk can damage a file, and the user of the job can replace it. An error concerns its pod alone: reading never blocks,
follows no link, and takes unreadable files for missing. The lock and ``/proc`` show whether the pod lives.

- ``launched``: the launch of the pod: the least duration of its start, and the time since the boot;
- ``alive``: locked by the SideCar for as long as it lives;
- ``pid``: the process, with the time of its start;
- ``removed``: the controller has ended the pod;
- ``ended``: when the controller first saw the end.
"""

import contextlib
import fcntl
import json
import logging
import os
import stat
from pathlib import Path

from dljob.control.situation.clocks import Stamp
from dljob.control.situation.ports import Entry, PodKey
from dljob.control.situation.status import Booking, Status
from dljob.control.situation.status_documents import read_status, write_status
from dljob.core.model import JobId
from dljob.local.folders import Folders
from dljob_wire.codec import decode_left
from dljob_wire.messages import LONGEST_LEFT, State

log = logging.getLogger(__name__)

LONGEST_BYTES = 256
"""The maximum length of a file of a pod."""
LONGEST_END = 1 << 20


class PodFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def make(self) -> None:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    # --- the launch

    @property
    def was_launched(self) -> bool:
        return os.path.lexists(self.path / "launched")

    def note_launch(self, seconds: float) -> None:
        """Note the launch, before the SideCar starts."""
        boot, since_boot = Stamp.now()
        _write(self.path / "launched", f"{seconds:g} {since_boot:.3f} {boot}\n")

    def seconds_to_start(self) -> float:
        """Return the rest of the least duration of the start."""
        words = _read(self.path / "launched").split()
        return _seconds_left(words[1:], _number(words[0])) if len(words) == 3 else 0.0

    # --- the end

    @property
    def was_removed(self) -> bool:
        return os.path.lexists(self.path / "removed")

    def note_removal(self) -> None:
        _write(self.path / "removed", "")

    def seconds_to_end(self, seconds: float) -> float:
        """Return the rest of ``seconds`` since the first call."""
        path = self.path / "ended"
        if not os.path.lexists(path):
            boot, since_boot = Stamp.now()
            with contextlib.suppress(OSError):
                _write(path, f"{since_boot:.3f} {boot}\n")
            return seconds
        return _seconds_left(_read(path).split(), seconds)

    # --- life

    def lock(self) -> int | None:
        """Take the lock, which child processes inherit; ``None`` if another process has it.

        Raises :class:`OSError` if the file is no lock.
        """
        return self._take(os.O_RDWR | os.O_CREAT)

    def is_locked(self) -> bool:
        """Return whether the SideCar lives; raises :class:`OSError` without a lock."""
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
        with contextlib.suppress(OSError):
            _write(self.path / "pid", f"{pid} {started_at(pid)}\n")

    def noted_process(self) -> str:
        """Return the note of the process, which is unique; empty without one."""
        return _read(self.path / "pid").strip()

    def process(self) -> int | None:
        """Return the noted process if it lives."""
        words = self.noted_process().split()
        if len(words) != 2 or not (words[0].isascii() and words[0].isdigit()):
            return None
        pid = int(words[0])
        return pid if pid > 0 and started_at(pid) == words[1] else None


def find_sidecars(socket: Path) -> list[int]:
    """Find all processes with this socket on their command line."""
    wanted, found = os.fsencode(f"--socket={socket}"), []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def started_at(pid: int) -> str:
    """
    Return when a process began, in ticks since the boot: with the id, a unique name. Empty if it has ended.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return "" if fields[0] in (b"Z", b"X") else fields[19].decode()
    except (OSError, IndexError):
        return ""


def _seconds_left(since: list[str], seconds: float) -> float:
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
    return _read_bytes(path, LONGEST_BYTES).decode("ascii", errors="replace")


def _read_bytes(path: Path, most: int) -> bytes:
    """Return the beginning of a regular file; empty if there is none."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        opened = os.open(path, flags)
    except (OSError, ValueError):
        return b""
    try:
        # Reading a FIFO would block.
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            return b""
        return os.read(opened, most)
    except OSError:
        return b""
    finally:
        os.close(opened)


def _write(path: Path, text: str) -> None:
    """Write in place, so that a full disk does not remove what was there."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    opened = os.open(path, flags, 0o600)
    try:
        data = text.encode("ascii")
        os.pwrite(opened, data, 0)
        os.ftruncate(opened, len(data))
    finally:
        os.close(opened)


def note_end(folders: Folders, job: JobId, status: Status) -> None:
    """Note the final status of a job in its folder, from which a restored list of jobs learns of it."""
    # A job that had no pod has no folder.
    with contextlib.suppress(OSError):
        _write(folders.pods_of(job) / "ended", json.dumps(write_status(status)))


def read_end(folders: Folders, job: JobId) -> Status | None:
    """Return the noted final status of a job; ``None`` without a whole note."""
    try:
        status = read_status(json.loads(_read_bytes(folders.pods_of(job) / "ended", LONGEST_END)))
    except Exception:  # noqa: BLE001 - a file that is damaged or of another version is no note
        return None
    return status if status.is_final else None


class BookedPod:
    """The files and processes of a booked pod."""

    def __init__(self, folders: Folders, job: JobId, booking: Booking) -> None:
        self.key = PodKey(job, booking.node)
        self.booking = booking
        self.folder = PodFolder(folders.pod(self.key, booking.serial))
        self.socket = folders.pod_socket(self.key, booking.serial)
        self.log = folders.sidecar_log(self.key, booking.serial)

    @property
    def name(self) -> tuple[PodKey, int]:
        """A key that is unique to this pod, also among earlier pods of the job on this node."""
        return self.key, self.booking.serial

    @property
    def was_launched(self) -> bool:
        return self.folder.was_launched

    @property
    def has_ever_been_up(self) -> bool:
        """Return whether its SideCar has held its socket; before that it cannot have received a command."""
        return os.path.lexists(f"{self.socket}.lock")

    def left(self) -> State | None:
        """Return what its SideCar left behind when it ended last."""
        return decode_left(_read_bytes(Path(f"{self.socket}.left"), LONGEST_LEFT))

    def pids(self) -> list[int]:
        noted = self.folder.process()
        # The controller may have been killed before it noted the process.
        return [noted] if noted else find_sidecars(self.socket)


def pods_of(folders: Folders, entry: Entry) -> list[BookedPod]:
    return [BookedPod(folders, entry.job.id, booking) for booking in entry.status.pods]
