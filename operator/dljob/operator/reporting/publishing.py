"""
Writes the progress of jobs into their statuses from time to time.

The loop writes decisions at once. Progress is written after each hundredth of a job, after a minute if the speed has
changed, or else after five minutes, at a limited rate for all jobs together; the job that has waited longest comes first.

Annotations of the pods that train show how many seconds of work a stop would lose now, for programs that choose pods to
stop. The operator writes a value when it differs by more than a fifth from the one that is shown, at a limited rate,
because each write is one request for each pod.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from dljob.control.judging.checkpoints import risked_from
from dljob.control.reporting.reasons import Outlook
from dljob.control.situation.ports import Entry, Fenced, NotKept, NotKeptAlone
from dljob.control.situation.scene import Scene
from dljob.control.situation.status import Status
from dljob.core.model import JobId, Phase, Snapshot
from dljob.core.primitives.once_per_change import OncePerChange
from dljob.kube import names
from dljob.kube.client import ApiServer, NotFound, Rejected, Unreachable
from dljob.kube.documents import PodDocument
from dljob.kube.names import Name
from dljob.kube.resources import PODS
from dljob.kube.watches.mirror import Mirrors
from dljob.operator.jobs.entries import name_of
from dljob.operator.jobs.status_writing import FigureWriter
from dljob.operator.podspecs.building import trainer_name

log = logging.getLogger(__name__)

PROGRESS = "progress"
SOON_S = 60.0
"""After this time the operator writes a speed that has changed by more than ``CHANGE``."""
CHANGE = 0.1

LOSS_LOOK_S = 5.0
MOST_LOSSES = 50
"""The most pods that one pass writes."""
LOSS_CHANGE = 0.2
LEAST_LOSS_S = 10
"""Smaller changes of a loss are not written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publishing:
    """How often the operator writes progress."""

    share: float = 0.01
    """The operator writes the progress of a job after each further part of the training of this
    size."""
    seconds: float = 300.0
    """The operator writes the progress of a job that has advanced at least this often, and after a minute if its speed
    has changed by a tenth."""
    per_second: float = 10.0
    """The highest rate of such writes for all jobs together."""
    look_seconds: float = 1.0
    """How often the operator checks which progress to write."""


class _Shown(NamedTuple):
    at: float
    iteration: int
    speed: float


class Publisher:
    """One for the life of a leader; :meth:`run` is its own task."""

    def __init__(
        self,
        figures: FigureWriter,
        scene: Callable[[], Scene | None],
        *,
        snapshot: Callable[[Scene], Snapshot],
        settings: Publishing,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._figures = figures
        self._scene = scene
        self._snapshot = snapshot
        self._settings = settings
        self._clock = clock
        self._shown: dict[JobId, _Shown] = {}
        self._complaints: OncePerChange[str] = OncePerChange()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._settings.look_seconds)
            scene = self._scene()
            try:
                if scene is not None:
                    await self.publish(scene)
                    self._complaints.settle(PROGRESS)
            except Fenced:
                raise
            except Exception as error:
                # No training depends on it.
                if self._complaints.note(PROGRESS, error):
                    log.exception("progress cannot be written; it is tried again")

    async def publish(self, scene: Scene) -> None:
        """Write the progress that is due, up to the limit."""
        due = self._find_due(scene)
        if not due:
            return
        outlook = Outlook(scene, self._snapshot(scene))
        most = max(1, round(self._settings.per_second * self._settings.look_seconds))
        for job in sorted(due, key=lambda job: self._shown[job].at)[:most]:
            status = scene.entries[job].status
            try:
                await self._figures.publish(job, status, remaining=outlook.remaining(job))
            except NotKeptAlone as error:
                log.info("progress cannot be written: %s", error)
            except NotKept as error:
                log.info("progress cannot be written yet: %s", error)
                return
            # A refused job counts as well, so that it does not come first each time.
            self._shown[job] = _Shown(self._clock(), status.iteration, status.speed)

    def _find_due(self, scene: Scene) -> list[JobId]:
        now = self._clock()
        running = {
            job: entry.status
            for job, entry in scene.entries.items()
            if entry.status.phase in (Phase.RUNNING, Phase.ADJUSTING)
        }
        self._shown = {
            job: self._shown.get(job) or _Shown(now, status.iteration, status.speed)
            for job, status in running.items()
        }
        return [job for job, status in running.items() if self._is_due(job, status, now=now)]

    def _is_due(self, job: JobId, status: Status, *, now: float) -> bool:
        shown = self._shown[job]
        farther = abs(status.iteration - shown.iteration)
        if not farther:
            return False
        share = self._settings.share * status.iterations_total
        pause = self._settings.seconds
        if abs(status.speed - shown.speed) > CHANGE * shown.speed:
            pause = min(pause, SOON_S)
        return now >= shown.at + pause or 0 < share <= farther


def lost_seconds(entry: Entry) -> int | None:
    """Return how many seconds of work a stop of the job would lose now; None if that is not known."""
    status = entry.status
    begins, pace = risked_from(entry.job, status), status.pace or status.speed
    if entry.job.checkpoint.ends_with_pod:
        begins = 0.0
    if status.phase is not Phase.RUNNING or (begins is not None and pace <= 0):
        return None
    return 0 if begins is None else round((status.iteration - begins) / pace)


def is_due(shown: str | None, seconds: int) -> bool:
    """Return True if the shown value is absent, or too far from this one."""
    if shown is None or not shown.isdecimal():
        return True
    before = int(shown)
    if not before or not seconds:
        return abs(seconds - before) >= LEAST_LOSS_S
    return abs(seconds - before) > max(LEAST_LOSS_S, LOSS_CHANGE * before)


class LossAnnotations:
    """One for the life of a leader; :meth:`run` is its own task."""

    def __init__(
        self, api: ApiServer, mirrors: Mirrors, *, scene: Callable[[], Scene | None]
    ) -> None:
        self._api = api
        self._mirrors = mirrors
        self._scene = scene

    async def run(self) -> None:
        """Write the losses that are due, for ever."""
        while True:
            await asyncio.sleep(LOSS_LOOK_S)
            scene = self._scene()
            if scene is None:
                continue
            try:
                for pod, seconds in list(self.find_due(scene))[:MOST_LOSSES]:
                    await self._write(pod, seconds)
            except (Rejected, Unreachable) as error:
                log.info("the work that stops would lose cannot be shown yet: %s", error)

    def find_due(self, scene: Scene) -> Iterator[tuple[PodDocument, int]]:
        """Yield the pods whose shown value is too far from the present one, with that one."""
        for job, entry in scene.entries.items():
            seconds = lost_seconds(entry)
            if seconds is None:
                continue
            namespace, name = name_of(job)
            for booking in entry.status.pods:
                pod = self._mirrors.pods.get(Name(namespace, trainer_name(name, booking.serial)))
                if pod is None:
                    continue
                shown = (pod["metadata"].get("annotations") or {}).get(names.LOSS)
                if is_due(shown, seconds):
                    yield pod, seconds

    async def _write(self, pod: PodDocument, seconds: int) -> None:
        metadata = pod["metadata"]
        changes = {"metadata": {"annotations": {names.LOSS: str(seconds)}}}
        try:
            written = await self._api.merge(
                PODS, metadata["name"], changes=changes, namespace=metadata["namespace"]
            )
        except NotFound:
            return
        self._mirrors.pods.show(written, is_ours=True)
