"""
The processes of the job, read from ``/proc``, including those that try to hide.

A training process may fork twice, take a session of its own, clear its environment and ignore
every signal. It cannot leave the tree: we are PID 1 of our namespace or a subreaper, so an
orphan becomes our child. A process belongs to the job by any one of these:

- it is in the namespace of which the SideCar is PID 1;
- it descends from the SideCar by the chain of parents;
- it carries the job's mark in its environment. This finds processes that another program started
  for the job, such as a running ``tmux``.

The SideCar itself and its own tools are spared.

Without a namespace one kind of process cannot be found: one that another daemon starts on behalf of the job
(``docker run``, ``systemd-run``, ``at``) with a clean environment.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Collection, Iterable

from dlsidecar.linux.kernel import send

PROC = "/proc"
BLOCK = 1 << 16
MARK = "DLJOB_MARK"
"""Names the job and the start of its container in the environment of all that we start."""


class Process:
    """A process at one moment."""

    # No dataclass, because the keeper can do without the modules that come with one.
    __slots__ = ("dead", "group", "parent", "pid", "session", "started")

    def __init__(self, pid: int, fields: list[bytes], *, dead: bool) -> None:
        """``fields`` are those of ``/proc/PID/stat`` from the state on."""
        self.pid = pid
        self.parent = int(fields[1])
        self.group = int(fields[2])
        self.session = int(fields[3])
        self.started = int(fields[19])
        """In clock ticks since boot. Together with the id it names a process for ever."""
        self.dead = dead
        """A zombie: it holds nothing any more but its entry."""


def read_process(pid: int) -> Process | None:
    """Return what ``/proc`` says of a process, or None when there is none."""
    try:
        process = parse_process(pid, read_file(f"{PROC}/{pid}/stat"))
        process.dead = process.dead and not _has_other_threads(pid)
        return process
    except (OSError, ValueError, IndexError):
        return None


def parse_process(pid: int, text: bytes) -> Process:
    """Return what the file ``stat`` of a process says; raises ValueError or IndexError if it is none."""
    # The name is in brackets and may itself contain brackets and blanks.
    fields = text[text.rindex(b")") + 2 :].split()
    return Process(pid, fields, dead=fields[0] in b"ZXx")


def read_file(path: str) -> bytes:
    """Return what is in a file of the kernel; much faster than by a file object."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        blocks = [os.read(file, BLOCK)]
        while blocks[-1]:
            blocks.append(os.read(file, BLOCK))
        return b"".join(blocks)
    finally:
        os.close(file)


def _has_other_threads(pid: int) -> bool:
    """Return whether other threads outlive the first: the process then only looks like a zombie."""
    try:
        return len(os.listdir(f"{PROC}/{pid}/task")) > 1  # noqa: PTH208
    except OSError:
        return False


def scan() -> dict[int, Process]:
    """Return every process there is to be seen."""
    found = {}
    # Much faster than pathlib, and this is done again and again.
    for name in os.listdir(PROC):  # noqa: PTH208
        if name.isdigit():
            process = read_process(int(name))
            if process is not None:
                found[process.pid] = process
    return found


def descend(processes: dict[int, Process], roots: Iterable[int]) -> set[int]:
    """Return the roots and all that descends from them."""
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting.extend(children.get(pid, ()))
    return found


def ancestors(processes: dict[int, Process], pid: int) -> set[int]:
    """
    Return a process and those above it.

    One SideCar may run inside another job, and then those above it carry the mark of that job.
    """
    found: set[int] = set()
    while pid in processes and pid not in found:
        found.add(pid)
        pid = processes[pid].parent
    return found


def read_environment(pid: int) -> list[bytes]:
    """Return what the process was started with; nothing if it is gone, or not ours to read."""
    try:
        return read_file(f"{PROC}/{pid}/environ").split(b"\0")
    except OSError:
        return []


class ProcessTree:
    """
    All processes of the job, as seen from the SideCar that started them.

    ``spared`` is asked at every look, because warm spares come, go and become training.
    """

    def __init__(
        self,
        *,
        mark: str,
        spared: Callable[[], Collection[int]],
        everything: bool | None = None,
    ) -> None:
        self._mark = os.fsencode(f"{MARK}={mark}")
        self._spared = spared
        self._everything = os.getpid() == 1 if everything is None else everything

    def members(self) -> list[Process]:
        """Return the living processes of the job."""
        processes = scan()
        return [processes[pid] for pid in sorted(self._ours(processes))]

    def _ours(self, processes: dict[int, Process]) -> set[int]:
        own = os.getpid()
        spared = descend(processes, self._spared())
        if self._everything:
            ours = set(processes)
        else:
            ours = descend(processes, [own])
            # A process of the job carries the mark, and so does one that it had started.
            rest = processes.keys() - ours - spared - ancestors(processes, own)
            ours |= descend(processes, (pid for pid in rest if self._mark in read_environment(pid)))
        ours -= spared | {own}
        return {pid for pid in ours & processes.keys() if not processes[pid].dead}

    def kill(self) -> list[Process]:
        """
        Send SIGKILL to all that live, and return them.

        Whole process groups first: the kernel kills a group in one go, so that what forks for
        ever does not outrun us.
        """
        processes = scan()
        ours = self._ours(processes)
        others = {one.group for pid, one in processes.items() if pid not in ours and not one.dead}
        for group in {processes[pid].group for pid in ours} - others:
            kill_group(group)
        for pid in ours:
            send(pid, signal.SIGKILL)
        return [processes[pid] for pid in sorted(ours)]


def kill_group(group: int) -> None:
    # 0 and 1 mean "my own group" and "all processes" to the kernel.
    if group > 1:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
