"""
Shows on the pods that train how many seconds of work a stop would lose now, for programs that choose pods to stop.

A value is written when it differs by more than a fifth from the one that is shown, at a limited rate, because each write
is one request for each pod. Used by :mod:`dljob.operator.leading`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator

from dljob.control.judging.checkpoints import risked_from
from dljob.control.situation.ports import Entry
from dljob.control.situation.scene import Scene
from dljob.core.model import Phase
from dljob.kube import names
from dljob.kube.client import ApiServer, NotFound, Rejected, Unreachable
from dljob.kube.documents import PodDocument
from dljob.kube.names import Name
from dljob.kube.resources import PODS
from dljob.kube.watches.mirror import Mirrors
from dljob.operator.jobs.entries import name_of
from dljob.operator.podspecs.building import trainer_name

log = logging.getLogger(__name__)

LOOK_S = 5.0
MOST_AT_ONCE = 50
"""The most pods that are written in one pass."""
SHARE = 0.2
LEAST_S = 10
"""Smaller changes are not written."""


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
        return abs(seconds - before) >= LEAST_S
    return abs(seconds - before) > max(LEAST_S, SHARE * before)


class LossAnnotations:
    """One for the life of a leader; :meth:`run` is its own task."""

    def __init__(
        self, api: ApiServer, mirrors: Mirrors, *, scene: Callable[[], Scene | None]
    ) -> None:
        self._api = api
        self._mirrors = mirrors
        self._scene = scene

    async def run(self) -> None:
        """Write what is due, for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            scene = self._scene()
            if scene is None:
                continue
            try:
                for pod, seconds in list(self.find_due(scene))[:MOST_AT_ONCE]:
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
                if pod is not None and is_due(_annotations(pod).get(names.LOSS), seconds):
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


def _annotations(pod: PodDocument) -> dict[str, str]:
    return pod["metadata"].get("annotations") or {}
