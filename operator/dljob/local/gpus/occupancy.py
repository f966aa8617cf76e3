"""
Finds the GPUs that are used by other processes than those of our jobs.

:mod:`dljob_wire.occupancy` judges whether a GPU is in use, also for SideCars before each start.
"""

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from dljob.local.gpus.gpu_locks import describe_process
from dljob_wire.occupancy import Parents, Usage, find_load, find_users, is_below


def parent_of(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0
    return int(fields[1])


def is_there(pid: int) -> bool:
    """Return whether a process exists, even if ``/proc`` hides processes of other users."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        # It belongs to another user, or has an impossible number.
        return True
    return True


@dataclass(frozen=True, slots=True)
class OwnUse:
    """The processes and GPUs of this ``dljob up``."""

    processes: Collection[int]
    """Its SideCars, the ancestors of all processes of its jobs."""
    held: Collection[str]
    """The GPUs that its jobs have or have not released yet, by UUID."""


def find_foreign(
    usages: Mapping[str, Usage],
    ours: OwnUse,
    *,
    parents: Parents = parent_of,
    exists: Callable[[int], bool] = is_there,
    describe: Callable[[int], str] = describe_process,
) -> dict[str, str]:
    """Return what uses each GPU that others use, by UUID."""

    reasons = {}
    for uuid, usage in usages.items():
        why = find_users(
            usage,
            # In this order: a process that ends before its parents are read may have been ours.
            is_ours=lambda pid: is_below(pid, ours.processes, parents) or not exists(pid),
            describe=describe,
        )
        if not why and uuid not in ours.held and not any(map(exists, usage.processes)):
            # In a container NVML does not name other processes.
            why = find_load(usage)
        if why:
            reasons[uuid] = why
    return reasons
