"""
Which jobs have changed since when, so that a watch gets those and no others.

Versions count the changes of one epoch of the controller. A watcher that knows a former epoch
gets everything again.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable

from dlcore.model import JobId

MOST_REMOVED = 1000
"""The number of removed jobs that are remembered; a watcher that has missed more gets everything again."""


class Changes:
    """The versions of the jobs of one machine."""

    def __init__(self, jobs: Iterable[JobId] = ()) -> None:
        self.version = 1
        self._changed = dict.fromkeys(jobs, self.version)
        self._removed: OrderedDict[JobId, int] = OrderedDict()
        self._forgotten = 0
        """The latest version of a removal that is not remembered."""
        self._news = asyncio.Event()

    def note(self, jobs: Iterable[JobId]) -> None:
        """These have changed."""
        self.version += 1
        for job in jobs:
            self._changed[job] = self.version
            # A namesake of a removed job: a watcher must not drop it again.
            self._removed.pop(job, None)
        self._tell()

    def note_removed(self, job: JobId) -> None:
        """This one is gone."""
        self.version += 1
        self._changed.pop(job, None)
        self._removed[job] = self.version
        if len(self._removed) > MOST_REMOVED:
            _, self._forgotten = self._removed.popitem(last=False)
        self._tell()

    def version_of(self, job: JobId) -> int:
        """When the job changed last."""
        return self._changed.get(job, 0)

    def knows(self, version: int) -> bool:
        """Whether everything that happened since then is known."""
        return self._forgotten <= version <= self.version

    def since(self, version: int) -> tuple[list[JobId], list[JobId]]:
        """Which jobs have changed after this version, and which are gone."""
        changed = [job for job, at in self._changed.items() if at > version]
        return changed, [job for job, at in self._removed.items() if at > version]

    async def wait(self, version: int, seconds: float) -> None:
        """Return when there is something newer, or the time is over."""
        try:
            async with asyncio.timeout(seconds):
                # Nothing is awaited between the comparison and the registration
                # as a waiter, so that no change gets lost in between.
                while self.version <= version:
                    await self._news.wait()
        except TimeoutError:
            pass

    def _tell(self) -> None:
        # A new event for those who wait next. An event that stays set would let `wait`
        # return without a suspension, and its loop would block the whole server.
        self._news.set()
        self._news = asyncio.Event()
