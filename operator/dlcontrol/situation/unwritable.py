"""
Jobs whose status the platform refuses to store, while it stores the statuses of other jobs.

The controller acts only on what is recorded. So it judges and decides nothing about such a job and
sends it no command: the recorded status still holds, no other job gets its GPUs, and its training
continues. After a back-off the loop offers the newest status again. A cycle whose write is refused
has no other effect, and the next cycle leaves the job out.
"""

import logging
from collections.abc import Container, Mapping
from typing import Final

from dlcore.model import JobId
from dlcore.primitives.backoff import Backoff

log = logging.getLogger(__name__)

FIRST_WAIT_S: Final = 15.0
LONGEST_WAIT_S: Final = 300.0


class Unwritable:
    """The jobs whose status cannot be written; one for the life of a controller."""

    def __init__(self) -> None:
        self._refused: Backoff[JobId] = Backoff(
            first_seconds=FIRST_WAIT_S, longest_seconds=LONGEST_WAIT_S
        )
        self.jobs: frozenset[JobId] = frozenset()
        """Jobs whose status must not be written in this cycle."""
        self.offered: frozenset[JobId] = frozenset()
        """Jobs whose status must be written in this cycle, to see whether it is accepted again."""

    def update(self, present: Container[JobId], now: float) -> None:
        """Forget jobs that are gone, and choose the jobs whose back-off is over."""
        self._refused.keep(present)
        self.offered = frozenset(job for job in self._refused if self._refused.may_try(job, now))
        self.jobs = frozenset(self._refused) - self.offered

    def refuse(self, refused: Mapping[JobId, str], now: float) -> dict[JobId, str]:
        """Leave these jobs out from now on; return those whose reason is new."""
        news: dict[JobId, str] = {}
        for job, why in refused.items():
            if self._refused.refuse(job, why, now):
                log.error("the status of job %s cannot be written: %s", job, why)
                news[job] = why
        return news

    def accept(self) -> frozenset[JobId]:
        """Note that every status offered in this cycle was stored; return their jobs."""
        for job in self.offered:
            log.warning("the status of job %s can be written again", job)
            self._refused.settle(job)
        accepted, self.offered = self.offered, frozenset()
        return accepted
