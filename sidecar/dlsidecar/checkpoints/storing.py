"""
The checkpoints of a job over its starts: looked at before each, and remembered after each.

:mod:`dlsidecar.checkpoints.vetting` and :mod:`dlsidecar.checkpoints.ledger` read and write the files, from a scout's thread.
A file system that does not answer holds up a start for a few seconds and no longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Callable

from dlsidecar.checkpoints.checkpoint_files import Mark
from dlsidecar.checkpoints.confirming import SILENT, Watch
from dlsidecar.checkpoints.ledger import Ledger
from dlsidecar.checkpoints.vetting import (
    NOT_TRUSTED,
    UNREADABLE,
    Verdict,
    note_confirmed,
    note_fruitless,
    vet,
)
from dlsidecar.observing.file_threads import Scout
from dlsidecar.settings import Confirmation, Saving
from dlwire.messages import Run

RETRY_SECONDS = 0.01


class CheckpointStore:
    """Knows what is known of the checkpoints under a job's path."""

    def __init__(self, saving: Saving) -> None:
        self._saving = saving
        self._loop = asyncio.get_running_loop()
        self._scout = Scout("checkpoint") if saving.confirm is Confirmation.FILE else None
        # What is noted after a stop is read before the next start, in this order.
        self._clerk = Scout("ledger") if saving.path else None
        self._verdict = Verdict()
        self._leads = False
        self._world = 1
        self._vets = 0
        self._timer: asyncio.TimerHandle | None = None
        self.on_problem: Callable[[str, str], None] = lambda _name, _message: None
        self.on_relief: Callable[[str], None] = lambda _name: None

    @property
    def resume(self) -> str:
        """The latest complete checkpoint, as far as it was known at the last start."""
        return self._verdict.resume

    # --- before a start ---------------------------------------------------------------------

    def vet(self, run: Run, hear: Callable[[], None]) -> None:
        """Look at what is there, and call back when the training may start."""
        self._leads, self._world = run.rank_offset == 0, run.world_size
        self._vets += 1
        if self._clerk is None:
            hear()
        else:
            self._send(self._clerk, hear, self._loop.time() + self._clerk.patience_seconds)

    def _send(self, clerk: Scout, hear: Callable[[], None], limit: float) -> None:
        """Send it; one that is out for an earlier start is waited for."""
        number = self._vets

        def see(verdict: Verdict, _: float) -> None:
            if number == self._vets:
                self._take(verdict)
                self._go_on(hear)

        # What comes back too late must not touch what the training writes by then.
        look = partial(vet, self._saving, leads=self._leads, wanted=lambda: number == self._vets)
        if clerk.send(look, see):
            self._wait(max(limit - self._loop.time(), 0.0), partial(self._give_up, hear))
        elif self._loop.time() < limit:
            self._wait(RETRY_SECONDS, partial(self._send, clerk, hear, limit))
        else:
            self._give_up(hear)

    def _give_up(self, hear: Callable[[], None]) -> None:
        self._verdict = Verdict(self._verdict.ledger)
        self.on_problem(SILENT, f"{self._saving.path} does not answer, and was not looked at")
        self._go_on(hear)

    def _go_on(self, hear: Callable[[], None]) -> None:
        self._vets += 1
        self._stop_waiting()
        hear()

    def _wait(self, seconds: float, then: Callable[[], None]) -> None:
        self._stop_waiting()
        self._timer = self._loop.call_later(seconds, then)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _take(self, verdict: Verdict) -> None:
        self._verdict = verdict
        self.on_relief(SILENT)
        for name, message in ((UNREADABLE, verdict.unreadable), (NOT_TRUSTED, verdict.distrust)):
            if message:
                self.on_problem(name, message)
            else:
                self.on_relief(name)

    # --- while it runs ----------------------------------------------------------------------

    def make_watch(self, members: Callable[[], Iterable[int]]) -> Watch:
        return Watch(
            members=members,
            scout=self._scout,
            world=self._world,
            known=self._verdict.ledger.shape,
            distrust=self._verdict.distrust,
            on_problem=self.on_problem,
            on_relief=self.on_relief,
            on_confirmed=self._note_confirmed,
        )

    def _note_confirmed(self, unit: str, files: Mapping[str, Mark]) -> None:
        ledger = self._verdict.ledger
        self._note(partial(note_confirmed, self._saving, ledger, unit, files, self._world))

    def note_failure(self) -> None:
        """The training failed by itself, and before its first step."""
        self._note(partial(note_fruitless, self._saving, self._verdict.ledger))

    def _note(self, write: Callable[[], Ledger]) -> None:
        if self._leads and self._clerk is not None:
            self._clerk.post(write)

    def close(self) -> None:
        self._stop_waiting()
        for scout in (self._scout, self._clerk):
            if scout is not None:
                scout.close()
