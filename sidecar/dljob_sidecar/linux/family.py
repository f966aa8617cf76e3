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

from dljob_sidecar.linux.kernel import send

PROC = "/proc"
BLOCK = 1 << 16
MARK = "DLJOB_MARK"
"""The variable that names the job and the start of its container in all started processes."""


class Process:
    """A process at one moment."""

    # Avoid dataclasses, because the keeper can save the memory of their modules.
    __slots__ = ("dead", "group", "parent", "pid", "session", "started")

    def __init__(self, pid: int, fields: list[bytes], *, dead: bool) -> None:
        """``fields`` are the fields of ``/proc/PID/stat`` from the state on."""
        self.pid = pid
        self.parent = int(fields[1])
        self.group = int(fields[2])
        self.session = int(fields[3])
        self.started = int(fields[19])
        """In clock ticks since boot; together with the id, this identifies a process forever."""
        self.dead = dead
        """True for a zombie, which holds only its table entry."""


def read_process(pid: int) -> Process | None:
    """Return the process from ``/proc``, or None if there is none."""
    try:
        process = parse_process(pid, read_file(f"{PROC}/{pid}/stat"))
        process.dead = process.dead and not _has_other_threads(pid)
        return process
    except (OSError, ValueError, IndexError):
        return None


def parse_process(pid: int, text: bytes) -> Process:
    """Parse the file ``stat`` of a process; raise ValueError or IndexError for other text."""
    # The name is in parentheses and may itself contain parentheses and blanks.
    fields = text[text.rindex(b")") + 2 :].split()
    return Process(pid, fields, dead=fields[0] in b"ZXx")


def read_file(path: str) -> bytes:
    """Return the contents of a kernel file, much faster than with a file object."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        blocks = [os.read(file, BLOCK)]
        while blocks[-1]:
            blocks.append(os.read(file, BLOCK))
        return b"".join(blocks)
    finally:
        os.close(file)


def _has_other_threads(pid: int) -> bool:
    """Return True if threads outlive the first one, which makes the process look like a zombie."""
    try:
        return len(os.listdir(f"{PROC}/{pid}/task")) > 1  # noqa: PTH208
    except OSError:
        return False


def scan() -> dict[int, Process]:
    """Return all visible processes."""
    found = {}
    # Much faster than pathlib, for a call that is repeated often.
    for name in os.listdir(PROC):  # noqa: PTH208
        if name.isdigit():
            process = read_process(int(name))
            if process is not None:
                found[process.pid] = process
    return found


def descend(processes: dict[int, Process], roots: Iterable[int]) -> set[int]:
    """Return the roots and all their descendants."""
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
    Return a process and its ancestors.

    If a SideCar runs inside another job, its ancestors carry the mark of that job.
    """
    found: set[int] = set()
    while pid in processes and pid not in found:
        found.add(pid)
        pid = processes[pid].parent
    return found


def read_environment(pid: int) -> list[bytes]:
    """Return the initial environment of a process; empty if the process is gone or not readable."""
    try:
        return read_file(f"{PROC}/{pid}/environ").split(b"\0")
    except OSError:
        return []


class ProcessTree:
    """
    All processes of the job, as seen from the SideCar that started them.

    ``spared`` is called at every scan, because spares come, go and become training processes.
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

    def members_beside(self, roots: Collection[int], entries: Collection[bytes]) -> list[Process]:
        """
        Return the living processes of the job that belong to none of these ranks.

        A process belongs to a rank if it descends from it, or has inherited one of these entries of
        an environment, by which an orphan is known.
        """
        processes = scan()
        rest = self._ours(processes) - descend(processes, roots)
        known = {*entries}
        return [processes[pid] for pid in sorted(rest) if known.isdisjoint(read_environment(pid))]

    def _ours(self, processes: dict[int, Process]) -> set[int]:
        own = os.getpid()
        spared = descend(processes, self._spared())
        if self._everything:
            ours = set(processes)
        else:
            ours = descend(processes, [own])
            # A process of the job carries the mark, and so do processes that it started.
            rest = processes.keys() - ours - spared - ancestors(processes, own)
            ours |= descend(processes, (pid for pid in rest if self._mark in read_environment(pid)))
        ours -= spared | {own}
        return {pid for pid in ours & processes.keys() if not processes[pid].dead}

    def kill(self) -> list[Process]:
        """
        Send SIGKILL to all living processes of the job, and return them.

        Kill process groups first: the kernel kills a group at once, so a process that forks forever
        cannot outrun the signals.
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
