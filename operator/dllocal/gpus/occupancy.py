"""
Which GPUs are used by processes that are none of our jobs'.

What counts as use is judged in :mod:`dlwire.occupancy`, as SideCars judge it right before each start; here
it is held against what belongs to this ``dljob up``. Called by :mod:`dllocal.gpus.devices` after each reading.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dllocal.gpus.gpu_locks import describe_process
from dlwire.occupancy import Parents, Usage, find_load, find_users, is_below


def parent_of(pid: int) -> int:
    """Ask the kernel."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0
    return int(fields[1])


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
    is_ours = partial(is_below, roots=ours.processes, parents=parents)
    reasons = {}
    for uuid, usage in usages.items():
        why = find_users(usage, is_ours=is_ours, describe=describe)
        if not why and not usage.processes and uuid not in ours.held:
            # As in a container, where NVML does not name the processes of others.
            why = find_load(usage)
        if why:
            reasons[uuid] = why
    return reasons
