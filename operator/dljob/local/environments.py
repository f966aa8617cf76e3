"""
The environment of a job: that of its submitter, as the command recorded it.

The command records it (:func:`record`). The server keeps it with the job, starts the training in it, and never shows a
value that could be a secret (:func:`shown`). The environment of ``dljob up`` itself, with DLJob's own virtual
environment and the password of its store, reaches no job.
"""

import os
import pwd
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from dljob.local.files import bounded_checks
from dljob_wire.problems import Problem

if TYPE_CHECKING:
    # The model takes long to load, and the command only records the environment.
    from dljob.core.model import Job

Variables = Mapping[str, str]

FindHome = Callable[[Path], Variables]
"""Returns the variables of the virtual or conda environment in a folder; empty for any other folder."""

MOST_BYTES = 1 << 20
"""The longest environment that Linux passes to a program with the usual limits."""

LONGEST_PATH, LONGEST_NAME = 4096, 255
"""In bytes: limits of Linux and of its usual file systems."""

REDACTED = "(redacted)"

_OF_A_SESSION = re.compile(
    r"_|PWD|OLDPWD|SHLVL|TERM|COLORTERM|LINES|COLUMNS|PS[0-9]|DISPLAY|WAYLAND_DISPLAY|XAUTHORITY"
    r"|WINDOWID|TMUX.*|STY|SSH_.*|DBUS_.*|XDG_(?:RUNTIME_DIR|SESSION_.*|SEAT|VTNR)|SUDO_.*|BASH_FUNC_.*"
    r"|NOTIFY_SOCKET|INVOCATION_ID|JOURNAL_STREAM|LISTEN_.*|DLJOB_.*|_DLJOB_.*"
)
"""Variables of a terminal, a service or DLJob itself, which a job outlives."""

_OF_A_JOB = re.compile(
    r"(?:CUDA|NVIDIA|HIP|ROCR)_VISIBLE_DEVICES|(?:LOCAL_|GROUP_)?(?:RANK|WORLD_SIZE)|MASTER_(?:ADDR|PORT)"
    r"|TF_CONFIG|TORCHELASTIC_.*|PET_.*|OMPI_.*|HOROVOD_(?:RANK|SIZE|LOCAL_.*)|SLURM_.*"
)
"""Variables that a scheduler sets for the processes of a job. In a submitter's environment they are another scheduler's."""

_NECESSARY = frozenset({"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR"})
"""Variables that a job gets even if its file names the variables."""

_SHOWN = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LC_[A-Z]+|TZ|TMPDIR|VIRTUAL_ENV|CONDA_(?:PREFIX|DEFAULT_ENV|SHLVL)"
    r"|PYTHONPATH|LD_LIBRARY_PATH|CUDA_HOME|CUDA_PATH|HF_HOME|TORCH_HOME|OMP_NUM_THREADS|NCCL_[A-Z_]+"
)
"""Variables whose values are shown. The value of any other variable may be a secret."""


@dataclass(frozen=True, slots=True)
class Submitter:
    """The user who owns a job."""

    user: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()

    @classmethod
    def of_this_process(cls) -> Self:
        return cls.known(os.getuid(), os.getgid(), tuple(os.getgroups()))

    @classmethod
    def known(cls, uid: int, gid: int, groups: Sequence[int]) -> Self:
        """Make the submitter that the kernel has identified."""
        return cls(name_user(uid), uid, gid, tuple(groups))


@dataclass(frozen=True, slots=True)
class Origin:
    """The submitter of a job, and the environment at the submission."""

    submitter: Submitter
    variables: Variables = field(default_factory=dict)

    @classmethod
    def here(cls) -> Self:
        """Return the user and the environment of this process."""
        return cls(Submitter.of_this_process(), record(os.environ))

    @classmethod
    def of(cls, submitter: Submitter, variables: Variables | None) -> Self:
        """Use the recorded variables; without them, the variables that a login gives the user."""
        return cls(submitter, _login(submitter) if variables is None else variables)

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        user, uid, gid = document["user"], document["uid"], document["gid"]
        return cls(
            Submitter(user, uid, gid, tuple(document["groups"])), dict(document["variables"])
        )

    def written(self) -> dict[str, Any]:
        """Write it for the list of jobs, which only the server's user may read."""
        submitter = self.submitter
        return {
            "user": submitter.user,
            "uid": submitter.uid,
            "gid": submitter.gid,
            "groups": list(submitter.groups),
            "variables": dict(self.variables),
        }


def own_origin(_job: str) -> Origin:
    """Return this process as the owner of each job."""
    return Origin.here()


