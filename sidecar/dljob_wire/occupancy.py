"""
Decides whether a GPU is in use, for SideCars, the controller and ``dljob up``.

A GPU is in use while a process computes on it, while more memory is taken than an idle driver
takes, or while it is busy. Inside a container, NVML does not show other processes, so only the last
two signs remain. A display draws and does not compute, so it does not use a GPU.

Pure, like all of dljob_wire: :mod:`dljob_sidecar.observing.gpus.nvml` and ``dljob.local.gpus.nvml`` ask NVML.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Callable

from dljob_wire.messages import Gpu

BUSY_UTILIZATION = 0.05
BUSY_BYTES = 512 << 20
"""Above either limit a program computes there; an idle driver holds a few hundred MiB."""
ABOVE_BASE_BYTES = 256 << 20
"""The limit above the base line, the least memory ever used; a CUDA context takes more."""

Parents = Callable[[int], int]
"""Returns the parent of a process; 0 if there is none or it is not visible."""


@dataclass(frozen=True)
class Usage:
    """The use of a GPU at one moment."""

    processes: tuple[int, ...] = ()
    """The computing processes."""
    memory_used: int = 0
    """In bytes, without the memory of drawing processes; 0 if unknown."""
    utilization: float = 0.0


def usage_of(gpu: Gpu) -> Usage:
    """Return the use of a GPU that a SideCar reported."""
    drawn = sum(process.memory_used for process in gpu.processes if process.draws)
    return Usage(
        tuple(process.pid for process in gpu.processes if not process.draws),
        max(0, gpu.memory_used - drawn),
        gpu.utilization,
    )


def find_users(
    usage: Usage, *, is_ours: Callable[[int], bool], describe: Callable[[int], str]
) -> str:
    """Return the processes on a GPU that are not the job's; empty if there are none."""
    foreign = [pid for pid in usage.processes if not is_ours(pid)]
    if not foreign:
        return ""
    more = f" (and {len(foreign) - 1} more)" if len(foreign) > 1 else ""
    return f"{describe(foreign[0])}{more} computes on it"


def find_load(usage: Usage, base_bytes: int | None = None) -> str:
    """
    Describe the use of a GPU on which the job has no process; empty if it is idle.

    ``base_bytes`` is the base line of the GPU, if known.
    """
    known = BUSY_BYTES if base_bytes is None else base_bytes + ABOVE_BASE_BYTES
    if usage.memory_used > min(known, BUSY_BYTES):
        return f"{usage.memory_used >> 20:,} MiB of it are in use by others"
    if usage.utilization > BUSY_UTILIZATION:
        return f"it is {usage.utilization:.0%} busy with work of others"
    return ""


def is_below(pid: int, roots: Collection[int], parents: Parents) -> bool:
    """Return True if a process is one of the roots or descends from one."""
    seen = set()
    while pid > 1 and pid not in seen:
        if pid in roots:
            return True
        seen.add(pid)
        pid = parents(pid)
    return False
