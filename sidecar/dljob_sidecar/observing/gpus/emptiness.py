"""
Finds GPUs that are in use right before a start, from the readings of NVML.

The proof of a release shows that the previous job is gone, but not that no other program uses the
GPU: another user's on a shared machine, or a pod's outside DLJob. Such a program shows as memory in
use above the base line, the least memory ever in use.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from dataclasses import replace

from dljob_sidecar.linux import kernel
from dljob_sidecar.linux.family import parse_process
from dljob_sidecar.observing.gpus.nvml import choose
from dljob_wire.messages import Gpu
from dljob_wire.occupancy import BUSY_BYTES, find_load, find_users, is_below, usage_of


class Bases:
    """The known base lines of GPUs."""

    def __init__(self) -> None:
        self._least: dict[str, int] = {}

    def see(self, gpus: Collection[Gpu]) -> None:
        """Update the base lines from a reading."""
        for gpu in gpus:
            usage = usage_of(gpu)
            if gpu.memory_total and usage.memory_used <= BUSY_BYTES and not usage.processes:
                known = self._least.get(gpu.uuid, usage.memory_used)
                self._least[gpu.uuid] = min(known, usage.memory_used)

    def why_used(self, gpu: Gpu) -> str:
        """Describe the use of a GPU on which the job has no process; empty if there is none."""
        usage = usage_of(gpu)
        return find_users(usage, is_ours=_is_ours, describe=_describe) or find_load(
            usage, self._least.get(gpu.uuid)
        )

    def find_used(self, gpus: Collection[Gpu], ids: Collection[str]) -> dict[str, str]:
        """Return the users of the GPUs that are not empty, by the name in the command."""
        found = {}
        for gpu in choose(gpus, ids):
            why = self.why_used(gpu)
            if why:
                name = gpu.uuid if gpu.uuid in ids else str(gpu.index)
                found[name] = f"GPU {gpu.index} ({gpu.uuid}): {why}"
        return found

    def mark_strangers(self, gpus: Collection[Gpu], ids: Collection[str]) -> tuple[Gpu, ...]:
        """Return the GPUs, with a mark on unassigned ones that are in use."""
        assigned = choose(gpus, ids)
        return tuple(
            replace(gpu, busy_unassigned=gpu not in assigned and bool(self.why_used(gpu)))
            for gpu in gpus
        )


def _is_ours(pid: int) -> bool:
    """Return True if a process provably descends from this SideCar, as spares do."""
    root = kernel.outer_proc
    if root is None:
        return False
    try:
        own = int(os.readlink("self", dir_fd=root))
    except (OSError, ValueError):
        return False
    return is_below(pid, {own}, _parent_of)


def _parent_of(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return parse_process(pid, kernel.read_outer(f"{pid}/stat")).parent
    return 0


def _describe(pid: int) -> str:
    """Return the machine's id of a process, with its program if visible."""
    try:
        program = kernel.read_outer(f"{pid}/comm").decode(errors="replace").strip()
    except OSError:
        return f"process {pid}"
    shown = "".join(each if each.isprintable() else "?" for each in program)
    return f"process {pid} ({shown})"
