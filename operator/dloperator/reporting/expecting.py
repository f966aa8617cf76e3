"""
When the jobs that wait are expected to start, written into their status for people to see.

:mod:`dlcontrol.deciding.queueing` plays the scheduler on, which takes seconds where thousands wait. So it is done in a
thread, and after that nothing for twenty times as long. A write is worth it when the place in the queue or the
expected start has changed by a tenth, and of all that is due the head of the queue comes first: a job that ends
moves all jobs behind it, and must not cost a write for each of them.
"""

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from dlcontrol.deciding.queueing import Turn, foresee_in_time, turn_document
from dlcontrol.loop import Controller
from dlcontrol.situation.ports import Fenced, NotKept, NotKeptAlone
from dlcontrol.situation.scene import Scene
from dlcontrol.situation.status_documents import Json, read_time
from dlcore.contract import Policy
from dlcore.model import JobId
from dlcore.primitives.once_per_change import OncePerChange
from dloperator.cluster import Cluster

log = logging.getLogger(__name__)

STARTS: Final = "starts"
LOOK_S: Final = 2.0
REST: Final = 20.0
"""After it was played for a second, it is not played for so many."""
AT_ONCE: Final = 10
"""So many writes each time at most."""
TENTH: Final = 0.1
SLACK_S: Final = 10.0
"""A start that moves by less is no news."""


class Expectations:
    """One for the life of a leader; :meth:`run` is its own task."""

    def __init__(self, cluster: Cluster, controller: Controller, policy: Policy) -> None:
        self._cluster = cluster
        self._controller = controller
        self._policy = policy
        self._complaints: OncePerChange[str] = OncePerChange()

    async def run(self) -> None:
        """Write what is due, for ever."""
        while True:
            begun = time.monotonic()
            scene = self._controller.scene
            if scene is not None:
                await self._try_to_publish(scene)
            took = time.monotonic() - begun
            await asyncio.sleep(max(LOOK_S, REST * took))

    async def _try_to_publish(self, scene: Scene) -> None:
        """What is expected is no reason to stop what is trained."""
        try:
            await self.publish(scene)
        except Fenced:
            raise
        except Exception as error:
            if self._complaints.note(STARTS, error):
                log.exception("expected starts cannot be written; it is tried again")
        else:
            self._complaints.settle(STARTS)

    async def publish(self, scene: Scene) -> None:
        """Write what is news in this scene, the head of the queue first."""
        snapshot = self._controller.snapshot(scene)
        turns: Mapping[JobId, Turn] = {}
        if any(not state.job.suspend for state in snapshot.pending):
            turns = await asyncio.to_thread(foresee_in_time, snapshot, self._policy)
        due = sorted(self._iter_news(turns, snapshot.now), key=lambda each: each[0])
        for _, job, queue in due[:AT_ONCE]:
            try:
                await self._cluster.show_queue(job, queue)
            except NotKeptAlone as error:
                log.info("an expected start cannot be written: %s", error)
            except NotKept as error:
                log.info("expected starts cannot be written yet: %s", error)
                return

    def _iter_news(
        self, turns: Mapping[JobId, Turn], now: float
    ) -> Iterator[tuple[int, JobId, Json | None]]:
        """Yield how many are ahead of a job, the job, and what there is to show; ``None`` for nothing."""
        for job in self._cluster.entries:
            turn, shown = turns.get(job), self._cluster.shown_queue(job)
            queue = None if turn is None else turn_document(turn, now)
            if is_news(shown, queue, now):
                yield (0 if turn is None else turn.ahead), job, queue


def is_news(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None, now: float) -> bool:
    """Whether what is shown of a job's place in the queue is worth another write."""
    if old is None or new is None:
        return old is not new
    if abs(old["ahead"] - new["ahead"]) > TENTH * new["ahead"]:
        return True
    if old.get("unknownBecause") != new.get("unknownBecause"):
        return True
    before, after = read_time(old.get("expectedStart")), read_time(new.get("expectedStart"))
    if before is None or after is None:
        return before is not after
    return abs(before - after) > max(SLACK_S, TENTH * (after - now))
