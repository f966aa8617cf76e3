"""
Writes the place in the queue and the expected start into the statuses of waiting jobs.

:mod:`dljob.core.foreseeing` simulates the scheduler, which takes seconds where thousands wait. So it runs in a thread,
and then rests for twenty times as long. A job that ends moves all jobs behind it, which must not cost a write for
each of them: a place or a start is written again only after a change by a tenth, and the head of the queue comes
first. The first place of a job and the end of its wait are written once, so one round writes many of these:
hundreds of jobs that are submitted together have a place within seconds.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from dljob.control.deciding.futures import foresee_in_time, turn_document
from dljob.control.loop import Controller
from dljob.control.situation.ports import Fenced, NotKept, NotKeptAlone
from dljob.control.situation.scene import Scene
from dljob.control.situation.status_documents import read_time
from dljob.core.contract import Policy
from dljob.core.foreseeing import Turn
from dljob.core.model import JobId
from dljob.core.primitives.once_per_change import OncePerChange
from dljob.kube.documents import Json
from dljob.operator.cluster import Cluster

log = logging.getLogger(__name__)

STARTS: Final = "starts"
LOOK_S: Final = 2.0
REST: Final = 20.0
"""Seconds of rest for each second of simulation."""
MOVED_AT_ONCE: Final = 10
"""The most places that one round corrects."""
FIRST_AT_ONCE: Final = 200
"""The most places that one round writes for the first time or removes."""
TENTH: Final = 0.1
SLACK_S: Final = 10.0
"""A start that moves by less is not written."""


class Due(NamedTuple):
    """A place in the queue that is due to be written."""

    ahead: int
    job: JobId
    queue: Json | None
    """None if the job no longer waits."""
    is_correction: bool
    """True if the status shows a former place."""


class Expectations:
    """One for the life of a leader; :meth:`run` is its own task."""

    def __init__(self, cluster: Cluster, controller: Controller, *, policy: Policy) -> None:
        self._cluster = cluster
        self._controller = controller
        self._policy = policy
        self._complaints: OncePerChange[str] = OncePerChange()
        self._played_s = 0.0
        """The duration of the last simulation."""

    async def run(self) -> None:
        while True:
            scene = self._controller.scene
            try:
                if scene is not None:
                    await self.publish(scene)
                    self._complaints.settle(STARTS)
            except Fenced:
                raise
            except Exception as error:
                # No training depends on it.
                if self._complaints.note(STARTS, error):
                    log.exception("expected starts cannot be written; it is tried again")
            await asyncio.sleep(max(LOOK_S, REST * self._played_s))

    async def publish(self, scene: Scene) -> None:
        """Write the places that have changed, the head of the queue first."""
        snapshot = self._controller.scheduler.snapshot(scene)
        turns: Mapping[JobId, Turn] = {}
        begun = time.monotonic()
        try:
            if any(not state.job.suspend for state in snapshot.pending):
                # A cancellation does not reach the thread, which has a time limit of its own.
                turns = await asyncio.to_thread(foresee_in_time, snapshot, self._policy)
        finally:
            self._played_s = time.monotonic() - begun
        # The simulation is some seconds old. Each write checks whether the job still waits.
        for due in pick_writes(self._iter_news(turns, snapshot.now)):
            try:
                await self._cluster.figures.show_queue(due.job, due.queue)
            except NotKeptAlone as error:
                log.info("an expected start cannot be written: %s", error)
            except NotKept as error:
                log.info("expected starts cannot be written yet: %s", error)
                # The API server is unavailable, and each further write would wait as long.
                return

    def _iter_news(self, turns: Mapping[JobId, Turn], now: float) -> Iterator[Due]:
        for job in self._cluster.entries:
            turn, shown = turns.get(job), self._cluster.figures.shown_queue(job)
            queue = None if turn is None else turn_document(turn, now, former=shown)
            if is_news(shown, queue, now=now):
                is_correction = shown is not None and queue is not None
                yield Due(0 if turn is None else turn.ahead, job, queue, is_correction)


def pick_writes(due: Iterable[Due]) -> list[Due]:
    """Pick the places that one round writes, the head of the queue first."""
    left = {True: MOVED_AT_ONCE, False: FIRST_AT_ONCE}
    picked = []
    for each in sorted(due, key=lambda each: each.ahead):
        if left[each.is_correction] > 0:
            left[each.is_correction] -= 1
            picked.append(each)
    return picked


def is_news(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None, *, now: float) -> bool:
    """True if a place in the queue differs enough from the one that is shown."""
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
