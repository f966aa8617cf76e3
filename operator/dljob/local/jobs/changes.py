"""The versions of jobs, so that a watch gets only the changed jobs.

Versions count the changes of one epoch: after a restart of the controller, watchers get all jobs
again.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable

from dljob.core.model import JobId

MOST_REMOVED = 1000
"""The number of remembered removals. A watcher that missed more gets all jobs again."""


class Changes:
    def __init__(self, jobs: Iterable[JobId] = ()) -> None:
        self.version = 1
        self._changed = dict.fromkeys(jobs, self.version)
        self._removed: OrderedDict[JobId, int] = OrderedDict()
        self._forgotten = 0
        """The version of the latest removal that was dropped from memory."""
        self._news = asyncio.Event()

    def note(self, jobs: Iterable[JobId]) -> None:
        self.version += 1
        for job in jobs:
            self._changed[job] = self.version
            # A new job with the name of a removed one, which a watcher must not drop.
            self._removed.pop(job, None)
        self._wake()

    def note_removed(self, job: JobId) -> None:
        self.version += 1
        self._changed.pop(job, None)
        self._removed[job] = self.version
        if len(self._removed) > MOST_REMOVED:
            _, self._forgotten = self._removed.popitem(last=False)
        self._wake()

    def version_of(self, job: JobId) -> int:
        return self._changed.get(job, 0)

    def knows(self, version: int) -> bool:
        """Return whether all changes since this version are known."""
        return self._forgotten <= version <= self.version

    def since(self, version: int) -> tuple[list[JobId], list[JobId]]:
        """Return the jobs that have changed after this version, and those that were removed."""
        changed = [job for job, at in self._changed.items() if at > version]
        return changed, [job for job, at in self._removed.items() if at > version]

    async def wait(self, version: int, seconds: float) -> None:
        """Wait for a change, or until the time is over."""
        try:
            async with asyncio.timeout(seconds):
                while self.version <= version:
                    await self._news.wait()
        except TimeoutError:
            pass

    def _wake(self) -> None:
        # A new event for later waiters: one that stays set would not suspend the loop in `wait`.
        self._news.set()
        self._news = asyncio.Event()
