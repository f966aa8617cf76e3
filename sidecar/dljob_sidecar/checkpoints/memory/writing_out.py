"""
When checkpoints in memory are written out: each complete one at once, and the rest before GPUs are released.

:mod:`dljob_sidecar.checkpoints.memory.cache` does it, in the thread of the ledger thread, which also looks at the disk before each start. A
checkpoint that a change waits for goes before others: the copy of an older one is given up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from dljob_sidecar.checkpoints.checkpoint_files import Mark
from dljob_sidecar.checkpoints.memory.cache import MemoryCache, Written
from dljob_sidecar.observing.file_threads import FileThread

NOT_WRITTEN_OUT = "CheckpointNotWrittenOut"
TOO_SMALL = "CheckpointMemoryTooSmall"

LOOK_SECONDS = 0.5
"""The interval of checks for unrequested checkpoints."""
RETRY_SECONDS = 0.005


class Writer:
    """Writes out the memory of one job on the ledger thread."""

    def __init__(
        self,
        memory: MemoryCache,
        ledger_thread: FileThread,
        *,
        patience_seconds: float,
        on_problem: Callable[[str, str], None] = lambda _name, _message: None,
        on_relief: Callable[[str], None] = lambda _name: None,
    ) -> None:
        """``patience_seconds`` is how long a release of GPUs waits for the rest of the memory."""
        self._memory = memory
        self._ledger_thread = ledger_thread
        self._patience_seconds = patience_seconds
        self._loop = asyncio.get_running_loop()
        self._members: Callable[[], Iterable[int]] = lambda: ()
        self._timer: asyncio.TimerHandle | None = None
        """The timer of the next check for an unrequested checkpoint."""
        self._tasks: deque[tuple[Callable[[], Written], Callable[[Written, float], None]]] = deque()
        """Tasks that wait for the ledger thread, each with its callback."""
        self._retry: asyncio.TimerHandle | None = None
        self._securing = 0
        """The serial of a request whose checkpoint is being written to disk; 0 for none."""
        self._serial = 0
        """Increases for each request that goes before all earlier tasks."""
        self._left_until: float | None = None
        """The time until which the release waits after all processes have ended."""
        self._has_begun_rest = False
        self._is_done = True
        self._on_problem, self._on_relief = on_problem, on_relief

    def begin(self, members: Callable[[], Iterable[int]]) -> None:
        """Write out the checkpoints of a start's processes from now on."""
        self._members, self._is_done, self._left_until = members, False, None
        self._has_begun_rest = False
        self._look_after(LOOK_SECONDS)

    def stop(self) -> None:
        """Stop the checks, and abort the copy that is under way."""
        # The running copy checks the serial right before its rename, and aborts.
        self._serial += 1
        self._is_done, self._securing = True, 0
        self._tasks.clear()
        self._stop_timer()

    def secure(self, unit: str, files: Mapping[str, Mark], hear: Callable[[str], None]) -> None:
        """Write out the answer to a request; call back with an empty string or the failure."""
        if not self._has_begun_rest:
            # The ledger thread aborts the copy of an older checkpoint when it sees the new serial.
            # After the processes have ended, the thread writes out this very checkpoint.
            self._serial += 1
        serial = self._securing = self._serial

        def see(written: Written, _: float) -> None:
            if self._securing == serial:
                self._securing = 0
            self._tell(written)
            self._look_after(LOOK_SECONDS)
            hear(written.fault)

        goes_on = partial(self._is_latest, serial)
        self._send(partial(self._memory.write_out, unit, files, goes_on), see)

    def write_the_rest(self) -> bool:
        """Write out what the ended processes left in memory; return True while that continues."""
        now = self._loop.time()
        if not self._is_done and self._left_until is None:
            self._left_until = now + self._patience_seconds
        if self._is_waited_for and self._left_until is not None and now > self._left_until:
            seconds = self._patience_seconds
            self._on_problem(NOT_WRITTEN_OUT, f"the disk took more than {seconds:g} s for it")
            self.stop()
        # A request that is being answered goes first.
        if not self._is_done and not self._has_begun_rest and not self._securing:
            self._has_begun_rest = True
            self._serial += 1
            goes_on = partial(self._is_latest, self._serial)
            self._send(partial(self._memory.write_out_all, goes_on), self._finish)
        return self._is_waited_for

    @property
    def _is_waited_for(self) -> bool:
        return not self._is_done or bool(self._securing)

    def _finish(self, written: Written, _: float) -> None:
        self._tell(written)
        # This never belongs to an earlier start: the next start writes to memory only after the
        # ledger thread's inspection, and the thread runs one task at a time.
        self._is_done = True

    def _is_latest(self, serial: int) -> bool:
        # The ledger thread checks this for each block; only the event loop changes the number.
        return serial == self._serial

    # --- sending the ledger thread ------------------------------------------------------------------

    def _look_after(self, seconds: float) -> None:
        self._stop_timer()
        if not self._is_done and self._left_until is None:
            self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        serial, pids = self._serial, tuple(self._members())

        def see(written: Written, took_seconds: float) -> None:
            # A newer request has gone first and has taken over the timer.
            if self._is_latest(serial):
                self._tell(written)
                self._look_after(max(LOOK_SECONDS, took_seconds))

        goes_on = partial(self._is_latest, serial)
        if not self._ledger_thread.send(partial(self._memory.write_out_newest, pids, goes_on), see):
            self._look_after(LOOK_SECONDS)

    def _send(self, task: Callable[[], Written], hear: Callable[[Written, float], None]) -> None:
        """Run a task on the ledger thread after the earlier tasks."""
        self._stop_timer()
        self._tasks.append((task, hear))
        if self._retry is None:
            self._send_next()

    def _send_next(self) -> None:
        self._retry = None
        if self._tasks and self._ledger_thread.send(*self._tasks[0]):
            # Remove the task only when it was sent, which keeps the order while the thread is busy.
            self._tasks.popleft()
        if self._tasks:
            self._retry = self._loop.call_later(RETRY_SECONDS, self._send_next)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell(self, written: Written) -> None:
        if written.fault:
            self._on_problem(NOT_WRITTEN_OUT, written.fault)
        elif written.unit:
            self._on_relief(NOT_WRITTEN_OUT)
        if written.shortage:
            self._on_problem(TOO_SMALL, written.shortage)
