"""
One lock for each GPU, for all users and servers of a machine.

The lock is on the device file of the GPU (``/dev/nvidia0``), which only root can replace and only users of the GPU can
open: a user without rights to the GPU cannot block it. A GPU without a device file has a file in ``/run/lock``.

There are two kinds of locks, which are independent in the kernel. With ``flock`` a living server is the only one that
gives the GPU to jobs. Jobs outlive their server, so each SideCar inherits an open file description lock on one byte, at a
place that the state folder determines. A server asks the kernel for locks at all other places to find jobs of *other*
servers, while its own earlier jobs are never in its way. The kernel releases both kinds at any death.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
import struct
from pathlib import Path

from dljob.local.environments import name_user
from dljob.local.gpus.nvml import Device

FOLDER = Path("/run/lock")
LAST_BYTE = (1 << 62) - 1
_FLOCK = "hhqqi4x"
"""``struct flock`` where offsets have 64 bits: kind, whence, start, length, process."""


class GpuLock:
    """The lock of one GPU, held from a successful attempt until it is closed."""

    def __init__(self, device: Device, state: Path, *, folder: Path = FOLDER) -> None:
        self._path = Path(device.path) if device.path else folder / f"dljob-{device.uuid}.lock"
        self._has_device = bool(device.path)
        digest = hashlib.sha256(os.fsencode(state.resolve())).digest()
        self._place = 1 + int.from_bytes(digest[:7]) % (LAST_BYTE - 1)
        self._owner: int | None = None
        self._users: int | None = None

    def lend(self) -> int | None:
        """
        Open a lock for one SideCar, which the caller closes; ``None`` if the GPU is not locked.

        Each SideCar has a file description of its own: with a shared one, any SideCar could release the lock of all.
        """
        if self._users is None:
            return None
        return self._open_locked()

    def attempt(self) -> str:
        """Take the lock unless it is held; returns the reason if that fails."""
        if self._users is not None:
            return ""
        try:
            owner = self._open()
        except OSError as error:
            return f"{error.filename or self._path} cannot be opened ({error.strerror})"
        try:
            self._users, why = self._take(owner)
        except OSError as error:
            # Such as too many open files.
            why = f"{error.filename or self._path} cannot be locked ({error.strerror})"
        finally:
            if self._users is None:
                os.close(owner)
            else:
                self._owner = owner
        return why

    def close(self) -> None:
        """Release the lock; other servers can take it when no SideCar of ours lives."""
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
        # In another file description: `flock` must end with this server.
        return self._open_locked(), ""

    def _open_locked(self) -> int:
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
    """Open a file that all users may lock; the first user makes it."""
    with contextlib.suppress(FileExistsError):
        held = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | flags, 0o644)
        # Against a strict umask: reading is enough for either lock.
        os.fchmod(held, 0o644)
        return held
    # Without O_CREAT, which the kernel refuses for other users' files in sticky folders.
    held = os.open(path, os.O_RDONLY | os.O_NONBLOCK | flags)
    if not stat.S_ISREG(os.fstat(held).st_mode):
        os.close(held)
        raise OSError(errno.EINVAL, "is not a file; remove it", str(path))
    return held


def _lock_byte(held: int, place: int) -> None:
    wanted = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, place, 1, 0)
    fcntl.fcntl(held, fcntl.F_OFD_SETLK, wanted)


def _is_locked(held: int, start: int, *, length: int) -> bool:
    """Return whether others have locked any byte of a range; a length of 0 reaches to the end."""
    if length < 0 or start > LAST_BYTE:
        return False
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
    kind: int = struct.unpack(_FLOCK, fcntl.fcntl(held, fcntl.F_OFD_GETLK, asked))[0]
    return kind != fcntl.F_UNLCK


def _name_owner(held: int) -> str:
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = os.fstat(held)
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if words[1] == "FLOCK" and words[5] == f"{device}:{status.st_ino}":
                return describe_process(int(words[4]))
    return "process unknown"


def describe_process(pid: int) -> str:
    """Name a process with its user and its program, if known."""
    folder = Path(f"/proc/{pid}")
    try:
        user = name_user(folder.stat().st_uid)
        program = (folder / "comm").read_text(errors="replace").strip()
    except OSError:
        return f"process {pid}"
    shown = "".join(each if each.isprintable() else "?" for each in program)
    return f"process {pid} of {user}, {shown}"
