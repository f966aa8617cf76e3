"""
Requests to the platform to create and to end pods; a refused request is repeated after a growing back-off.

Part of :mod:`dljob.control.acting.applying`. Every request may be repeated.
"""

import logging
from collections.abc import Callable, Mapping

from dljob.control.acting.commands import Remove
from dljob.control.acting.task_pool import Slots, TaskPool
from dljob.control.situation.ports import Entry, Fenced, NotTaken, Platform, PodOrder
from dljob.control.situation.scene import Scene
from dljob.control.situation.sent import BookedPod, Sent
from dljob.control.situation.status import Booking
from dljob.core.model import JobId
from dljob.core.primitives.backoff import Backoff

log = logging.getLogger(__name__)


class PodRequests:
    """Requests to create and to end pods, with the back-off after refusals."""

    def __init__(self, platform: Platform, sent: Sent, *, clock: Callable[[], float]) -> None:
        self._platform = platform
        self._sent = sent
        self._clock = clock
        """Back-offs count from the refusal and not from the scene, because a request may fail a
        minute later.
        """
        self._launches: TaskPool[BookedPod] = TaskPool()
        self._removed: dict[BookedPod, float] = {}
        """When this controller ended each pod."""
        self._unremoved: Backoff[BookedPod] = Backoff()
        self._unforgotten: Backoff[JobId] = Backoff()

    def keep(self, entries: Mapping[JobId, Entry]) -> None:
        """Forget pods that are no longer booked, and jobs that are gone."""
        booked = {(job, pod) for job, entry in entries.items() for pod in entry.status.pods}
        for gone in self._removed.keys() - booked:
            del self._removed[gone]
        self._unremoved.keep(booked)
        self._unforgotten.keep(entries)

    def check(self) -> None:
        """Raise :class:`Fenced` if a request has shown that another controller leads."""
        self._launches.check()

    async def wait_until_few(self, most: int) -> None:
        """Wait until at most this number of pods is in creation; raises :class:`Fenced`."""
        await self._launches.wait_until_few(most)

    async def end(self) -> None:
        """Cancel all requests for pods."""
        await self._launches.end()

    def begin_launch(self, entry: Entry, booking: Booking, *, now: float, slots: Slots) -> None:
        """Request a pod as soon as a slot is free, unless its back-off lasts."""
        pod = (entry.job.id, booking)
        if self._sent.refused.may_try(pod, now):
            # No request for this pod is under way: a cycle waits for all launches before it acts.
            self._sent.asked.add(pod)
            self._launches.start(pod, self._wait_and_launch(slots, entry=entry, booking=booking))

    async def _wait_and_launch(self, slots: Slots, *, entry: Entry, booking: Booking) -> None:
        is_made = False
        try:
            async with slots.one() as is_mine:
                is_made = is_mine and await self._launch(entry, booking)
        finally:
            if not is_made:
                # A cancelled launch counts as not requested, and is repeated.
                self._sent.asked.discard((entry.job.id, booking))

    async def _launch(self, entry: Entry, booking: Booking) -> bool:
        pod = (entry.job.id, booking)
        try:
            await self._platform.launch(PodOrder(entry, booking))
        except Fenced:
            # The task pool keeps the error, so that the loop raises it at its next check.
            raise
        except Exception as error:
            # A later cycle requests the pod again, as long as the job needs it.
            if self._sent.refused.refuse(pod, str(error), self._clock()):
                log.log(
                    logging.WARNING if isinstance(error, NotTaken) else logging.ERROR,
                    "the platform refused the pod of %s on %s: %s",
                    entry.job.id,
                    booking.node,
                    error,
                    exc_info=not isinstance(error, NotTaken),
                )
            return False
        self._sent.refused.settle(pod)
        return True

    async def remove(self, scene: Scene, command: Remove, *, booking: Booking) -> bool:
        """End a pod; return False if the platform was not asked, or has refused."""
        pod = (command.key.job, booking)
        # The platform shows a pod until its deletion is over, and each cycle repeats the command.
        last = self._removed.get(pod)
        if last is not None and scene.now < last + scene.lost_seconds:
            return False
        if not self._unremoved.may_try(pod, scene.now):
            return False
        try:
            await self._platform.remove(command.key, because=command.because)
        except Fenced:
            raise
        except Exception as error:
            if self._unremoved.refuse(pod, str(error), self._clock()):
                log.exception("the pod of %s could not be removed", command.key)
            return False
        self._unremoved.settle(pod)
        self._removed[pod] = scene.now
        return True

    async def forget(self, now: float, job: JobId) -> None:
        """Have the platform delete a job."""
        if not self._unforgotten.may_try(job, now):
            return
        try:
            await self._platform.forget(job)
        except Fenced:
            raise
        except Exception as error:
            if self._unforgotten.refuse(job, str(error), self._clock()):
                log.exception("job %s could not be forgotten", job)
