"""
The latest Events of one machine, in memory, for clients that list or watch them.

Earlier controllers' events are in the history of the store.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dljob.core.model import JobId

log = logging.getLogger(__name__)

MOST_EVENTS = 10_000


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An event. Its ``number`` is higher than those of all earlier events, so that a watcher can continue after it."""

    number: int
    at: float
    job: JobId
    reason: str
    message: str
    warning: bool


class Events:
    """The events, oldest first."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._events: deque[JobEvent] = deque(maxlen=MOST_EVENTS)
        self._number = 0
        self._news = asyncio.Event()

    def add(self, job: JobId, reason: str, message: str, *, warning: bool = False) -> None:
        """Log an event, and wake the clients that wait for one."""
        level = logging.WARNING if warning else logging.INFO
        log.log(level, "%s: %s: %s", job, reason, message)
        self._number += 1
        self._events.append(JobEvent(self._number, self._clock(), job, reason, message, warning))
        # A new asyncio event for later waiters: one that stays set would not suspend them.
        self._news.set()
        self._news = asyncio.Event()

    def since(self, number: int = 0, job: JobId | None = None) -> Iterator[JobEvent]:
        """Return the events after a number, of one job or of all. The caller must not await during the iteration."""
        return (
            event
            for event in self._events
            if event.number > number and (job is None or event.job == job)
        )

    async def wait(self) -> None:
        """Return after the next event."""
        await self._news.wait()
