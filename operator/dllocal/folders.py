"""
Where everything of one ``dljob up`` lies, and the right to be the only one there.

The state folder is given or found by the XDG rules, and readable by its owner alone: whoever may
write there decides what is run. Sockets need short paths, so where the state folder's is long they
lie in a folder of the user's under the runtime folder of the machine instead.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import socket
import stat
import tempfile
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # The command asks where the socket is, and has no time to load all of the controller for it.
    from dlcontrol.situation.ports import PodKey

LONGEST_SOCKET_PATH = 96

LONGEST_SHARED = 60
"""Where users share a server, sockets of SideCars are a folder further down."""

LOCK_BYTES = 64

SYSTEM_ROOT = Path("/var/lib/dljob")
SYSTEM_SOCKETS = Path("/run/dljob")
"""Where the server of all users is, unless another state folder is named."""


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
        self._beside = SYSTEM_SOCKETS if root == SYSTEM_ROOT else root.absolute() / "run"
        self._link = root.absolute() / "sockets"
        """Where the path is too long for sockets, the way to a folder of our own below /tmp."""

    @property
    def sockets(self) -> Path:
        """Where the sockets are."""
        if not _is_long(self._beside):
            return self._beside
        try:
            return self._link.readlink()
        except OSError:
            return self._link

    @property
    def socket(self) -> Path:
        """Where the command speaks to the controller."""
        return self.sockets / "dljob.sock"

    def pod(self, key: "PodKey", serial: int) -> Path:
        """What the server keeps of one pod, which no job of another user than its own may write."""
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
        """What belongs to a job, over all its pods."""
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
        """What the SideCar of a pod says itself."""
        return self.pod(key, serial) / "sidecar.log"

    def pod_socket(self, key: "PodKey", serial: int) -> Path:
        name = _short(f"{key.job}\0{key.node}\0{serial}")
        return self.sockets_of(key.job) / f"{name}.sock"

    def make(self) -> None:
        """Make what is missing; raises :class:`StateError`."""
        mode = 0o711 if self.shared else 0o700
        if self.shared and len(os.fsencode(self._beside)) > LONGEST_SHARED:
            raise StateError(
                f"{self.root}: is too long for sockets below it; name a shorter --state"
            )
        for folder in self._bases():
            try:
                folder.mkdir(mode=mode, parents=True, exist_ok=True)
            except OSError as error:
                raise StateError(
                    f"{folder}: cannot be created ({error.strerror}); name another folder with"
                    " --state"
                ) from error
            _insist_on_privacy(folder)
            self._open_up(folder)
        self._make_sockets()

    def _make_sockets(self) -> None:
        """
        Make the folder of the sockets, which a controller before has removed if it was empty.

        One below /tmp gets a name that no other user can know before, and the way to it is in the state folder,
        where no other user can write. One that is not our own any more is not used.
        """
        if not _is_long(self._beside):
            self._beside.mkdir(mode=0o711 if self.shared else 0o700, exist_ok=True)
            self._open_up(self._beside)
            return
        for known in (self.sockets, _former(self.root)):
            if known != self._link and _is_private(known):
                break
        else:
            known = Path(tempfile.mkdtemp(prefix=f"dljob-{os.getuid()}-", dir="/tmp"))
        if self.sockets != known:
            unnamed = self._link.with_name(".sockets.new")
            unnamed.unlink(missing_ok=True)
            unnamed.symlink_to(known)
            unnamed.replace(self._link)

    def _open_up(self, folder: Path) -> None:
        """
        Let users go through a folder of a shared server to what is theirs, also under a strict umask.

        Not through a link, and only after it is known to be our own.
        """
        if not self.shared:
            return
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchmod(opened, 0o711)
        finally:
            os.close(opened)

    def _bases(self) -> tuple[Path, ...]:
        beside = () if _is_long(self._beside) else (self._beside,)
        usual = (self.root, self.root / "jobs", *beside)
        return (*usual, self.root / "checkpoints", self.root / "pods") if self.shared else usual

    def machine_name(self) -> str:
        """
        Name this machine as at the first start here, whatever it is called by now.

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
            if not path.exists():
                path.write_text(f"{make()}\n")
            return path.read_text().strip()
        except OSError as error:
            raise StateError(
                f"{path}: cannot be used ({error.strerror}); make room or repair the folder, or"
                " name another one with --state"
            ) from error

    def remove(self) -> None:
        """Remove everything; whoever does it has seen to it that nobody lives here any more."""
        for folder in (self.sockets, self.root):
            shutil.rmtree(folder, ignore_errors=True)

    def tidy(self) -> None:
        """Leave no empty folder, which may not be below our own; to be called by who holds the lock."""
        with contextlib.suppress(OSError):
            self.sockets.rmdir()
            self._link.unlink(missing_ok=True)

    def lock(self) -> int:
        """Be the only controller of this folder; returns what to close in the end."""
        path = self.root / "lock"
        held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            other = (os.read(held, LOCK_BYTES).decode(errors="replace").split() or ["unknown"])[0]
            os.close(held)
            raise StateError(
                f"{self.root}: dljob up runs there already (process {other});"
                " use that one, end it (dljob down), or name another folder with --state"
            ) from error
        # The controller that held it before has removed this if it was empty.
        self._make_sockets()
        return held

    def read_epoch(self, held: int) -> int:
        """Return the epoch of the controller before, as far as the lock still tells."""
        words = os.pread(held, LOCK_BYTES, 0).decode(errors="replace").split()
        is_number = len(words) == 2 and words[1].isascii() and words[1].isdigit()
        return int(words[1]) if is_number else 0

    def note_epoch(self, held: int, epoch: int) -> None:
        """Say in the lock who holds it, and under which epoch, for the controllers that come."""
        # Of one length and in its place, so that a full disk is in the way of no start.
        text = f"{os.getpid()} {epoch}".encode().ljust(LOCK_BYTES - 1) + b"\n"
        os.pwrite(held, text, 0)


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
    """Where the state is if nobody says."""
    if environment.get("DLJOB_STATE"):
        return Path(environment["DLJOB_STATE"])
    base = environment.get("XDG_STATE_HOME") or Path(environment.get("HOME", "/")) / ".local/state"
    return Path(base) / "dljob"


def _is_long(folder: Path) -> bool:
    """Whether a path is too long for sockets in that folder."""
    return len(os.fsencode(folder)) + len("/0123456789abcdef.sock") > LONGEST_SOCKET_PATH


def _former(root: Path) -> Path:
    """Where versions of before had the sockets, and SideCars of theirs may have them yet."""
    name = hashlib.sha256(os.fsencode(root.absolute())).hexdigest()[:12]
    return Path(f"/tmp/dljob-{os.getuid()}-{name}")  # noqa: S108 - only if it is our own


def _is_private(folder: Path) -> bool:
    """Whether it is a folder of our own, and no link, that no other user can write."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return is_own and not status.st_mode & 0o022


def _as_name(job: str) -> str:
    return job.replace("/", "__")


def _short(text: str) -> str:
    """Name something with few letters, because paths of sockets have to be short."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _insist_on_privacy(folder: Path) -> None:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise StateError(f"{folder}: belongs to another user; name another folder with --state")
    if status.st_mode & 0o022:
        raise StateError(
            f"{folder}: others may write there; take that away (chmod go-w), or name another"
            " folder with --state"
        )
