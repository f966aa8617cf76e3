"""
One lock for each GPU, over all users and all servers of a machine.

The lock is on the device file of the GPU (``/dev/nvidia0``), which only root can replace and
which only those can open who may use the GPU anyway: a user without a right to the GPU cannot keep
others from it by locking it. A GPU without a device file has a file of its own in ``/run/lock``.

There are two locks, of kinds that the kernel keeps apart. With ``flock`` a server is the one that
gives the GPU to jobs, as long as it lives. Its jobs outlive it, so each of its SideCars inherits a
second one of its own: an open file description lock on one byte of the file, at a place that the state folder
determines. So a server finds out whether jobs of *others* still have the GPU by asking the kernel
for locks at all other places, and those of its own state folder, also from a former start, are
never in its way. The kernel gives both kinds back at each death.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
import struct
from pathlib import Path

from dllocal.environments import name_user
from dllocal.gpus.nvml import Device

FOLDER = Path("/run/lock")
LAST_BYTE = (1 << 62) - 1
_FLOCK = "hhqqi4x"
"""``struct flock`` where offsets have 64 bits: kind, whence, start, length, process."""


class GpuLock:
    """The lock of one GPU, tried as often as one likes and held until it is closed."""

    def __init__(self, device: Device, state: Path, *, folder: Path = FOLDER) -> None:
        self._path = Path(device.path) if device.path else folder / f"dljob-{device.uuid}.lock"
        self._has_device = bool(device.path)
        digest = hashlib.sha256(os.fsencode(state.resolve())).digest()
        self._place = 1 + int.from_bytes(digest[:7]) % (LAST_BYTE - 1)
        self._owner: int | None = None
        self._users: int | None = None

    def lend(self) -> int | None:
        """
        Open what one SideCar is to inherit, which the caller closes; ``None`` while it is not held.

        Each has a file description of its own: who has one may take its lock back, and with a shared
        one that would take the lock from all SideCars, also from those of other users.
        """
        if self._users is None:
            return None
        return self._open_locked()

    def attempt(self) -> str:
        """Take the lock unless it is held; returns why that cannot be, or nothing."""
        if self._users is not None:
            return ""
        try:
            owner = self._open()
        except OSError as error:
            return f"{error.filename or self._path} cannot be opened ({error.strerror})"
        try:
            self._users, why = self._take(owner)
        except OSError as error:
            # Such as too many open files. The next attempt may find fewer of them.
            why = f"{error.filename or self._path} cannot be locked ({error.strerror})"
        finally:
            if self._users is None:
                os.close(owner)
            else:
                self._owner = owner
        return why

    def close(self) -> None:
        """Let other servers have it, as soon as no SideCar of ours lives any more."""
        for held in (self._owner, self._users):
            if held is not None:
                os.close(held)
        self._owner = self._users = None

    def _take(self, owner: int) -> tuple[int | None, str]:
        try:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None, f"another dljob up has it ({_name_owner(owner)})"
        if _is_locked(owner, 1, length=self._place - 1) or _is_locked(
            owner, self._place + 1, length=0
        ):
            return None, "jobs of another dljob up, which has ended, still have it"
        # A file description of its own: the other lock must end with this server.
        return self._open_locked(), ""

    def _open_locked(self) -> int:
        """Open a file description of its own, with the lock of this state folder."""
        opened = self._open()
        try:
            _lock_byte(opened, self._place)
        except OSError:
            os.close(opened)
            raise
        return opened

    def _open(self) -> int:
        flags = os.O_CLOEXEC | os.O_NOFOLLOW
        if self._has_device:
            return os.open(self._path, os.O_RDONLY | flags)
        return _open_shared(self._path, flags)


def _open_shared(path: Path, flags: int) -> int:
    """Open a file that all users may lock; the first of them makes it."""
    with contextlib.suppress(FileExistsError):
        held = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | flags, 0o644)
        # Also where the umask is narrow: reading is enough for either lock.
        os.fchmod(held, 0o644)
        return held
    # Without O_CREAT, which the kernel refuses for files of others in folders of all.
    held = os.open(path, os.O_RDONLY | os.O_NONBLOCK | flags)
    if not stat.S_ISREG(os.fstat(held).st_mode):
        os.close(held)
        raise OSError(errno.EINVAL, "is not a file; remove it", str(path))
    return held


def _lock_byte(held: int, place: int) -> None:
    wanted = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, place, 1, 0)
    fcntl.fcntl(held, fcntl.F_OFD_SETLK, wanted)


def _is_locked(held: int, start: int, *, length: int) -> bool:
    """Whether others have locked any byte from there on; a length of 0 reaches to the end."""
    if length < 0 or start > LAST_BYTE:
        return False
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
    kind: int = struct.unpack(_FLOCK, fcntl.fcntl(held, fcntl.F_OFD_GETLK, asked))[0]
    return kind != fcntl.F_UNLCK


def _name_owner(held: int) -> str:
    """Name the process that has locked the file, as the kernel tells."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if words[1] == "FLOCK" and words[5] == _inode(os.fstat(held)):
                return describe_process(int(words[4]))
    return "process unknown"


def _inode(status: os.stat_result) -> str:
    major, minor = os.major(status.st_dev), os.minor(status.st_dev)
    return f"{major:02x}:{minor:02x}:{status.st_ino}"


def describe_process(pid: int) -> str:
    """Name a process with its user and its program, as far as they are known."""
    folder = Path(f"/proc/{pid}")
    try:
        user = name_user(folder.stat().st_uid)
        program = (folder / "comm").read_text(errors="replace").strip()
    except OSError:
        return f"process {pid}"
    shown = "".join(each if each.isprintable() else "?" for each in program)
    return f"process {pid} of {user}, {shown}"
