"""
Detects that a training hangs, and reports the activity of its ranks.

:mod:`dljob_sidecar.observing.facts` calls it in each poll, with the limit from
:mod:`dljob_sidecar.observing.pauses`. This module only reports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Callable

from dljob_sidecar.diagnosing import stacks
from dljob_wire.messages import Process

BETWEEN_SECONDS = 1.0
"""The time between two samples of a process, which show whether it computes."""


class Hang:
    """The report about a training that hangs: once, until the training moves again."""

    def __init__(
        self,
        *,
        processes: Callable[[], Sequence[Process]],
        complain: Callable[[str, str], None],
        solve: Callable[[str], None],
    ) -> None:
        self._processes = processes
        self._complain = complain
        self._solve = solve
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._told = ""
        """The progress of the training at the report."""

    def update(self, idle_seconds: float, limit: float, *, what: str) -> None:
        """Report a hang once the limit is passed; ``what`` describes the progress."""
        if not 0 < limit <= idle_seconds:
            self.end()
        elif what != self._told:
            # The training may have moved and stopped again since the last poll.
            self.end()
            # Record it at once, because the observer may poll again before the report is made.
            self._told = what
            living = [one for one in self._processes() if one.pid and one.is_running]
            before = {one.pid: stacks.sample(one.pid) for one in living}
            # Only this loop collects the processes, so each id is still valid when the signal is
            # sent.
            asked = sum(stacks.request(one.pid) for one in living)
            message = f"nothing has moved for {idle_seconds:.0f} s ({what})"

            def report() -> None:
                said = (
                    (
                        one.rank,
                        stacks.describe(
                            before[one.pid], stacks.sample(one.pid), seconds=BETWEEN_SECONDS
                        ),
                    )
                    for one in living
                )
                where = f"; {asked} of {len(living)} ranks wrote their stacks into the log"
                self._complain("TrainingHangs", f"{message}: {stacks.group(said)}{where}")

            self._timer = self._loop.call_later(BETWEEN_SECONDS, report)

    def end(self) -> None:
        """End the report: the training moves, or no process runs."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._told:
            self._told = ""
            self._solve("TrainingHangs")
