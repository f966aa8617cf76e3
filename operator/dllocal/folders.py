"""
Where everything of one ``dljob up`` lies, and the right to be the only one there.

The state folder is given or found by the XDG rules, and readable by its owner alone: a user that
may write there decides which programs run. Sockets need short paths, so where the state folder's is
long they lie in a folder of the user's under the runtime folder of the machine instead.
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

from dllocal.files.tree_removal import remove_tree

if TYPE_CHECKING:
    # The command asks where the socket is, and has no time to load all of the controller for it.
    from dlcontrol.situation.ports import PodKey

LONGEST_SOCKET_PATH = 96

SYSTEM_ROOT = Path("/var/lib/dljob")
SYSTEM_SOCKETS = Path("/run/dljob")
"""Where the server of all users is, unless another state folder is named."""


IN_MEMORY = Path("/dev/shm")  # noqa: S108 - Linux keeps this folder in memory


class StateError(Exception):
    """The state folder cannot be used: what is wrong, and what to do."""


class Folders:
    """The layout of one state folder."""

    def __init__(self, root: Path, *, shared: bool = False) -> None:
        """Where users share a server, what is of one job belongs to its user, and all else to root."""
        self.root = root
        self.shared = shared
        self.registry = root / "jobs.db"
        self.store = root / "profiles.db"
        self.log = root / "dljob.log"
        self.beside = SYSTEM_SOCKETS if root == SYSTEM_ROOT else root.absolute() / "run"
        self.link = root.absolute() / "sockets"
        """Where the path is too long for sockets, the way to a folder of our own below /tmp."""

    @property
    def sockets(self) -> Path:
        """Where the sockets are."""
        if not is_long(self.beside):
            return self.beside
        try:
            return self.link.readlink()
        except OSError:
            return self.link

    @property
    def socket(self) -> Path:
        """Where the command speaks to the controller."""
        return self.sockets / "dljob.sock"

    def pod(self, key: "PodKey", serial: int) -> Path:
        """The server's files about one pod, which no job of another user than its own may write."""
        return self.of_pods() / _as_name(key.job) / f"{serial:04d}-{key.node}"

    def of_pods(self) -> Path:
        """Where there is a folder for each job that holds those of its pods."""
        return self.root / ("pods" if self.shared else "jobs")

    def progress_socket(self, key: "PodKey", serial: int) -> Path:
        """Where the training itself may tell how far it is."""
        if self.shared:
            return self.job(key.job) / f"{serial:04d}-{key.node}.sock"
        return self.pod(key, serial) / "progress.sock"

    def sockets_of(self, job: str) -> Path:
        """Where the SideCars of a job answer; where users share a server, a folder of its user's."""
        return self.sockets / _short(job) if self.shared else self.sockets

    def job(self, job: str) -> Path:
        """The files of a job, over all its pods."""
        return self.root / "jobs" / _as_name(job)

    def checkpoints(self, job: str) -> Path:
        """Where a job saves itself unless its file says otherwise; it may outlive the job."""
        return self.root / "checkpoints" / _as_name(job)

    def of_jobs(self) -> tuple[Path, ...]:
        """Where there is a folder for each job, or may be."""
        bases = (self.root / name for name in ("jobs", "checkpoints", "pods"))
        return (*bases, self.sockets)

    def training_log(self, key: "PodKey") -> Path:
        """The output of the training on one node, over all its pods."""
        return self.job(key.job) / f"{key.node}.log"

    def training_logs(self, job: str) -> dict[str, Path]:
        """All such logs of a job that there are, by their nodes."""
        return {path.stem: path for path in sorted(self.job(job).glob("*.log"))}

    def sidecar_log(self, key: "PodKey", serial: int) -> Path:
        """The log of a pod's SideCar itself."""
        return self.pod(key, serial) / "sidecar.log"

    def pod_socket(self, key: "PodKey", serial: int) -> Path:
        name = _short(f"{key.job}\0{key.node}\0{serial}")
        return self.sockets_of(key.job) / f"{name}.sock"

    def memory(self, key: "PodKey", serial: int) -> Path:
        """Where the SideCar of a pod holds checkpoints in memory; no other state folder has this name."""
        name = _short(f"{self.root.absolute()}\0{key.job}\0{key.node}\0{serial}")
        return IN_MEMORY / f"dljob-{name}"

    def mark(self) -> str:
        """Name this state folder in a few letters, where those of others are beside it."""
        return _short(str(self.root.absolute()))

    def machine_name(self) -> str:
        """
        Return the machine's name at the first start here, even if it has another one now.

        Jobs hold GPUs by this name. Under another one the same GPUs would look free.
        """
        return self._kept("machine", socket.gethostname)

    def installation(self) -> str:
        """
        Name this state folder among all, for the commands that go out from here.

        Beside the list of jobs and not in it, because that one may be restored from a backup or removed.
        """
        return self._kept("installation", lambda: str(uuid.uuid4()))

    def _kept(self, name: str, make: Callable[[], str]) -> str:
        """Return what a file here says, made at the first start."""
        path = self.root / name
        try:
            return _read(path) or _write(path, make())
        except OSError as error:
            raise StateError(
                f"{path}: cannot be used ({error.strerror}); make room or repair the folder, or"
                " name another one with --state"
            ) from error

    def remove(self) -> None:
        """Remove everything; the caller has made sure that no process lives here any more."""
        for folder in (self.sockets, self.root):
            remove_tree(folder)

    def tidy(self) -> None:
        """Leave no empty folder, which may not be below our own. The caller holds the lock."""
        with contextlib.suppress(OSError):
            self.sockets.rmdir()
            self.link.unlink(missing_ok=True)


def _read(path: Path) -> str:
    """Return what a file says; empty where it is not there, or is left by a start that could not write it."""
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
    """Return what on the way to a file keeps other users from it; ``None`` if nothing does."""
    for each in (path.absolute(), path.resolve()):
        for part in (each, *each.parents):
            mode = part.stat().st_mode
            wanted = 0o001 if stat.S_ISDIR(mode) else 0o004
            if not mode & wanted:
                return part
    return None


def older_parts(path: Path) -> list[Path]:
    """Find the parts of a log that :mod:`dllocal.pods.rotating` has made, oldest first."""
    numbered: list[tuple[int, Path]] = []
    for part in path.parent.glob(f"{path.name}.*"):
        number = part.name.removeprefix(f"{path.name}.")
        if number.isdecimal():
            numbered.append((int(number), part))
    return [part for _, part in sorted(numbered, reverse=True)]


def default_root(environment: Mapping[str, str]) -> Path:
    """Where the state is by default."""
    if environment.get("DLJOB_STATE"):
        return Path(environment["DLJOB_STATE"])
    base = environment.get("XDG_STATE_HOME") or Path(environment.get("HOME", "/")) / ".local/state"
    return Path(base) / "dljob"


def is_long(folder: Path) -> bool:
    """Whether a path is too long for sockets in that folder."""
    return len(os.fsencode(folder)) + len("/0123456789abcdef.sock") > LONGEST_SOCKET_PATH


def _as_name(job: str) -> str:
    return job.replace("/", "__")


def _short(text: str) -> str:
    """Name something with few letters, because paths of sockets have to be short."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
