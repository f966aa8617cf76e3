"""
What happened lately, for whoever asks or watches: the Events of one machine.

Bounded and in memory. What happened before this process began is told from the history of the store.
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
class Happened:
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
        self._events: deque[Happened] = deque(maxlen=MOST_EVENTS)
        self._number = 0
        self._news = asyncio.Event()

    def add(self, job: JobId, reason: str, message: str, *, warning: bool = False) -> None:
        """Let everybody know who waits."""
        level = logging.WARNING if warning else logging.INFO
        log.log(level, "%s: %s: %s", job, reason, message)
        self._number += 1
        self._events.append(Happened(self._number, self._clock(), job, reason, message, warning))
        self._news.set()
        self._news = asyncio.Event()

    def since(self, number: int = 0, job: JobId | None = None) -> Iterator[Happened]:
        """Those after this number, of one job or of all."""
        return (
            event
            for event in self._events
            if event.number > number and (job is None or event.job == job)
        )

    async def wait(self) -> None:
        """Return when the next one has happened."""
        await self._news.wait()
