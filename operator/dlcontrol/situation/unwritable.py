"""
Jobs whose status the platform refuses to keep, while it keeps those of others.

What is not recorded may not be acted upon. So nothing is judged, decided, told or done about such a
job, and what is recorded of it holds: nobody else gets its GPUs, and what trains goes on. After a
while, longer each time, its status is offered once more, whatever it is by then; a look in which it
is refused again comes to nothing, and is followed by one without the job.
"""

import logging
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Final

from dlcore.model import JobId

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 15.0
LONGEST_PAUSE_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class _Refusal:
    why: str
    pause: float
    until: float


class Unkept:
    """One for the life of a controller."""

    def __init__(self) -> None:
        self._refusals: dict[JobId, _Refusal] = {}
        self.jobs: frozenset[JobId] = frozenset()
        """Those of which nothing may be written at this look."""
        self.offered: frozenset[JobId] = frozenset()
        """Those whose status has to be written at this look, to see whether it is kept again."""

    def look(self, there: Container[JobId], now: float) -> None:
        """See whose turn it is to be offered once more; those that are gone are forgotten."""
        self._refusals = {job: each for job, each in self._refusals.items() if job in there}
        self.offered = frozenset(
            job for job, refusal in self._refusals.items() if now >= refusal.until
        )
        self.jobs = frozenset(self._refusals.keys() - self.offered)

    def refuse(self, refused: Mapping[JobId, str], now: float) -> dict[JobId, str]:
        """Leave these alone from now on; returns those of which it is news."""
        news: dict[JobId, str] = {}
        for job, why in refused.items():
            before = self._refusals.get(job)
            pause = min(2.0 * before.pause, LONGEST_PAUSE_S) if before else FIRST_PAUSE_S
            self._refusals[job] = _Refusal(why, pause, now + pause)
            if before is None or before.why != why:
                log.error("job %s is left alone: %s", job, why)
                news[job] = why
        return news

    def accept(self) -> frozenset[JobId]:
        """All that was offered at this look is kept; returns whose it was."""
        for job in self.offered:
            log.warning("the status of job %s is kept again", job)
            del self._refusals[job]
        accepted, self.offered = self.offered, frozenset()
        return accepted
