"""
The proof that the processes which left a live change are gone, while the others train on.

As at a release, two scans in a row find no process of theirs, and the memory of their GPUs is what it
was before them. The training goes on meanwhile: a process belongs to one that stays if it descends from
it or has inherited its environment, and every other process of the job counts as one of those that
left. A mapping that a process which stays keeps of their memory blocks the proof like any other use.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence

from dljob_sidecar.linux.family import ProcessTree
from dljob_sidecar.linux.kernel import send
from dljob_sidecar.linux.spawning import Reaper
from dljob_sidecar.observing.gpus.gpu_thread import GpuThread, Reading
from dljob_sidecar.processes.live_board import SLOT
from dljob_sidecar.processes.ranks import RankProcess
from dljob_sidecar.processes.releasing import Release


class Departure:
    """Ends what is left of some processes, and proves that they and their memory are gone."""

    def __init__(
        self,
        leaving: Sequence[RankProcess],
        *,
        staying: Sequence[RankProcess],
        release: Release,
        patience_seconds: float,
        grace_seconds: float,
        reaper: Reaper,
        process_tree: ProcessTree,
        gpu_thread: GpuThread,
    ) -> None:
        """
        ``release`` has the GPUs of those that leave, as they were before them.

        They get SIGTERM after ``patience_seconds``, and SIGKILL ``grace_seconds`` later.
        """
        self._leaving, self._staying = leaving, staying
        self._release = release
        self._patience_seconds, self._grace_seconds = patience_seconds, grace_seconds
        self._reaper, self._process_tree, self._gpu_thread = reaper, process_tree, gpu_thread
        self._loop = asyncio.get_running_loop()
        self._begun_at = self._loop.time()
        self._sent: dict[int, int] = {}
        """The latest signal to each process."""
        self._empty_at: int | None = None
        self._is_asking = False
        self._is_proven = not leaving
        self.looks = 0
        """The looks since something has ended."""
        self.awaited = ""

    def look(self) -> bool:
        """Take the next step, and return True once the proof is complete."""
        self.looks += 1
        living = [one for one in self._leaving if one.is_living]
        if self._is_proven or self._is_asking:
            return self._is_proven
        if living:
            names = ", ".join(str(one.rank) for one in living)
            self.awaited = f"rank {names} to exit"
            self._end([one.pid for one in living], first_seconds=self._patience_seconds)
            return False
        # Collect dead children first, because they would invalidate the next scan.
        self._reaper.reap()
        collected = self._reaper.collected
        staying = [one.pid for one in self._staying if one.is_living]
        entries = [f"{SLOT}={one.slot}".encode() for one in self._staying]
        left = self._process_tree.members_beside(staying, entries)
        if left:
            self._empty_at = None
            names = ", ".join(str(one.pid) for one in left[:4])
            self.awaited = f"process {names} to end, which belongs to none that stays"
            self._end([one.pid for one in left], first_seconds=0.0)
        elif self._empty_at != collected:
            self._empty_at = collected
            self.looks = 0
        elif self._release.bases:
            self._is_asking = True
            self._gpu_thread.ask(self._hear_gpus)
        else:
            self._is_proven = True
        return self._is_proven

    def hear_end(self) -> None:
        """Expect the next look to find more."""
        self.looks = 0

    def _end(self, pids: list[int], *, first_seconds: float) -> None:
        """Send SIGTERM after a while, and SIGKILL after another grace period."""
        waited = self._loop.time() - self._begun_at
        signum = signal.SIGTERM if waited >= first_seconds else 0
        if waited >= first_seconds + self._grace_seconds:
            signum = signal.SIGKILL
        for pid in pids:
            if signum and self._sent.get(pid) != signum:
                self._sent[pid] = signum
                send(pid, signum)

    def _hear_gpus(self, reading: Reading) -> None:
        self._is_asking = False
        # A GPU that does not answer proves nothing.
        unreleased = self._release.find_unreleased(reading or ())
        self._is_proven = not unreleased
        # Nothing may have begun on the GPUs while the driver was asked.
        self._empty_at = None
        self.awaited = "; ".join(unreleased.values())
