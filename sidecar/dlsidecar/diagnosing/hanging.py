"""
Notices that a training hangs, and reports what its ranks do.

Called by :mod:`dlsidecar.observing.facts` at each look, with the limit that :mod:`dlsidecar.observing.pauses` has learnt. It
reports, and ends nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Callable

from dlsidecar.diagnosing import stacks
from dlwire.messages import Process

BETWEEN_SECONDS = 1.0
"""Between two looks at a process, which show whether it computes."""


class Hang:
    """The report about a training that hangs: once, until it moves again."""

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
        """How far the training was at the report."""

    def update(self, idle_seconds: float, limit: float, *, what: str) -> None:
        """Report a hang once the limit is passed; ``what`` describes how far the training is."""
        if not 0 < limit <= idle_seconds:
            self.end()
        elif what != self._told:
            # It may have moved and stopped again between two looks.
            self.end()
            # Noted at once, because the observer may look again before the report is made.
            self._told = what
            living = [one for one in self._processes() if one.pid and one.is_running]
            before = {one.pid: stacks.sample(one.pid) for one in living}
            # None of them is collected yet, since that happens on this loop, so that its number is
            # still its own when it gets the signal.
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
        """The training moves, or nothing runs any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._told:
            self._told = ""
            self._solve("TrainingHangs")
