"""
The proof that GPUs are released: no process of the job is left, and the GPUs confirm it.

Two scans in a row find no process, and no child was collected between them: a process that forks and ends at
every moment can hide from one scan, but the kernel reports each of its deaths. Where GPU memory can be
read, it must be back at what it was before the start as well (:mod:`dljob_sidecar.processes.releasing`).
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Callable, Protocol

from dljob_sidecar.behaviour.events import Event, Gone, Lingering
from dljob_sidecar.linux.family import ProcessTree
from dljob_sidecar.linux.spawning import Reaper
from dljob_sidecar.observing.gpus.gpu_thread import GpuThread, Reading
from dljob_sidecar.processes.releasing import Release
from dljob_sidecar.remedies import make_problem

FIRST_LOOK_SECONDS = 0.002
SLOWEST_LOOK_SECONDS = 0.25
DESPERATE_LOOKS = 50
"""The number of scans with a process left after which PID 1 kills all processes at once."""


class Hear(Protocol):
    """The callback with the answer of the GPUs to a release."""

    def __call__(self, *, is_confirmed: bool) -> None: ...


class MemoryProof:
    """Queries the GPUs until they confirm, or until the limit for shared machines has passed."""

    def __init__(
        self,
        gpu_thread: GpuThread,
        *,
        release_seconds: float,
        tell: Callable[[Event], None],
        on_released_in_use: Callable[[str], None],
    ) -> None:
        self._gpu_thread = gpu_thread
        self._release_seconds = release_seconds
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._attempt = 0
        self.release = Release({})
        """The GPUs of the present start, as they were before it."""
        self._empty_since: float | None = None
        self._lingering: frozenset[str] = frozenset()
        """The GPUs that were reported as the only obstacle to the release."""
        self._on_released_in_use = on_released_in_use

    def begin(self, attempt: int) -> None:
        """Expect a start, before its GPUs are measured."""
        self._attempt = attempt
        self.release, self._lingering = Release({}), frozenset()
        self._empty_since = None

    def end(self) -> None:
        """Ignore later answers, because the release was reported."""
        self._attempt = 0

    def ask(self, hear: Hear) -> None:
        """Call ``hear`` with True if the release may be reported; no process may be left."""
        attempt = self._attempt

        def read(reading: Reading) -> None:
            # The answer comes from a thread, when this attempt may be over.
            if attempt == self._attempt:
                hear(is_confirmed=self._confirms(reading))

        self._gpu_thread.ask(read)

    def _confirms(self, reading: Reading) -> bool:
        # A GPU that does not answer proves nothing.
        unreleased = self.release.find_unreleased(reading or ())
        if not unreleased:
            return True
        why = "; ".join(unreleased.values())
        # Start counting at the first refusal. A silent driver counts as a refusal.
        now = self._loop.time()
        self._empty_since = now if self._empty_since is None else self._empty_since
        if 0 < self._release_seconds <= now - self._empty_since:
            self._on_released_in_use(
                f"no process of the job was left for {self._release_seconds:g} s, so that its GPUs"
                f" are released although {why}"
            )
            return True
        # Report once that these GPUs, and no process, block the release.
        if self._lingering != unreleased.keys():
            self._lingering = frozenset(unreleased)
            message = f"no process of the job is left, but {why}"
            limit = self._release_seconds
            message += f"; releaseSeconds releases them after {limit:g} s" if limit else ""
            self._tell(Lingering(self._attempt, make_problem("GPUMemoryNotReleased", message)))
        return False


class ReleaseProof:
    """Scans until no process of a start is left, and reports *gone* once; kills on request."""

    def __init__(
        self,
        *,
        reaper: Reaper,
        process_tree: ProcessTree,
        memory: MemoryProof,
        tell: Callable[[Event], None],
        ranks_live: Callable[[], bool],
        is_settling: Callable[[], bool],
        is_output_pending: Callable[[], bool],
        on_gone: Callable[[], None] = lambda: None,
    ) -> None:
        """
        ``is_settling`` is True while a checkpoint is being confirmed, ``is_output_pending`` while
        output is unread or a checkpoint unwritten. ``on_gone`` is called right before *gone* is
        reported.
        """
        self._reaper, self._process_tree = reaper, process_tree
        self.memory = memory
        self._tell = tell
        self._ranks_live = ranks_live
        self._is_settling = is_settling
        self._is_output_pending = is_output_pending
        self._loop = asyncio.get_running_loop()
        self._attempt = 0
        self.is_due = False
        """True while processes of the present attempt may live."""
        self._is_killing = False
        self._looks = self._kills = 0
        self._empty_at: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._on_gone = on_gone

    def begin(self, attempt: int) -> None:
        """Expect processes of this attempt."""
        self._attempt = attempt
        self.is_due = True
        self._is_killing = False
        self.memory.begin(attempt)

    def kill(self) -> None:
        """Kill all processes of the job, repeatedly until none is left."""
        self._is_killing = True
        self._kills = 0
        self._looks = 0
        self._look()

    def hear_child(self) -> None:
        """Scan at once after a child was collected, if scanning is under way."""
        # Without a planned scan, an answer of the GPUs is pending and continues the series.
        if self._is_killing and self._timer is not None:
            self.look_soon()

    def look_soon(self) -> None:
        self._looks = 0
        self._look_after(0.0)

    def _look_later(self) -> None:
        self._looks += 1
        self._look_after(min(FIRST_LOOK_SECONDS * 2 ** min(self._looks, 10), SLOWEST_LOOK_SECONDS))

    def _look_after(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        """Scan for processes of the job, repeatedly until none is left."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.is_due:
            return
        if not self._is_killing and self._ranks_live():
            # The reaper will report their ends.
            return
        # Collect dead children first, because they would invalidate the next scan.
        self._reaper.reap()
        collected = self._reaper.collected
        # If a scan raises, for want of a descriptor, the series ends; the machine's next timer
        # calls kill(), which restarts it.
        is_left = self._kill_all() if self._is_killing else bool(self._process_tree.members())
        if is_left or self._ranks_live() or self._is_settling():
            self._empty_at = None
            self._look_later()
        elif self._empty_at != collected:
            # The first empty scan; a child that ends before the second scan resets the count.
            self._empty_at = collected
            self._look_after(0.0)
        elif self._is_output_pending():
            self._look_later()
        elif self.memory.release.bases:
            # No scan follows the answer, because a job without processes cannot start one.
            self.memory.ask(self._hear_memory)
        else:
            self._say_gone()

    def _kill_all(self) -> bool:
        if not self._process_tree.kill():
            return False
        self._kills += 1
        if self._kills >= DESPERATE_LOOKS and os.getpid() == 1:
            # Kill all other processes at once; the SideCar's helpers restart.
            os.kill(-1, signal.SIGKILL)
        return True

    def _hear_memory(self, *, is_confirmed: bool) -> None:
        if is_confirmed:
            self._say_gone()
        else:
            self._look_later()

    def _say_gone(self) -> None:
        self.is_due = False
        self._is_killing = False
        self._empty_at = None
        # A scan may still be planned if the GPUs were asked twice. That scan would find the next
        # attempt without a process, because the attempt waits for admission, and report it gone.
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # Ignore pending answers of the GPUs, so gone is reported once.
        self.memory.end()
        self._on_gone()
        self._tell(Gone(self._attempt))
