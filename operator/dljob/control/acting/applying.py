"""
Carries out the commands of :mod:`dljob.control.acting.coordinating`.

Every step may be repeated. A step that would be harmful without a record (a pod that no status
mentions) is recorded first; commands to SideCars follow from the record, and a later cycle repeats
them. Commands go out first, because they cost nothing and jobs wait for them. Then pods are created
and ended, all at once. The last creations may still be under way when the next cycle begins, but not
when that cycle records its decision.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from dljob.control.acting.commanding import Commander
from dljob.control.acting.commands import (
    Begin,
    Book,
    Command,
    Forget,
    Halt,
    Launch,
    Remove,
    Stamp,
    Try,
    Unbook,
    job_of,
)
from dljob.control.acting.task_pool import Slots, TaskPool, do_all
from dljob.control.situation.dialer import Dialer
from dljob.control.situation.ports import Entry, Fenced, NotTaken, Platform, PodOrder
from dljob.control.situation.quarantine import Quarantine
from dljob.control.situation.scene import Scene
from dljob.control.situation.sent import BookedPod, Sent
from dljob.control.situation.status import Booking, Status
from dljob.core.model import JobId, NodeName
from dljob.core.primitives.backoff import Backoff

log = logging.getLogger(__name__)


def booked_statuses(commands: Iterable[Command], scene: Scene) -> dict[JobId, Status]:
    """Return the statuses that have to be recorded before the commands are carried out."""
    statuses: dict[JobId, Status] = {}
    for command in commands:
        if isinstance(command, Book | Unbook | Begin):
            # Several commands about one job add to one status, because only one is recorded.
            status = statuses.get(command.job, scene.entries[command.job].status)
            statuses[command.job] = _after(status, command, now=scene.now)
    return statuses


def _after(status: Status, command: Book | Unbook | Begin, *, now: float) -> Status:
    match command:
        case Book():
            return status.with_pods(command.nodes, now)
        case Unbook():
            return status.without_pods(command.nodes, ended=command.ended)
        case Begin():
            return status.with_used(command.nodes)


class Actor:
    """
    Sends commands and requests pods; one for the life of a controller.

    Every request may be repeated; a refused one is repeated after a growing back-off.
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
        self._commander = Commander(platform, dialer, sent=sent, epoch=epoch)

    async def carry_out(
        self,
        commands: Iterable[Command],
        scene: Scene,
        *,
        quarantine: Quarantine,
        slots: Slots,
        trailing: int = 0,
    ) -> None:
        """
        Carry out the commands; ``scene`` holds the statuses as they were recorded, bookings included.

        Pods that get none of the ``slots`` are left for the next cycle. Up to ``trailing`` pods may
        still be in creation when this returns; see :meth:`finish`.
        """
        booked = {(job, pod) for job, entry in scene.entries.items() for pod in entry.status.pods}
        self._removed = {pod: at for pod, at in self._removed.items() if pod in booked}
        self._unremoved.keep(booked)
        self._unforgotten.keep(scene.entries)
        slow: list[Callable[[], Awaitable[None]]] = []
        for command in commands:
            match command:
                case Stamp() | Halt() | Try() | Begin():
                    try:
                        self._commander.send(scene, command)
                    except Exception as error:  # noqa: BLE001 - one job's data never stops the others
                        quarantine.add(job_of(command), error)
                case Book():
                    entry = scene.entries[command.job]
                    new = [pod for pod in entry.status.pods if pod.node in command.nodes]
                    self._sent.fresh.update((command.job, pod) for pod in new)
                    for pod in new:
                        self._begin_launch(entry, pod, now=scene.now, slots=slots)
                case Launch():
                    entry = scene.entries[command.key.job]
                    pod = _booking(entry, command.key.node)
                    self._begin_launch(entry, pod, now=scene.now, slots=slots)
                case Remove():
                    slow.append(partial(self._remove, scene, command))
                case Forget():
                    slow.append(partial(self._forget, scene.now, command.job))
                case Unbook():
                    pass  # Recording the booking was all.
        await do_all(act() for act in slow)
        await self._launches.wait_until_few(trailing)

    def check(self) -> None:
        """Raise :class:`Fenced` if a request has shown that another controller leads."""
        self._launches.check()

    async def finish(self) -> None:
        """Wait for all requests; raises :class:`Fenced` if another controller leads."""
        await self._launches.wait_until_few()

    async def end(self) -> None:
        await self._launches.end()

    def _begin_launch(self, entry: Entry, booking: Booking, *, now: float, slots: Slots) -> None:
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

    async def _remove(self, scene: Scene, command: Remove) -> None:
        entry = scene.entries[command.key.job]
        pod = (command.key.job, _booking(entry, command.key.node))
        # The platform shows a pod until its deletion is over, and each cycle repeats the command.
        last = self._removed.get(pod)
        if last is not None and scene.now < last + scene.lost_seconds:
            return
        if not self._unremoved.may_try(pod, scene.now):
            return
        try:
            await self._platform.remove(command.key, because=command.because)
        except Fenced:
            raise
        except Exception as error:
            if self._unremoved.refuse(pod, str(error), self._clock()):
                log.exception("the pod of %s could not be removed", command.key)
            return
        self._unremoved.settle(pod)
        self._removed[pod] = scene.now
        if not command.is_needed:
            # The end of this pod no longer shows if the job can be started on its node.
            self._sent.fresh.discard(pod)

    async def _forget(self, now: float, job: JobId) -> None:
        if not self._unforgotten.may_try(job, now):
            return
        try:
            await self._platform.forget(job)
        except Fenced:
            raise
        except Exception as error:
            if self._unforgotten.refuse(job, str(error), self._clock()):
                log.exception("job %s could not be forgotten", job)


def _booking(entry: Entry, node: NodeName) -> Booking:
    return next(pod for pod in entry.status.pods if pod.node == node)
