"""
The paths of one ``dljob up``.

The state folder is given or found by the XDG rules. Only its owner may use it, because a user who can write there
decides which programs run. Sockets need short paths: if that of the state folder is long, they are in a folder of the
user below ``/tmp``.
"""

import contextlib
import hashlib
import os
import secrets
import socket
import stat
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dljob.local.files.tree_removal import remove_tree

if TYPE_CHECKING:
    # The controller takes long to load, and the command only asks for the socket.
    from dljob.control.situation.ports import PodKey

LONGEST_SOCKET_PATH = 96

SYSTEM_ROOT = Path("/var/lib/dljob")
SYSTEM_SOCKETS = Path("/run/dljob")
"""The folders of the server of all users, unless another state folder is named."""


IN_MEMORY = Path("/dev/shm")  # noqa: S108 - Linux keeps this folder in memory


class StateError(Exception):
    """The state folder cannot be used: the reason and the remedy."""


class Folders:
    """The layout of one state folder."""

    def __init__(self, root: Path, *, shared: bool = False) -> None:
        """On a server that users share, the files of a job belong to its user, and all others to root."""
        self.root = root
        self.shared = shared
        self.registry = root / "jobs.db"
        self.store = root / "profiles.db"
        self.log = root / "dljob.log"
        self.beside = SYSTEM_SOCKETS if root == SYSTEM_ROOT else root.absolute() / "run"
        self.link = root.absolute() / "sockets"
        """If the path is too long for sockets, a link to a folder of our own below /tmp."""

    @property
    def sockets(self) -> Path:
        if not is_long(self.beside):
            return self.beside
        try:
            return self.link.readlink()
        except OSError:
            return self.link

    @property
    def socket(self) -> Path:
        """The socket of the controller."""
        return self.sockets / "dljob.sock"

    def pod(self, key: "PodKey", serial: int) -> Path:
        """The server's files about one pod, which only the server's user may write."""
        return self.pods_of(key.job) / f"{serial:04d}-{key.node}"

    def pods_of(self, job: str) -> Path:
        """The folder of a job's pods, which only the server's user may write."""
        return self.of_pods() / _as_name(job)

    def of_pods(self) -> Path:
        """The folder that holds, for each job, the folders of its pods."""
        return self.root / ("pods" if self.shared else "jobs")

    def progress_socket(self, key: "PodKey", serial: int) -> Path:
        """The socket at which a training reports its progress."""
        if self.shared:
            return self.job(key.job) / f"{serial:04d}-{key.node}.sock"
        return self.pod(key, serial) / "progress.sock"

    def sockets_of(self, job: str) -> Path:
        """The folder of the sockets of a job's SideCars; on a server that users share, it belongs to the job's user."""
        return self.sockets / _short(job) if self.shared else self.sockets

    def job(self, job: str) -> Path:
        return self.root / "jobs" / _as_name(job)

    def checkpoints(self, job: str) -> Path:
        """The job's own checkpoint folder, which may outlive the job."""
        return self.root / "checkpoints" / _as_name(job)

    def of_jobs(self) -> tuple[Path, ...]:
        """All folders that hold a folder for each job."""
        bases = (self.root / name for name in ("jobs", "checkpoints", "pods"))
        return (*bases, self.sockets)

    def training_log(self, key: "PodKey") -> Path:
        """The output of the training on one node, over all its pods."""
        return self.job(key.job) / f"{key.node}.log"

    def training_logs(self, job: str) -> dict[str, Path]:
        """The existing training logs of a job, by node."""
        return {path.stem: path for path in sorted(self.job(job).glob("*.log"))}

    def sidecar_log(self, key: "PodKey", serial: int) -> Path:
        return self.pod(key, serial) / "sidecar.log"

    def pod_socket(self, key: "PodKey", serial: int) -> Path:
        name = _short(f"{key.job}\0{key.node}\0{serial}")
        return self.sockets_of(key.job) / f"{name}.sock"

    def memory(self, key: "PodKey", serial: int) -> Path:
        """The folder in memory for a pod's checkpoints, with a name that no other state folder uses."""
        name = _short(f"{self.root.absolute()}\0{key.job}\0{key.node}\0{serial}")
        return IN_MEMORY / f"dljob-{name}"

    def mark(self) -> str:
        """Name this state folder in a few letters, for files in folders that several servers use."""
        return _short(str(self.root.absolute()))

    def machine_name(self) -> str:
        """
        Return the name that the machine had at the first start.

        Jobs hold GPUs by this name: under another one the same GPUs would look free.
        """
        return self._kept("machine", socket.gethostname)

    def installation(self) -> str:
        """
        Return the unique id of this state folder, for the commands to SideCars.

        It is not in the list of jobs, which may be restored from a backup or removed.
        """
        return self._kept("installation", lambda: str(uuid.uuid4()))

    def _kept(self, name: str, make: Callable[[], str]) -> str:
        """Return the text of a file, which the first start writes."""
        path = self.root / name
        try:
            return _read(path) or _write(path, make())
        except OSError as error:
            raise StateError(
                f"{path}: cannot be used ({error.strerror}); make room or repair the folder, or"
                " name another one with --state"
            ) from error

    def remove(self) -> None:
        """Remove everything. No process may use the folder any more."""
        for folder in (self.sockets, self.root):
            remove_tree(folder)

    def tidy(self) -> None:
        """Remove the folder of sockets if it is empty. The caller holds the lock."""
        with contextlib.suppress(OSError):
            self.sockets.rmdir()
            self.link.unlink(missing_ok=True)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""


def _write(path: Path, text: str) -> str:
    """Write a file in one step, so that no other start reads half of it."""
    unnamed = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        unnamed.write_text(f"{text}\n")
        unnamed.replace(path)
    finally:
        unnamed.unlink(missing_ok=True)
    return text


def find_closed(path: Path) -> Path | None:
    """Return the part of a path that keeps other users from the file; ``None`` if none does."""
    for each in (path.absolute(), path.resolve()):
        for part in (each, *each.parents):
            mode = part.stat().st_mode
            wanted = 0o001 if stat.S_ISDIR(mode) else 0o004
            if not mode & wanted:
                return part
    return None


def older_parts(path: Path) -> list[Path]:
    """Find the rotated parts of a log, oldest first."""
    numbered: list[tuple[int, Path]] = []
    for part in path.parent.glob(f"{path.name}.*"):
        number = part.name.removeprefix(f"{path.name}.")
        if number.isdecimal():
            numbered.append((int(number), part))
    return [part for _, part in sorted(numbered, reverse=True)]


def deletion_note(path: Path) -> Path:
    """Return the file with the line that a log begins with once its first bytes are deleted."""
    return path.with_name(f"{path.name}.deleted")


def default_root(environment: Mapping[str, str]) -> Path:
    if environment.get("DLJOB_STATE"):
        return Path(environment["DLJOB_STATE"])
    base = environment.get("XDG_STATE_HOME") or Path(environment.get("HOME", "/")) / ".local/state"
    return Path(base) / "dljob"


def is_long(folder: Path) -> bool:
    """Return whether the paths of sockets in a folder would be too long."""
    return len(os.fsencode(folder)) + len("/0123456789abcdef.sock") > LONGEST_SOCKET_PATH


def _as_name(job: str) -> str:
    return job.replace("/", "__")


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
