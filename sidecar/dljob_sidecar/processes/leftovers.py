"""
Ends the processes that an earlier start of the container has left on a plain machine, before we begin.

``dljob_sidecar.living`` calls it when it has the lock, so that no other SideCar of this name lives.
Where namespaces are allowed the kernel ends everything with a SideCar, and elsewhere its keeper
does. But the keeper may have been killed as well, and the kernel may take its time. Two ways of
finding them, because neither is enough:

- A process with our name in its environment is killed. That finds no process in another namespace,
  and none that has cleared its environment.
- Each training process has inherited the :func:`hold` of the SideCar that started it, a lock
  which the kernel gives back when the last of them is dead. The descriptors in ``/proc`` show the processes that
  have it, also with another environment and other parents, and these are killed. That finds no
  process that closes all descriptors that it did not open.

In a container there is never anything to be found.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time

from dljob_sidecar.linux.family import (
    MARK,
    ancestors,
    descend,
    read_environment,
    read_file,
    scan,
)
from dljob_sidecar.linux.kernel import send

PATIENCE_SECONDS = 10.0
STEP_SECONDS = 0.01


class Lingering(Exception):
    """A process does not end; the message names it and how to find it."""


def make_mark(name: str, incarnation: str) -> str:
    """Return INCARNATION.NAME, the mark of a container start; only the name may have more dots."""
    return f"{incarnation}.{name}"


def sweep(name: str, *, patience_seconds: float = PATIENCE_SECONDS) -> int:
    """
    Kill the processes that earlier starts of this name left; return their number.

    Raises :class:`Lingering` if they do not die.
    """
    limit = time.monotonic() + patience_seconds
    found: set[int] = set()
    while left := find_marked(name):
        if time.monotonic() > limit:
            pids = ", ".join(map(str, sorted(left)[:10]))
            raise Lingering(f"SIGKILL does not end the processes {pids} of an earlier start")
        found |= left
        for pid in left:
            send(pid, signal.SIGKILL)
        time.sleep(STEP_SECONDS)
    return len(found)


def find_marked(name: str) -> set[int]:
    """Return the living processes with this name in their mark, except this one."""
    processes = scan()
    own = descend(processes, [os.getpid()])
    begin, sought = f"{MARK}=".encode(), os.fsencode(name)
    return {
        pid
        for pid, process in processes.items()
        if not process.dead
        and pid not in own
        and any(
            entry.startswith(begin) and entry.partition(b".")[2] == sought
            for entry in read_environment(pid)
        )
    }


def hold(path: str, *, patience_seconds: float = PATIENCE_SECONDS) -> int:
    """
    Take the lock that all training processes inherit, and return its descriptor.

    Raises :class:`Lingering` if processes of an earlier start do not release it.
    """
    limit = time.monotonic() + patience_seconds
    held = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    while not _lock(held):
        kill_holders(held)
        if time.monotonic() > limit:
            os.close(held)
            text = f"processes of an earlier start are still there; `fuser {path}` lists them"
            raise Lingering(text)
        time.sleep(STEP_SECONDS)
    return held


def kill_holders(held: int) -> int:
    """
    Kill the processes that inherited the lock on a file, and return their number.

    Ancestors are spared, because a caller may hold the lock on purpose. A process that only has the
    file open holds no lock and is not part of the job.
    """
    there = os.fstat(held)
    processes = scan()
    above = ancestors(processes, os.getpid())
    found = 0
    for pid, process in processes.items():
        if process.dead or pid in above or not _has_lock(pid, there):
            continue
        try:
            # A process id may be reused at any moment, but a pidfd stays with its process.
            exactly = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            if _has_lock(pid, there):
                signal.pidfd_send_signal(exactly, signal.SIGKILL)
                found += 1
        except OSError:
            pass
        finally:
            os.close(exactly)
    return found


def _has_lock(pid: int, there: os.stat_result) -> bool:
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208
    except OSError:
        # The process is gone or belongs to another user.
        return False
    return any(_is_lock(pid, number, there=there) for number in numbers)


def _is_lock(pid: int, number: str, *, there: os.stat_result) -> bool:
    try:
        found = os.stat(f"/proc/{pid}/fd/{number}")  # noqa: PTH116
        if (found.st_dev, found.st_ino) != (there.st_dev, there.st_ino):
            return False
        return b"FLOCK" in read_file(f"/proc/{pid}/fdinfo/{number}")
    except OSError:
        return False


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
