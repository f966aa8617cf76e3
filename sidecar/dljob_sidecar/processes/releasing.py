"""
Compares the memory in use of a start's GPUs with that before the start, where NVML reports it.

Asked by :mod:`dljob_sidecar.processes.supervising` when no process of the job is to be found any more. Memory above
the base line belongs to one of three: to a process of the job that only another daemon knows of
(``docker run``), which must not be released; to the driver, which still cleans up; or to a stranger on a
shared machine. So NVML's list of processes is asked, and a process is a stranger if

- it was on the GPU before the start, or
- the machine shows that it is older than the start, or belongs to another user who is not root.

Memory that processes of other users have taken since the start does not count. Any other holder of
memory blocks the release and is named; ``releaseSeconds`` limits that where a machine is shared
and the proof by processes is enough.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Callable

from dljob_sidecar.linux import kernel
from dljob_sidecar.linux.family import parse_process
from dljob_sidecar.observing.gpus.nvml import choose
from dljob_wire.messages import Gpu

TOLERANCE_BYTES = 64 << 20
MOST_NAMED = 4


@dataclass(frozen=True)
class Base:
    """The use of one GPU before the start."""

    used: int
    processes: Mapping[int, int]
    """The memory of each process, by the id that NVML reports."""


@dataclass(frozen=True)
class Release:
    """The GPUs of one start, as they were before it."""

    bases: Mapping[str, Base]
    """By UUID; only for GPUs that report their memory."""
    is_stranger: Callable[[int], bool] = lambda _: False
    names: Mapping[str, str] = field(default_factory=dict)
    """The UUIDs, by the names in the command."""

    def with_more(self, more: Release) -> Release:
        """Add GPUs that were measured later; what has begun since the first measurement is no stranger."""
        bases, names = {**self.bases, **more.bases}, {**self.names, **more.names}
        return replace(self, bases=bases, names=names)

    def only(self, gpus: Collection[str]) -> Release:
        """Return the part with these GPUs, by their names in the command."""
        names = {name: uuid for name, uuid in self.names.items() if name in gpus}
        chosen = {*names.values()}
        bases = {uuid: base for uuid, base in self.bases.items() if uuid in chosen}
        return replace(self, bases=bases, names=names)

    def find_unreleased(self, gpus: Collection[Gpu]) -> dict[str, str]:
        """Return by UUID why a GPU is not proven to be as free as before."""
        told = {one.uuid: one for one in gpus if one.memory_total}
        reasons = {}
        for uuid, base in self.bases.items():
            if uuid not in told:
                # This follows many driver errors, and proves nothing.
                reasons[uuid] = f"{uuid} does not report its memory in use"
                continue
            # Ignore the memory of ended processes, which would hide the memory of others.
            present = {process.pid for process in told[uuid].processes}
            gone = sum(used for pid, used in base.processes.items() if pid not in present)
            more = told[uuid].memory_used - base.used + gone
            suspects = []
            for process in told[uuid].processes:
                before = base.processes.get(process.pid)
                if before is not None or self.is_stranger(process.pid):
                    more -= max(0, process.memory_used - (before or 0))
                else:
                    suspects.append(process.pid)
            if more > TOLERANCE_BYTES:
                reasons[uuid] = f"{uuid} holds {more >> 20} MiB more than before the start"
                reasons[uuid] += _name(suspects)
        return reasons


def _name(pids: list[int]) -> str:
    if not pids:
        return ""
    more = f" and {len(pids) - MOST_NAMED} more" if len(pids) > MOST_NAMED else ""
    named = ", ".join(map(str, pids[:MOST_NAMED]))
    return f", where NVML names process {named}{more}, which may be of the job"


def measure(gpus: Collection[Gpu], ids: Collection[str]) -> Release:
    """Record the use of these GPUs before a start, if NVML reports it."""
    bases = {
        one.uuid: Base(one.memory_used, {each.pid: each.memory_used for each in one.processes})
        for one in choose(gpus, ids)
        if one.memory_total
    }
    names = {name: one.uuid for one in gpus for name in ids if name in {str(one.index), one.uuid}}
    now_ticks = time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")
    return Release(bases, lambda pid: is_stranger(pid, now_ticks), names)


def is_stranger(pid: int, since_ticks: float) -> bool:
    """
    Return True if a process is provably older than the start or belongs to another user.

    ``since_ticks`` counts from the boot, as the kernel counts process starts. Inside a container,
    the machine's process ids from NVML cannot be looked up, so the result is False.
    """
    root = kernel.outer_proc
    if root is None:
        return False
    try:
        owner = os.stat(str(pid), dir_fd=root).st_uid
        process = parse_process(pid, kernel.read_outer(f"{pid}/stat"))
    except (OSError, ValueError, IndexError):
        return False
    return owner not in {0, os.geteuid()} or process.started < since_ticks