def name_user(uid: int) -> str:
    """Return the name of a user; the number if there is no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


class EnvironmentVariablesError(ValueError):
    """A client sent an invalid environment: the reason and the remedy."""


# --- recorded by the command


def record(environment: Variables) -> dict[str, str]:
    """Choose the variables of an environment that are for a job."""
    chosen = {
        name: value
        for name, value in environment.items()
        if not _OF_A_SESSION.fullmatch(name) and not _OF_A_JOB.fullmatch(name)
    }
    # A value that is not UTF-8 cannot be recorded; trainings hardly need one.
    return {name: value for name, value in chosen.items() if _is_text(name) and _is_text(value)}


def _is_text(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


# --- kept by the server


def check(given: object) -> dict[str, str] | None:
    """Check the environment that a client sent; raises :class:`EnvironmentVariablesError`."""
    if given is None:
        return None
    if not isinstance(given, dict):
        raise EnvironmentVariablesError("environment: is not a mapping of names to values")
    for name, value in given.items():
        if not isinstance(value, str):
            raise EnvironmentVariablesError(f"environment.{name}: is not a string")
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise EnvironmentVariablesError(
                f"environment: {name!r} is not a variable that Linux passes to a program"
            )
    size = sum(len(name.encode()) + len(value.encode()) + 2 for name, value in given.items())
    if size > MOST_BYTES:
        raise EnvironmentVariablesError(
            f"environment: has {size:,} bytes, and Linux passes at most {MOST_BYTES:,} to a"
            " program; unset long variables, or submit under env -i"
        )
    # Other clients than our command may not have left variables out.
    return record(given)


def find_home(folder: Path) -> dict[str, str]:
    """Find the environment in a folder; raises :class:`~dljob.local.files.bounded_checks.NoAnswerError`."""
    for mark, name in (("pyvenv.cfg", "VIRTUAL_ENV"), ("conda-meta", "CONDA_PREFIX")):
        # A path that cannot be read counts as absent.
        if bounded_checks.ask(str(folder / mark), os.path.exists):
            return {name: str(folder)}
    return {}


def of_job(job: "Job", origin: Origin, *, find: FindHome = find_home) -> dict[str, str]:
    """
    Return the environment of a job, without the variables of its file.

    ``find`` finds the virtual or conda environment of an interpreter; its errors are raised.
    """
    variables = dict(origin.variables)
    if job.container is not None:
        # The image has its own variables, and paths of the machine would be wrong in it.
        named = job.variables or ()
        return {name: value for name, value in variables.items() if name in named}
    if job.variables is not None:
        wanted = _NECESSARY | set(job.variables)
        variables = {name: value for name, value in variables.items() if name in wanted}
    return _with_python(variables, Path(job.python), find=find) if job.python else variables


def _with_python(variables: dict[str, str], python: Path, *, find: FindHome) -> dict[str, str]:
    """Put an interpreter first on the path, with its virtual or conda environment."""
    folder = python.parent
    left = {"VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT", "PYTHONHOME", "CONDA_PREFIX", "CONDA_DEFAULT_ENV"}
    kept = {name: value for name, value in variables.items() if name not in left}
    kept["PATH"] = os.pathsep.join(filter(None, (str(folder), variables.get("PATH", ""))))
    return {**kept, **find(folder.parent)}


def length_problems(job: "Job") -> Iterator[Problem]:
    """Yield the paths of a job that are too long for any file, without reading the file system."""
    paths = {"spec.environment.python": job.python, "spec.checkpoint.path": job.checkpoint.path}
    for field_, path in paths.items():
        parts = max(len(os.fsencode(part)) for part in path.split("/"))
        if len(os.fsencode(path)) >= LONGEST_PATH or parts > LONGEST_NAME:
            what = f"is longer than a path ({LONGEST_PATH - 1} bytes) or a name in it ({LONGEST_NAME}) can be"
            yield Problem(field_, f"{path[:40]}...", what, "name a shorter path")


def problems(job: "Job") -> Iterator[Problem]:
    """Yield the problems of the interpreter that a job names."""
    python, path = Path(job.python), "spec.environment.python"
    is_program = os.path.isfile(python) and os.access(python, os.X_OK)  # noqa: PTH113
    if job.python and not is_program:
        remedy = "name the interpreter itself, such as /opt/envs/train/bin/python"
        yield Problem(path, job.python, f"{job.python} is not a program here", remedy)


def shown(variables: Variables) -> dict[str, str]:
    """Hide the values of all variables that could be secrets."""
    return {
        name: variables[name] if _SHOWN.fullmatch(name) else REDACTED for name in sorted(variables)
    }


def _login(submitter: Submitter) -> dict[str, str]:
    """Return the variables that a login gives a user."""
    try:
        home, shell = (entry := pwd.getpwuid(submitter.uid)).pw_dir, entry.pw_shell
    except KeyError:
        home, shell = "/", ""
    places = ["/usr/local/bin", "/usr/bin", "/bin"]
    if submitter.uid == 0:
        places = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
    return {
        "PATH": os.pathsep.join(places),
        "HOME": home,
        "USER": submitter.user,
        "LOGNAME": submitter.user,
        "SHELL": shell or "/bin/sh",
        "LANG": os.environ.get("LANG", "C.UTF-8"),
    }
