"""
When the jobs of this machine that wait are expected to start, known to the server and renewed now and then.

:mod:`dlcore.foreseeing` plays the scheduler on, which with many jobs takes longer than an answer may. So it is
done in a thread, once for all who ask, and who lists jobs gets what was known last if it is not done soon.
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from dlcontrol.deciding.futures import foresee_in_time, turn_document
from dlcontrol.situation.status_documents import Json
from dlcore.contract import Policy
from dlcore.foreseeing import Turn
from dlcore.model import JobId, Snapshot
from dllocal.server_parts import LatestScene

RENEW_S: Final = 3.0
"""The age at which the known turns are renewed."""
PATIENCE_S: Final = 0.5
"""The longest that a list of jobs waits for the turns."""


class ExpectedTurns:
    """The turns of all jobs that wait."""

    def __init__(self, latest: LatestScene, policy: Policy) -> None:
        self._latest = latest
        self._policy = policy
        self._known: Mapping[JobId, Turn] = {}
        self._seen: Snapshot | None = None
        self._at = 0.0
        self._task: asyncio.Task[None] | None = None

    async def renew(self, patience: float = PATIENCE_S) -> None:
        """Learn what is expected now; after this number of seconds the caller goes on without."""
        if self._task is None:
            # No await from the look at `_task` to its creation,
            # so that callers at the same time share one.
            seen = self._latest.see()
            if seen is None or seen[1] is self._seen or time.monotonic() - self._at < RENEW_S:
                return
            self._task = asyncio.create_task(self._learn(seen[1]))
        with suppress(TimeoutError):
            # A caller that goes away leaves the task running for the others.
            await asyncio.wait_for(asyncio.shield(self._task), patience)

    async def _learn(self, snapshot: Snapshot) -> None:
        try:
            self._known = await asyncio.to_thread(foresee_in_time, snapshot, self._policy)
            self._seen = snapshot
        finally:
            # From the end of the game on, else one that takes longer
            # than RENEW_S would follow at once. Set also after an error,
            # so that a policy that fails is not played for each request.
            self._at = time.monotonic()
            self._task = None

    def document(self, job: JobId) -> Json | None:
        """Show the turn of a job, if it waits for one."""
        turn, seen = self._known.get(job), self._seen
        return None if turn is None or seen is None else turn_document(turn, seen.now)
