"""
The expected turns of waiting jobs, renewed at most every few seconds.

:mod:`dljob.control.deciding.queueing` plays the scheduler on, which takes long with many jobs. A thread does that once for all
requests, and a request that does not get the result soon uses the previous one.
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from dljob.control.deciding.futures import foresee_in_time, turn_document
from dljob.control.situation.status_documents import Json
from dljob.core.contract import Policy
from dljob.core.model import JobId, Snapshot
from dljob.local.server_parts import LatestScene

RENEW_S: Final = 3.0
"""The age at which the turns are renewed."""
PATIENCE_S: Final = 0.5
"""How long a list of jobs waits for the turns."""


class ExpectedTurns:
    def __init__(self, latest: LatestScene, policy: Policy) -> None:
        self._latest = latest
        self._policy = policy
        self._known: Mapping[JobId, Json] = {}
        self._seen: Snapshot | None = None
        self._at = 0.0
        self._task: asyncio.Task[None] | None = None

    async def renew(self, patience: float = PATIENCE_S) -> None:
        """Renew the turns if they are old, and wait for the result for ``patience`` seconds."""
        if self._task is None:
            # No await before the task exists, so that concurrent callers share one.
            seen = self._latest.see()
            if seen is None or seen[1] is self._seen or time.monotonic() - self._at < RENEW_S:
                return
            self._task = asyncio.create_task(self._learn(seen[1]))
        with suppress(TimeoutError):
            # The task goes on for other callers.
            await asyncio.wait_for(asyncio.shield(self._task), patience)

    async def _learn(self, snapshot: Snapshot) -> None:
        try:
            turns = await asyncio.to_thread(foresee_in_time, snapshot, self._policy)
            self._known = {
                job: turn_document(turn, snapshot.now, former=self._known.get(job))
                for job, turn in turns.items()
            }
            self._seen = snapshot
        finally:
            # At the end, because the task may take longer than RENEW_S; also after an error, so that a policy that fails
            # is not played for each request.
            self._at = time.monotonic()
            self._task = None

    def document(self, job: JobId) -> Json | None:
        """Show the turn of a job if it waits."""
        return self._known.get(job)
