"""
The latest Events of one machine, for clients that list or watch them.

Bounded and in memory. The history of the store has the events from before this process began.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dlcore.model import JobId

log = logging.getLogger(__name__)

MOST_EVENTS = 10_000


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One event. ``number`` rises, so that a watcher knows where it was."""

    number: int
    at: float
    job: JobId
    reason: str
    message: str
    warning: bool


class Events:
    """All of them, oldest first."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._events: deque[JobEvent] = deque(maxlen=MOST_EVENTS)
        self._number = 0
        self._news = asyncio.Event()

    def add(self, job: JobId, reason: str, message: str, *, warning: bool = False) -> None:
        """Wake all clients that wait."""
        level = logging.WARNING if warning else logging.INFO
        log.log(level, "%s: %s: %s", job, reason, message)
        self._number += 1
        self._events.append(JobEvent(self._number, self._clock(), job, reason, message, warning))
        # A new event for those who wait next: each event lets the waiters of one change go, once.
        self._news.set()
        self._news = asyncio.Event()

    def since(self, number: int = 0, job: JobId | None = None) -> Iterator[JobEvent]:
        """Those after this number, of one job or of all."""
        # Lazy. The reader must not await between two events, because
        # a deque that has changed ends the iteration with an error.
        return (
            event
            for event in self._events
            if event.number > number and (job is None or event.job == job)
        )

    async def wait(self) -> None:
        """Return when the next one has happened."""
        await self._news.wait()
