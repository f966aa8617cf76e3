"""
What an earlier start of the container has left on a plain machine has to end before we begin.

Called by ``dlsidecar.living`` when the door is locked, so that no other SideCar of this name lives.
Where namespaces are allowed the kernel ends everything with a SideCar, and elsewhere its keeper
does. But the keeper may have been killed as well, and the kernel may take its time. Two ways of
telling, because neither is enough:

- What carries our name in its environment is killed. That finds nothing in another namespace, and
  nobody who has cleared his environment.
- Each training process has inherited the :func:`hold` of the SideCar that started it, a lock which
  the kernel gives back when the last of them is dead. That finds nobody who closes what he did not
  open, and only tells that somebody is there.

In a container there is never anything to be found.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time

from dlsidecar.descendants import MARK, descend, read_environment, scan
from dlsidecar.kernel import send

PATIENCE_SECONDS = 10.0
STEP_SECONDS = 0.01


class Lingering(Exception):
    """Something does not end; the message says what, and how to find it."""


def make_mark(name: str, incarnation: str) -> str:
    """Name a start of a container. An incarnation has no dot in it, while a name may."""
    return f"{incarnation}.{name}"


def sweep(name: str, *, patience_seconds: float = PATIENCE_SECONDS) -> int:
    """
    Kill what earlier starts of this name have left behind; return how many there were.

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
    """Return the living processes of the name, except our own."""
    processes = scan()
    own = descend(processes, [os.getpid()])
    return {
        pid
        for pid, process in processes.items()
        if not process.dead and pid not in own and is_marked(pid, os.fsencode(name))
    }


def is_marked(pid: int, name: bytes) -> bool:
    marks = (entry for entry in read_environment(pid) if entry.startswith(MARK.encode() + b"="))
    return any(mark.partition(b".")[2] == name for mark in marks)


def hold(path: str, *, patience_seconds: float = PATIENCE_SECONDS) -> int:
    """
    Take the lock that all training processes shall inherit, and return its descriptor.

    Raises :class:`Lingering` if those of an earlier start do not give it back.
    """
    limit = time.monotonic() + patience_seconds
    held = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    while not _lock(held):
        if time.monotonic() > limit:
            os.close(held)
            text = f"processes of an earlier start are still there; `fuser {path}` tells which"
            raise Lingering(text)
        time.sleep(STEP_SECONDS)
    return held


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
