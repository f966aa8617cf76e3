"""
Asking the GPUs from a thread of its own, because a driver that hangs would take us with it.

A call into NVML goes down into the driver of the machine, and when a GPU falls off its bus it may
not come back for minutes, or ever. This module waits for a limited time; the SideCar answers the
controller meanwhile. Where NVML is missing, the thread ends as soon as it has found that out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Collection
from dataclasses import replace
from queue import SimpleQueue
from typing import Callable, Optional, TypeVar

from dljob_sidecar.linux import kernel
from dljob_sidecar.linux.family import parse_process
from dljob_sidecar.observing.gpus import nvml as gpus
from dljob_sidecar.observing.gpus.nvml import choose
from dljob_wire.messages import Gpu
from dljob_wire.occupancy import BUSY_BYTES, find_load, find_users, is_below, usage_of

log = logging.getLogger(__name__)

T = TypeVar("T")
Reading = Optional[list[Gpu]]
"""None if there was no answer in time."""


# The states of the thread.
READ = "read"
END = "end"


class Bases:
    """
    The base lines of GPUs, the least memory ever in use, which show GPUs in use right before a start.

    The proof of a release shows that the previous job is gone, but not that no other program uses the
    GPU: another user's on a shared machine, or a pod's outside DLJob. Such a program shows as memory
    above the base line.
    """

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


class GpuQuery:
    """One query, until it is answered or given up."""

    def __init__(self, hear: Callable[[Reading], None]) -> None:
        self._hear: Callable[[Reading], None] | None = hear
        self.timer: asyncio.TimerHandle | None = None

    def answer(self, reading: Reading) -> None:
        """Set the result, unless there is one already."""
        if self.timer is not None:
            self.timer.cancel()
        # Clear the callback first, so an answer after the timeout is dropped.
        hear, self._hear = self._hear, None
        if hear is not None:
            hear(reading)


class GpuThread:
    """Reads the GPUs without blocking the event loop."""

    patience_seconds = 5.0

    def __init__(
        self, open_gpu_reader: Callable[[], gpus.GpuReader] = gpus.open_gpu_reader
    ) -> None:
        """The thread calls ``open_gpu_reader``, because that may hang as well."""
        self._open_gpu_reader = open_gpu_reader
        self._loop = asyncio.get_running_loop()
        self._orders: SimpleQueue[str] = SimpleQueue()
        self._asked: deque[GpuQuery] = deque()
        """In the order in which the thread will answer."""
        self._is_stuck = False
        self._is_closed = False
        self.bases = Bases()
        """The memory in use of each GPU while no process computes there, learnt from every reading.
        """
        self.missing = ""
        """The reason why there are no readings; known by the first answer."""
        self._thread = threading.Thread(target=self._work, name="gpu_thread", daemon=True)
        self._thread.start()

    # --- on the loop ------------------------------------------------------------------------

    def ask(self, hear: Callable[[Reading], None]) -> None:
        """Call back with a new reading, never from within this call."""
        if self.missing or self._is_closed:
            self._loop.call_soon(hear, [])
            return
        # Queue nothing, because a driver that recovers would have to answer every query.
        if self._is_stuck:
            self._loop.call_soon(hear, None)
            return
        query = GpuQuery(hear)
        query.timer = self._loop.call_later(self.patience_seconds, self._give_up, query)
        self._asked.append(query)
        self._orders.put(READ)

    def _give_up(self, query: GpuQuery) -> None:
        # Queries fail at once from now on, until the answer arrives.
        self._is_stuck = True
        # Keep the query queued: the thread still answers it, and each answer removes the first.
        query.answer(None)

    def _take(self, reading: Reading) -> None:
        self._is_stuck = False
        # Update the base lines first, because the callbacks compare the reading with them.
        self.bases.see(reading or ())
        self._asked.popleft().answer(reading)

    def _miss(self, reason: str) -> None:
        log.info("no figures of GPUs: %s", reason)
        self.missing = reason
        self._is_stuck = False
        while self._asked:
            self._asked.popleft().answer([])

    def close(self) -> None:
        """Stop; a thread that hangs ends with the process."""
        self._is_closed = True
        while self._asked:
            self._asked.popleft().answer([])
        self._orders.put(END)

    # --- on the thread ----------------------------------------------------------------------

    def _work(self) -> None:
        try:
            reader = self._open_gpu_reader()
            if not reader.missing:
                while self._orders.get() == READ:
                    self._tell(self._take, read(reader))
                reader.close()
            reason = reader.missing
        except Exception as error:  # a driver may raise anything, and queries wait
            log.exception("the GPUs cannot be read")
            reason = f"NVML failed: {error}"
        if reason:
            self._tell(self._miss, reason)

    def _tell(self, take: Callable[[T], None], what: T) -> None:
        # A loop that was closed meanwhile accepts no result.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(take, what)


def read(reader: gpus.GpuReader) -> Reading:
    """Return a reading, or None without an answer; the next one may succeed."""
    try:
        return reader.read()
    except Exception:
        # A driver may raise anything, and a failed reading proves nothing.
        log.exception("the GPUs could not be read")
        return None
