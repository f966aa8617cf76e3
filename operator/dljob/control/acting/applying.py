"""
Sends the difference between what :mod:`dljob.control.acting.desired_pods` wants and what there is.

Every request may be repeated. A step that would be harmful without a record (a pod that no status
mentions, a run in a pod that is not known to be in use) is recorded first, and a later cycle repeats the requests.
Targets go out first, because they cost nothing and jobs wait for them. Then pods are created
and ended, all at once. The last creations may still be under way when the next cycle begins, but not
when that cycle records its decision.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from dljob.control.acting.desired_pods import Absent, Desired, Present
from dljob.control.acting.task_pool import Slots, TaskPool, do_all
from dljob.control.situation.dialer import Dialer
from dljob.control.situation.job_pods import JobPod
from dljob.control.situation.ports import (
    Entry,
    Fenced,
    NotTaken,
    Platform,
    PodKey,
    PodOrder,
    PodPhase,
)
from dljob.control.situation.quarantine import Quarantine
from dljob.control.situation.scene import Scene
from dljob.control.situation.sent import BookedPod, Commanded, Sent
from dljob.control.situation.status import Booking
from dljob.core.model import JobId
from dljob.core.primitives.backoff import Backoff, K
from dljob_wire.messages import Run, Target

log = logging.getLogger(__name__)

RESTARTS_S: Final = 3600.0
"""The time over which the restarts of a container count."""


class Actor:
    """Declares targets and requests pods; one for the life of a controller.

    A refused request is repeated after a growing back-off.
    """

    def __init__(
        self,
        platform: Platform,
        dialer: Dialer,
        *,
        sent: Sent,
        epoch: int,
        clock: Callable[[], float],
    ) -> None:
        self._platform = platform
        self._dialer = dialer
        self._sent = sent
        self._epoch = epoch
        self._clock = clock
        """Back-offs count from the refusal and not from the scene, because a request may fail a
        minute later.
        """
        self._launches: TaskPool[BookedPod] = TaskPool()

    async def carry_out(
        self,
        desired: Mapping[JobId, Desired],
        scene: Scene,
        *,
        quarantine: Quarantine,
        slots: Slots,
        trailing: int = 0,
    ) -> None:
        """
        Request what differs; ``scene`` holds the statuses as they were recorded, bookings included.

        Pods that get none of the ``slots`` are left for the next cycle. Up to ``trailing`` pods may
        still be in creation when this returns; see :meth:`finish`.
        """
        slow: list[Awaitable[object]] = []
        for job, wanted in desired.items():
            if wanted.record is None:
                slow.append(self._forget(scene.now, job))
                continue
            if wanted.begun is not None:
                self._sent.begun[job] = wanted.begun
            for booking in scene.entries[job].status.pods:
                doing = wanted.pods.get(booking.node)
                if isinstance(doing, Absent):
                    slow.append(self._remove(scene, job, booking, doing))
                    continue
                try:
                    self._request(scene, job, booking=booking, doing=doing, slots=slots)
                except Exception as error:  # noqa: BLE001 - one job's data never stops the others
                    quarantine.add(job, error)
        await do_all(slow)
        await self._launches.wait_until_few(trailing)

    def check(self) -> None:
        """Raise :class:`Fenced` if a request has shown that another controller leads."""
        self._launches.check()

    async def finish(self) -> None:
        """Wait for all requests; raises :class:`Fenced` if another controller leads."""
        await self._launches.wait_until_few()

    async def end(self) -> None:
        await self._launches.end()

    def _request(
        self,
        scene: Scene,
        job: JobId,
        *,
        booking: Booking,
        doing: Target | Present | None,
        slots: Slots,
    ) -> None:
        pod, job_pod = (job, booking), scene.pods_of(job).get(booking.node)
        if isinstance(doing, Present):
            if job_pod is None:  # It was booked in this cycle.
                self._sent.fresh.add(pod)
            # The controller that booked it may have ended before it could request it.
            elif job_pod.asked or job_pod.pod.phase is not PodPhase.PENDING:
                return
            if self._sent.refused.may_try(pod, scene.now):
                # No request for this pod is under way: a cycle waits for all launches before it acts.
                self._sent.asked.add(pod)
                self._launches.start(pod, self._launch(scene.entries[job], booking, slots=slots))
        elif job_pod is not None and doing is not None and doing is not job_pod.told:
            self._declare(scene.now, job_pod, doing)

    def _declare(self, now: float, job_pod: JobPod, target: Target) -> None:
        """Note the target before the pod can receive it, then send it."""
        state, pod = job_pod.state, (job_pod.key.job, job_pod.booking)
        assert state is not None
        if isinstance(target, Run) or target.leave:
            self._sent.fresh.discard(pod)
        # A trial changes no process, and the rest of its target is only the SideCar's own report.
        if not (isinstance(target, Run) and target.term == state.term):
            # In another epoch, the same generation repeats what the SideCar reports.
            is_exact = job_pod.is_stamped(self._epoch) or target.generation > state.generation
            self._note(now, job_pod, target, is_exact=is_exact)
        self._dialer.declare(job_pod.key, target)

    def _note(self, now: float, job_pod: JobPod, target: Target, *, is_exact: bool) -> None:
        pod = (job_pod.key.job, job_pod.booking)
        known = self._sent.commanded.get(pod)
        if known is not None and known.start != job_pod.pod.start:
            # Another start of the container has received none of these commands and holds no GPUs
            # through them.
            known = None
        if known is not None and target.term < known.target.term:
            return
        at, gpus, restarts = now, frozenset[str](), tuple[float, ...]()
        if known is not None:
            gpus = known.gpus
            restarts = tuple(at for at in known.restarts if at > now - RESTARTS_S)
            if known.target.incarnation != target.incarnation:
                restarts = (*restarts, now)
            if target.term == known.target.term and known.is_for(target.incarnation):
                at = known.at
        if is_exact and isinstance(target, Run):
            gpus = gpus.union(target.gpus)
        self._sent.commanded[pod] = Commanded(
            target, at, gpus, is_exact=is_exact, restarts=restarts, start=job_pod.pod.start
        )

    async def _launch(self, entry: Entry, booking: Booking, *, slots: Slots) -> None:
        pod, is_made = (entry.job.id, booking), False
        failed = f"the platform refused the pod of {PodKey(entry.job.id, booking.node)}"
        try:
            async with slots.one() as is_mine:
                # The task pool keeps Fenced, so that the loop raises it at its next check.
                if is_mine:
                    request = self._platform.launch(PodOrder(entry, booking))
                    is_made = await self._attempt(request, self._sent.refused, pod, failed)
        finally:
            if not is_made:
                # A cancelled launch counts as not requested, and is repeated.
                self._sent.asked.discard(pod)

    async def _remove(self, scene: Scene, job: JobId, booking: Booking, absent: Absent) -> None:
        pod, key = (job, booking), PodKey(job, booking.node)
        # The platform shows a pod until its deletion is over, and each cycle finds it still there.
        last = self._sent.removed.get(pod, -math.inf)
        if scene.now < last + scene.lost_seconds or not self._sent.unremoved.may_try(
            pod, scene.now
        ):
            return
        request = self._platform.remove(key, because=absent.because)
        failed = f"the pod of {key} could not be removed"
        if await self._attempt(request, self._sent.unremoved, pod, failed):
            self._sent.removed[pod] = scene.now
            if not absent.is_needed:
                # The end of this pod no longer shows if the job can be started on its node.
                self._sent.fresh.discard(pod)

    async def _forget(self, now: float, job: JobId) -> None:
        if self._sent.unforgotten.may_try(job, now):
            request, failed = self._platform.forget(job), f"job {job} could not be forgotten"
            await self._attempt(request, self._sent.unforgotten, job, failed)

    async def _attempt(
        self, request: Awaitable[None], backoff: Backoff[K], key: K, failed: str
    ) -> bool:
        """Return True if the platform takes the request; else it is repeated after a pause."""
        try:
            await request
        except Fenced:
            raise
        except Exception as error:
            if backoff.refuse(key, str(error), self._clock()):
                has_remedy = isinstance(error, NotTaken)
                level = logging.WARNING if has_remedy else logging.ERROR
                log.log(level, "%s: %s", failed, error, exc_info=not has_remedy)
            return False
        backoff.settle(key)
        return True
