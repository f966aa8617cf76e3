"""
Which GPUs are used by processes that are none of our jobs'.

A pure judgement of what NVML says (:mod:`dllocal.nvml`), and a look into ``/proc`` for who descends
from whom. Called by :mod:`dllocal.devices` after each reading.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from dllocal.gpu_locks import describe_process
from dllocal.nvml import Usage

BUSY_BYTES = 512 << 20
"""Memory beyond that is not the driver's: an idle one holds a few hundred MiB."""

Parents = Callable[[int], int]
"""Tells the parent of a process; 0 of one that has none, or that cannot be seen."""


def parent_of(pid: int) -> int:
    """Ask the kernel."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0
    return int(fields[1])


def is_below(pid: int, roots: Collection[int], parents: Parents = parent_of) -> bool:
    """Whether a process is one of these or descends from one."""
    seen = set()
    while pid > 1 and pid not in seen:
        if pid in roots:
            return True
        seen.add(pid)
        pid = parents(pid)
    return False


@dataclass(frozen=True, slots=True)
class Ours:
    """What belongs to this ``dljob up``."""

    processes: Collection[int]
    """Its SideCars, from which all processes of its jobs descend."""
    held: Collection[str]
    """The GPUs that its jobs have or must still release, by UUID."""


def find_foreign(
    usages: Mapping[str, Usage],
    ours: Ours,
    *,
    parents: Parents = parent_of,
    describe: Callable[[int], str] = describe_process,
) -> dict[str, str]:
    """Say of each GPU that others use, by UUID, what uses it."""
    reasons = {}
    for uuid, usage in usages.items():
        foreign = [pid for pid in usage.processes if not is_below(pid, ours.processes, parents)]
        if foreign:
            more = f" (and {len(foreign) - 1} more)" if len(foreign) > 1 else ""
            reasons[uuid] = f"{describe(foreign[0])}{more} computes on it"
        elif usage.memory_used > BUSY_BYTES and not usage.processes and uuid not in ours.held:
            # As in a container, where NVML does not name the processes of others.
            reasons[uuid] = f"{usage.memory_used >> 20:,} MiB of it are in use by others"
    return reasons
