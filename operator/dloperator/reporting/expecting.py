"""
When the jobs that wait are expected to start, written into their status for people to see.

:mod:`dlcore.foreseeing` plays the scheduler on, which takes seconds where thousands wait. So it is done in a
thread, and after that nothing for twenty times as long. A write is worth it when the place in the queue or the
expected start has changed by a tenth, and of all that is due the head of the queue comes first: a job that ends
moves all jobs behind it, and must not cost a write for each of them. The first turn of a job and the end of its
wait come once, so that many of these are written in one round: hundreds of jobs that are submitted together have
a place in the queue within seconds.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from dlcontrol.deciding.futures import foresee_in_time, turn_document
from dlcontrol.loop import Controller
from dlcontrol.situation.ports import Fenced, NotKept, NotKeptAlone
from dlcontrol.situation.scene import Scene
from dlcontrol.situation.status_documents import read_time
from dlcore.contract import Policy
from dlcore.foreseeing import Turn
from dlcore.model import JobId, Snapshot
from dlcore.primitives.once_per_change import OncePerChange
from dlkube.documents import Json
from dloperator.cluster import Cluster

log = logging.getLogger(__name__)

STARTS: Final = "starts"
LOOK_S: Final = 2.0
REST: Final = 20.0
"""Seconds of rest for each second that the simulation took."""
MOVED_AT_ONCE: Final = 10
"""The most turns that one round corrects."""
FIRST_AT_ONCE: Final = 200
"""The most turns that one round writes for the first time or takes away."""
TENTH: Final = 0.1
SLACK_S: Final = 10.0
"""A start that moves by less is no news."""


class Due(NamedTuple):
    """A turn to write."""

    ahead: int
    job: JobId
    queue: Json | None
    """Nothing where the job waits no longer."""
    is_correction: bool
    """Whether the job shows an earlier one and waits on."""


class Expectations:
    """One for the life of a leader; :meth:`run` is its own task."""

    def __init__(self, cluster: Cluster, controller: Controller, *, policy: Policy) -> None:
        self._cluster = cluster
        self._controller = controller
        self._policy = policy
        self._complaints: OncePerChange[str] = OncePerChange()
        self._played_s = 0.0
        """The time of the last simulation."""

    async def run(self) -> None:
        """Write what is due, for ever."""
        while True:
            scene = self._controller.scene
            if scene is not None:
                await self._try_to_publish(scene)
            await asyncio.sleep(max(LOOK_S, REST * self._played_s))

    async def _try_to_publish(self, scene: Scene) -> None:
        """Publish, and only log a failure: trainings go on without an expected start."""
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
        self._played_s = 0.0
        if any(not state.job.suspend for state in snapshot.pending):
            turns = await self._foresee(snapshot)
        # The turns are of an instant some seconds ago. Each write looks at the job as it is
        # recorded now, and leaves out one that no longer waits.
        for due in pick_writes(self._iter_news(turns, snapshot.now)):
            try:
                await self._cluster.figures.show_queue(due.job, due.queue)
            except NotKeptAlone as error:
                log.info("an expected start cannot be written: %s", error)
            except NotKept as error:
                log.info("expected starts cannot be written yet: %s", error)
                # The API server keeps nothing at present; each further write would wait as long for
                # that answer.
                return

    async def _foresee(self, snapshot: Snapshot) -> Mapping[JobId, Turn]:
        """Play the scheduler on; one that fails is followed by as long a rest."""
        begun = time.monotonic()
        try:
            # No cancellation reaches the thread. It ends with the first decision after its own
            # limit of time.
            return await asyncio.to_thread(foresee_in_time, snapshot, self._policy)
        finally:
            self._played_s = time.monotonic() - begun

    def _iter_news(self, turns: Mapping[JobId, Turn], now: float) -> Iterator[Due]:
        """Yield every turn that differs enough from the one shown."""
        for job in self._cluster.entries:
            turn, shown = turns.get(job), self._cluster.figures.shown_queue(job)
            queue = None if turn is None else turn_document(turn, now)
            if is_news(shown, queue, now):
                is_correction = shown is not None and queue is not None
                yield Due(0 if turn is None else turn.ahead, job, queue, is_correction)


def pick_writes(due: Iterable[Due]) -> list[Due]:
    """Pick the turns that one round writes, the head of the queue first."""
    left = {True: MOVED_AT_ONCE, False: FIRST_AT_ONCE}
    picked = []
    for each in sorted(due, key=lambda each: each.ahead):
        if left[each.is_correction] > 0:
            left[each.is_correction] -= 1
            picked.append(each)
    return picked


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
