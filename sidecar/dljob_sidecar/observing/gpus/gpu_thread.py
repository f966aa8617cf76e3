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
import threading
from collections import deque
from queue import SimpleQueue
from typing import Callable, Optional, TypeVar

from dljob_sidecar.observing.gpus import nvml as gpus
from dljob_sidecar.observing.gpus.emptiness import Bases
from dljob_wire.messages import Gpu

log = logging.getLogger(__name__)

T = TypeVar("T")
Reading = Optional[list[Gpu]]
"""None if there was no answer in time."""


# The states of the thread.
READ = "read"
END = "end"


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
