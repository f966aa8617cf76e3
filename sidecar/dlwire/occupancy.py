"""
Whether a GPU is in use: one judgement for SideCars, for the controller and for ``dljob up``.

A GPU is in use while a process computes on it, while more of its memory is taken than an idle driver
takes, or while it is busy. NVML names no process of others inside a container, and there the second and
the third are the only signs. A display draws and does not compute, so that it keeps no GPU.

Pure, like all of dlwire: NVML is asked elsewhere (:mod:`dlsidecar.observing.gpus.nvml`, ``dllocal.gpus.nvml``).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Callable

from dlwire.messages import Gpu

BUSY_UTILIZATION = 0.05
BUSY_BYTES = 512 << 20
"""Above either of the two a program computes there; an idle driver holds a few hundred MiB."""
ABOVE_BASE_BYTES = 256 << 20
"""The same above the base line of a GPU, where that is known: the least that was ever seen in use of it.
The context of a CUDA program alone takes more on the GPUs of data centers."""

Parents = Callable[[int], int]
"""Returns the parent of a process; 0 of one that has none, or that cannot be seen."""


@dataclass(frozen=True)
class Usage:
    """The use of a GPU at one moment."""

    processes: tuple[int, ...] = ()
    """Those that compute on it."""
    memory_used: int = 0
    """In bytes, without what processes hold that only draw; 0 where the GPU does not tell."""
    utilization: float = 0.0


def usage_of(gpu: Gpu) -> Usage:
    """Return what a SideCar tells of a GPU, as its use."""
    drawn = sum(process.memory_used for process in gpu.processes if process.draws)
    return Usage(
        tuple(process.pid for process in gpu.processes if not process.draws),
        max(0, gpu.memory_used - drawn),
        gpu.utilization,
    )


def find_users(
    usage: Usage, *, is_ours: Callable[[int], bool], describe: Callable[[int], str]
) -> str:
    """Name the processes that compute on a GPU and are not ours; empty if there is none."""
    foreign = [pid for pid in usage.processes if not is_ours(pid)]
    if not foreign:
        return ""
    more = f" (and {len(foreign) - 1} more)" if len(foreign) > 1 else ""
    return f"{describe(foreign[0])}{more} computes on it"


def find_load(usage: Usage, base_bytes: int | None = None) -> str:
    """
    Say what is in use of a GPU on which nothing of ours is; empty if it is idle.

    ``base_bytes`` is the base line of the GPU, where that is known.
    """
    known = BUSY_BYTES if base_bytes is None else base_bytes + ABOVE_BASE_BYTES
    if usage.memory_used > min(known, BUSY_BYTES):
        return f"{usage.memory_used >> 20:,} MiB of it are in use by others"
    if usage.utilization > BUSY_UTILIZATION:
        return f"it is {usage.utilization:.0%} busy with work of others"
    return ""


def is_below(pid: int, roots: Collection[int], parents: Parents) -> bool:
    """Whether a process is one of these or descends from one."""
    seen = set()
    while pid > 1 and pid not in seen:
        if pid in roots:
            return True
        seen.add(pid)
        pid = parents(pid)
    return False
