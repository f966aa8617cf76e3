"""
Witnesses that trust no report, but ``/proc`` and locks that only the kernel releases.

The environment of a training process has its generation (the rendezvous port). Two generations alive at
once break the law. Because polls can miss that, each training also locks a file for its GPU (see
``trainers.py``), which is free when all of its descendants are dead.
"""

from __future__ import annotations

import fcntl
import threading
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

from tests.sidecar.drivers import LIMIT_SECONDS, find_processes, is_alive, list_pids, read_proc
from tests.sidecar.trainers import COMM

PORT = b"MASTER_PORT="
PERIOD_SECONDS = 0.01
LARGEST_SHARE = 0.1
"""The largest share of one core for polls."""


def find_trainings(token: str) -> list[int]:
    """Return the processes of trainings, including warm interpreters that became one."""
    word = token.encode()
    return [pid for pid in list_pids() if _is_training(pid, word) and is_alive(pid)]


def find_relatives(token: str) -> list[int]:
    """Return all processes of a job: trainings, warm interpreters, and the SideCar."""
    word = token.encode()
    return [
        pid
        for pid in list_pids()
        if word in read_proc(pid, "cmdline") + read_proc(pid, "environ") and is_alive(pid)
    ]


def _is_training(pid: int, token: bytes) -> bool:
    command = read_proc(pid, "cmdline")
    if b"sidecar\0run" in command:
        return False
    if token in command:
        return True
    is_named = read_proc(pid, "comm").strip() == COMM.encode()
    return is_named and token in read_proc(pid, "environ")


def find_held_gpus(folder: Path) -> list[str]:
    """Return the locks in a story's folder that a process holds."""
    return sorted(file.name for file in folder.glob("gpu-*") if not _can_lock(file))


def _can_lock(file: Path) -> bool:
    with file.open("r+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


class Witness(threading.Thread):
    """Looks for two living generations of a job, from ``start()`` to ``dismiss()``."""

    def __init__(self, token: str) -> None:
        """The tokens of the watched jobs begin with this one; see ``containers.py``."""
        super().__init__(daemon=True)
        self._token = token
        self._is_dismissed = threading.Event()
        self.looks = 0
        self.seen: list[str] = []
        """The broken laws."""

    def run(self) -> None:
        pause = PERIOD_SECONDS
        while not self._is_dismissed.wait(pause):
            begin = time.thread_time()
            self.look()
            self.looks += 1
            pause = max(PERIOD_SECONDS, (time.thread_time() - begin) / LARGEST_SHARE)

    def look(self) -> None:
        jobs: dict[bytes, dict[bytes, int]] = defaultdict(dict)
        for pid in find_processes(self._token):
            job, generation = self._read(pid)
            if generation:
                jobs[job].setdefault(generation, pid)
        for job, generations in jobs.items():
            for (one, pid), (other, its_pid) in pairwise(generations.items()):
                # A look takes time: only two that are both still alive have met.
                if all(
                    is_alive(pid) and self._read(pid) == (job, generation)
                    for generation, pid in ((one, pid), (other, its_pid))
                ):
                    self.seen.append(f"{one!r} lives at once with {other!r} of {job!r}")

    def _read(self, pid: int) -> tuple[bytes, bytes]:
        """Return the job and the generation of a process; empty if unknown."""
        arguments = read_proc(pid, "cmdline").split(b"\0")
        environment = read_proc(pid, "environ").split(b"\0")
        token = next((one for one in arguments if one.startswith(self._token.encode())), b"")
        generation = next((entry for entry in environment if entry.startswith(PORT)), b"")
        # The containers of a job differ in the last parts of their tokens.
        return token.rpartition(b".")[0].rpartition(b".")[0], generation

    def dismiss(self) -> None:
        self._is_dismissed.set()
        self.join(LIMIT_SECONDS)
        assert not self.is_alive()
        assert self.seen == []
        assert self.looks > 0
