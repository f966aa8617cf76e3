"""
The platform is asked for pods, and to end them; a refused request is made again, later each time.

Part of :mod:`dlcontrol.acting.applying`. Each request may be made twice.
"""

import logging
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

from dlcontrol.acting.commands import Remove
from dlcontrol.acting.task_pool import Slots, TaskPool
from dlcontrol.situation.ports import Entry, Fenced, Platform, PodOrder
from dlcontrol.situation.scene import Scene
from dlcontrol.situation.status import Booking
from dlcore.model import JobId
from dlcore.primitives.backoff import Backoff

log = logging.getLogger(__name__)

BookedPod = tuple[JobId, Booking]


class PodRequests:
    """Remembers which pods were asked for, and which requests were refused."""

    def __init__(self, platform: Platform, clock: Callable[[], float]) -> None:
        self._platform = platform
        self._clock = clock
        """Waits count from a refusal and not from the scene, because a request may fail a minute after that."""
        self._asked: set[BookedPod] = set()
        """Pods that we asked for with success."""
        self._launches: TaskPool[BookedPod] = TaskPool()
        """Pods that we are asking for."""
        self._removed: dict[BookedPod, float] = {}
        """Pods that we had ended, and when."""
        self._unlaunched: Backoff[BookedPod] = Backoff()
        self._unremoved: Backoff[BookedPod] = Backoff()
        self._unforgotten: Backoff[JobId] = Backoff()

    def has_asked(self, pod: BookedPod) -> bool:
        """Whether we have asked for this pod, or are just doing so."""
        return pod in self._asked or pod in self._launches

    def refusal(self, pod: BookedPod) -> str:
        """Why the platform would not even take the order for this pod; empty if it did."""
        return self._unlaunched.why(pod)

    def keep(self, booked: AbstractSet[BookedPod], entries: Mapping[JobId, Entry]) -> None:
        """Remember nothing of other pods and jobs."""
        self._asked.intersection_update(booked)
        for gone in self._removed.keys() - booked:
            del self._removed[gone]
        self._unlaunched.keep(booked)
        self._unremoved.keep(booked)
        self._unforgotten.keep(entries)

    def check(self) -> None:
        """Raise :class:`Fenced` if it is known by now that we do not lead any more."""
        self._launches.check()

    async def wait_until_few(self, most: int) -> None:
        """Wait until no more pods than that are being asked for; raises :class:`Fenced`."""
        await self._launches.wait_until_few(most)

    async def end(self) -> None:
        """Ask for nothing any more."""
        await self._launches.end()

    def begin_launch(self, now: float, slots: Slots, entry: Entry, booking: Booking) -> None:
        """Ask for a pod when it has its turn, unless the last refusal of it is too recent."""
        pod = (entry.job.id, booking)
        if self._unlaunched.may_try(pod, now):
            # None is under way for this pod: before a cycle acts, it has waited for all launches.
            self._launches.start(pod, self._wait_and_launch(slots, entry=entry, booking=booking))

    async def _wait_and_launch(self, slots: Slots, *, entry: Entry, booking: Booking) -> None:
        async with slots.one() as is_mine:
            if is_mine:
                await self._launch(entry, booking)

    async def _launch(self, entry: Entry, booking: Booking) -> None:
        pod = (entry.job.id, booking)
        try:
            await self._platform.launch(PodOrder(entry, booking))
        except Fenced:
            # Trailing keeps it, so that the loop raises it at its next check.
            raise
        except Exception as error:
            # It is asked for again, as long as the job shall have it.
            if self._unlaunched.refuse(pod, str(error), self._clock()):
                log.exception(
                    "the platform refused the pod of %s on %s", entry.job.id, booking.node
                )
            return
        self._unlaunched.settle(pod)
        # Only after the answer: a launch that was cut off counts as not asked, and is repeated.
        self._asked.add(pod)

    async def remove(self, scene: Scene, command: Remove, booking: Booking) -> bool:
        """Have a pod ended; return whether the platform was asked for it and did not refuse."""
        pod = (command.key.job, booking)
        # A pod is shown until its deletion is over, and each cycle until then orders it again.
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
        """Have the platform keep a job no longer."""
        if not self._unforgotten.may_try(job, now):
            return
        try:
            await self._platform.forget(job)
        except Fenced:
            raise
        except Exception as error:
            if self._unforgotten.refuse(job, str(error), self._clock()):
                log.exception("job %s could not be forgotten", job)
