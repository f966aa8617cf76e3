"""
Makes the state folder, private to its owner, and locks it for one controller at a time.

The lock file names its holder and the epoch, which the next controller reads.
"""

import contextlib
import fcntl
import hashlib
import os
import stat
import tempfile
import time
from pathlib import Path

from dljob.local.folders import Folders, StateError, is_long

LONGEST_SHARED = 60
"""The longest path of the folder of sockets on a server that users share, where SideCars' sockets are one level deeper."""

LOCK_BYTES = 64

LEAVING_S, LEAVING_STEP_S = 10.0, 0.02
"""How long a start waits for processes that a killed controller was starting, and between two attempts."""


def make_folders(folders: Folders) -> None:
    """
    Make the folders that are missing; raises :class:`StateError`.

    A start calls it before it has the lock, so that it changes nothing that a running server uses. :func:`lock_folder`
    makes the folder of sockets below ``/tmp``.
    """
    mode = 0o711 if folders.shared else 0o700
    if folders.shared and len(os.fsencode(folders.beside)) > LONGEST_SHARED:
        raise StateError(
            f"{folders.root}: is too long for sockets below it; name a shorter --state"
        )
    bases = [folders.root, folders.root / "jobs"]
    bases += [] if is_long(folders.beside) else [folders.beside]
    bases += [folders.root / name for name in ("checkpoints", "pods")] if folders.shared else []
    for folder in bases:
        try:
            folder.mkdir(mode=mode, parents=True, exist_ok=True)
        except OSError as error:
            raise StateError(
                f"{folder}: cannot be created ({error.strerror}); name another folder with --state"
            ) from error
        _insist_on_privacy(folder)
        _open_up(folders, folder)


def make_sockets(folders: Folders) -> None:
    """
    Make the folder of the sockets, which an earlier controller has removed if it was empty. The caller holds the lock.

    A folder below /tmp gets a name that no other user can guess. The link to it is in the state folder, where no other
    user can write, and a folder that is not private any more is replaced.
    """
    if not is_long(folders.beside):
        folders.beside.mkdir(mode=0o711 if folders.shared else 0o700, exist_ok=True)
        _open_up(folders, folders.beside)
        return
    # The folder that older versions used, in which their SideCars may still have sockets.
    digest = hashlib.sha256(os.fsencode(folders.root.absolute())).hexdigest()[:12]
    former = Path(f"/tmp/dljob-{os.getuid()}-{digest}")  # noqa: S108 - only if it is our own
    for known in (folders.sockets, former):
        if known != folders.link and _is_private(known):
            break
    else:
        known = Path(tempfile.mkdtemp(prefix=f"dljob-{os.getuid()}-", dir="/tmp"))
    if folders.sockets != known:
        unnamed = folders.link.with_name(".sockets.new")
        unnamed.unlink(missing_ok=True)
        unnamed.symlink_to(known)
        unnamed.replace(folders.link)


def _open_up(folders: Folders, folder: Path) -> None:
    """
    Let users of a shared server pass through a folder of ours to their own files, even under a strict umask.
    """
    if not folders.shared:
        return
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(opened, 0o711)
    finally:
        os.close(opened)


def lock_folder(folders: Folders) -> int:
    """Become the only controller of this folder; returns the descriptor of the lock."""
    path = folders.root / "lock"
    held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    end = time.monotonic() + LEAVING_S
    while True:
        with contextlib.suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        holder, *_ = _read_holder(held) or ["unknown"]
        # A process that a killed controller was starting holds the lock until it runs its program.
        if _is_gone(holder) and time.monotonic() < end:
            time.sleep(LEAVING_STEP_S)
            continue
        os.close(held)
        raise StateError(
            f"{folders.root}: dljob up runs there already (process {holder});"
            " use that one, end it (dljob down), or name another folder with --state"
        )
    # Under the lock: otherwise each of two first starts would make a folder below /tmp, and the later link would lead
    # commands away from the server that uses the other.
    make_sockets(folders)
    return held


def read_epoch(held: int) -> int:
    """Return the epoch of the previous controller; 0 if it cannot be read."""
    words = _read_holder(held)
    is_number = len(words) == 2 and words[1].isascii() and words[1].isdigit()
    return int(words[1]) if is_number else 0


def note_epoch(held: int, epoch: int) -> None:
    """Write our process and epoch into the lock."""
    # In place and of constant length, so that a full disk prevents no start.
    text = f"{os.getpid()} {epoch}".encode().ljust(LOCK_BYTES - 1) + b"\n"
    os.pwrite(held, text, 0)


def _read_holder(held: int) -> list[str]:
    return os.pread(held, LOCK_BYTES, 0).decode(errors="replace").split()


def _is_gone(process: str) -> bool:
    if not (process.isascii() and process.isdigit()):
        return False
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass  # It is another user's.
    return False


def _insist_on_privacy(folder: Path) -> None:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise StateError(f"{folder}: belongs to another user; name another folder with --state")
    if status.st_mode & 0o022:
        raise StateError(
            f"{folder}: others may write there; take that away (chmod go-w), or name another"
            " folder with --state"
        )


def _is_private(folder: Path) -> bool:
    """Return whether it is a folder of our own, not a link, in which no other user can write."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return is_own and not status.st_mode & 0o022
