"""Living processes and their jobs, from /proc alone."""

import contextlib
import fcntl
import json
import os
import re
import signal
from pathlib import Path

TRAINER = Path(__file__).with_name("trainer.py")


def find_processes(root: Path) -> list[tuple[int, str]]:
    """The processes with this folder in their command or environment, except the tests' own."""
    found = []
    wanted = os.fsencode(root) + b"/"
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (folder / "cmdline").read_bytes()
            if wanted in command or wanted in (folder / "environ").read_bytes():
                found.append((int(folder.name), command.replace(b"\0", b" ").decode()))
    return found


def trainings(root: Path) -> dict[int, str]:
    return {
        pid: job_of(command)
        for pid, command in find_processes(root)
        if str(TRAINER) in command.split()[:5] and "--socket=" not in command
    }


def job_of(command: str) -> str:
    (job,) = (word for word in command.split() if word.startswith("--job="))
    return job.removeprefix("--job=")


def served_job(command: str) -> str:
    """The job of a SideCar by its log file, because its command may be replaced by `false`."""
    return log_file(command).parent.name


def log_file(command: str) -> Path:
    (found,) = re.findall(r'"logFile":("[^"]+")', command)
    return Path(json.loads(found))


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def children(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def kill(pid: int, signum: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


def is_held(path: Path) -> bool:
    try:
        file = path.open()
    except FileNotFoundError:
        # A controller removes the lock of a pod that has ended.
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
