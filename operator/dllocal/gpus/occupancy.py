"""
Which GPUs are used by processes that are none of our jobs'.

:mod:`dlwire.occupancy` judges whether a GPU is in use, as SideCars judge it right before each start; this module
takes out the use by this ``dljob up``. :mod:`dllocal.gpus.devices` calls it after each reading.
"""

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
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


def is_there(pid: int) -> bool:
    """Whether a process exists, also where ``/proc`` hides those of other users."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        # It is another user's, or has a number from which nothing follows.
        return True
    return True


@dataclass(frozen=True, slots=True)
class OwnUse:
    """The processes and GPUs of this ``dljob up``."""

    processes: Collection[int]
    """Its SideCars, from which all processes of its jobs descend."""
    held: Collection[str]
    """The GPUs that its jobs have or must still release, by UUID."""


def find_foreign(
    usages: Mapping[str, Usage],
    ours: OwnUse,
    *,
    parents: Parents = parent_of,
    exists: Callable[[int], bool] = is_there,
    describe: Callable[[int], str] = describe_process,
) -> dict[str, str]:
    """Say of each GPU that others use, by UUID, what uses it."""

    def is_ours_or_gone(pid: int) -> bool:
        # In this order: a process that ends before its parents are read has none any
        # more, and may have been one of ours.
        return is_below(pid, ours.processes, parents) or not exists(pid)

    reasons = {}
    for uuid, usage in usages.items():
        why = find_users(usage, is_ours=is_ours_or_gone, describe=describe)
        if not why and uuid not in ours.held and not any(map(exists, usage.processes)):
            # As in a container, where NVML does not name the processes of others.
            why = find_load(usage)
        if why:
            reasons[uuid] = why
    return reasons
