"""
Whether the GPUs of a start are empty, as NVML tells right before it.

The proof of a release says that the former job is gone. It says nothing of programs that DLJob does not
know: another user on a shared machine, a pod that came by a way of its own. They are seen by what is in
use of the GPU beyond its base line, which is the least that was ever seen in use of it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from dataclasses import replace

from dlsidecar.linux import kernel
from dlsidecar.linux.family import parse_process
from dlsidecar.observing.gpus.nvml import choose
from dlwire.messages import Gpu
from dlwire.occupancy import BUSY_BYTES, find_load, find_users, is_below, usage_of


class Bases:
    """The base lines of GPUs, as far as they are known."""

    def __init__(self) -> None:
        self._least: dict[str, int] = {}

    def see(self, gpus: Collection[Gpu]) -> None:
        """Learn from a reading."""
        for gpu in gpus:
            usage = usage_of(gpu)
            if gpu.memory_total and usage.memory_used <= BUSY_BYTES and not usage.processes:
                known = self._least.get(gpu.uuid, usage.memory_used)
                self._least[gpu.uuid] = min(known, usage.memory_used)

    def why_used(self, gpu: Gpu) -> str:
        """Say what uses a GPU on which nothing of the job is; empty if it is empty."""
        usage = usage_of(gpu)
        return find_users(usage, is_ours=_is_ours, describe=_describe) or find_load(
            usage, self._least.get(gpu.uuid)
        )

    def find_used(self, gpus: Collection[Gpu], ids: Collection[str]) -> dict[str, str]:
        """Return the user of each of these GPUs that is not empty, by the name from the command."""
        found = {}
        for gpu in choose(gpus, ids):
            why = self.why_used(gpu)
            if why:
                name = gpu.uuid if gpu.uuid in ids else str(gpu.index)
                found[name] = f"GPU {gpu.index} ({gpu.uuid}): {why}"
        return found

    def mark_strangers(self, gpus: Collection[Gpu], ids: Collection[str]) -> tuple[Gpu, ...]:
        """Return the GPUs with a mark on those that are in use although they are not assigned to us."""
        assigned = choose(gpus, ids)
        return tuple(
            replace(gpu, busy_unassigned=gpu not in assigned and bool(self.why_used(gpu)))
            for gpu in gpus
        )


def _is_ours(pid: int) -> bool:
    """Whether the machine shows that a process descends from this SideCar, as spare interpreters do."""
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
    """Name a process, with its program where the machine shows it; NVML counts as the machine does."""
    try:
        program = kernel.read_outer(f"{pid}/comm").decode(errors="replace").strip()
    except OSError:
        return f"process {pid}"
    shown = "".join(each if each.isprintable() else "?" for each in program)
    return f"process {pid} ({shown})"
