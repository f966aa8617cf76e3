"""
Carries out the commands of :mod:`dljob.control.acting.coordinating`.

Every step may be repeated. A step that would be harmful without a record (a pod that no status
mentions) is recorded first; commands to SideCars follow from the record, and a later cycle repeats
them. Commands go out first, because they cost nothing and jobs wait for them. Then pods are created
and ended, all at once. The last creations may still be under way when the next cycle begins, but not
when that cycle records its decision.
"""

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
from dljob.control.acting.pod_requests import PodRequests
from dljob.control.acting.task_pool import Slots
from dljob.control.at_once import do_all
from dljob.control.situation.dialer import Dialer
from dljob.control.situation.ports import Entry, Platform
from dljob.control.situation.quarantine import Quarantine
from dljob.control.situation.scene import Scene
from dljob.control.situation.sent import Sent
from dljob.control.situation.status import Booking, Status
from dljob.core.model import JobId, NodeName


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
    """Sends commands and requests pods; one for the life of a controller."""

    def __init__(
        self,
        platform: Platform,
        dialer: Dialer,
        *,
        sent: Sent,
        epoch: int,
        clock: Callable[[], float],
    ) -> None:
        self._sent = sent
        self._requests = PodRequests(platform, sent, clock=clock)
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
        self._requests.keep(scene.entries)
        slow: list[Callable[[], Awaitable[None]]] = []
        for command in commands:
            match command:
                case Stamp() | Halt() | Try() | Begin():
                    try:
                        self._send(scene, command)
                    except Exception as error:  # noqa: BLE001 - one job's data never stops the others
                        quarantine.add(job_of(command), error)
                case Book():
                    entry = scene.entries[command.job]
                    new = [pod for pod in entry.status.pods if pod.node in command.nodes]
                    self._sent.fresh.update((command.job, pod) for pod in new)
                    for pod in new:
                        self._requests.begin_launch(entry, pod, now=scene.now, slots=slots)
                case Launch():
                    entry = scene.entries[command.key.job]
                    pod = _booking(entry, command.key.node)
                    self._requests.begin_launch(entry, pod, now=scene.now, slots=slots)
                case Remove():
                    slow.append(partial(self._remove, scene, command))
                case Forget():
                    slow.append(partial(self._requests.forget, scene.now, command.job))
                case Unbook():
                    pass  # Recording the booking was all.
        await do_all(act() for act in slow)
        await self._requests.wait_until_few(trailing)

    def _send(self, scene: Scene, command: Stamp | Halt | Try | Begin) -> None:
        if isinstance(command, Begin):
            self._commander.begin(scene, command)
        else:
            self._commander.send(scene, command)

    def check(self) -> None:
        """Raise :class:`Fenced` if a request has shown that another controller leads."""
        self._requests.check()

    async def finish(self) -> None:
        """Wait for all requests; raises :class:`Fenced` if another controller leads."""
        await self._requests.wait_until_few(0)

    async def end(self) -> None:
        """Cancel all requests."""
        await self._requests.end()

    async def _remove(self, scene: Scene, command: Remove) -> None:
        entry = scene.entries[command.key.job]
        booking = _booking(entry, command.key.node)
        if await self._requests.remove(scene, command, booking=booking) and not command.is_needed:
            # The end of this pod no longer shows if the job can be started on its node.
            self._sent.fresh.discard((command.key.job, booking))


def _booking(entry: Entry, node: NodeName) -> Booking:
    return next(pod for pod in entry.status.pods if pod.node == node)
