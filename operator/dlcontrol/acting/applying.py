"""
Carries out what :mod:`dlcontrol.acting.coordinating` says, and remembers the little that must be.

Everything here may be done twice. What would be harmful if it were done without being recorded
(a pod that nobody knows of) is recorded first; what is only said to a SideCar follows from what is
recorded, and is said again by whoever looks next. What is said comes first, because it costs
nothing and somebody waits for it; pods are asked for and ended all at once after that. The last of
those that are asked for may still be so when the next look begins, but not when it is recorded what
that look has found.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol

from dlcontrol.acting.coordinating import (
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
)
from dlcontrol.acting.task_pool import Trailing, Turns
from dlcontrol.situation.commanded import Commanded
from dlcontrol.situation.ports import (
    Address,
    Entry,
    Fenced,
    Platform,
    PodKey,
    PodOrder,
)
from dlcontrol.situation.quarantine import Asides
from dlcontrol.situation.scene import (
    NO_CONTACT,
    Begun,
    Contact,
    Scene,
    Seat,
)
from dlcontrol.situation.status import Booking, Status
from dlcore.model import Job, JobId, Node, NodeName, Placement
from dlcore.primitives.backoff import Backoff
from dlwire.messages import Peer, Run, Stop, Target

log = logging.getLogger(__name__)

LONGEST_REASON = 1024

RESTARTS_S = 3600.0


class Dialer(Protocol):
    """Whoever speaks to the SideCars."""

    def follow(self, key: PodKey, address: Address) -> None:
        """Speak to the SideCar of this pod from now on, at this address."""

    def forget(self, key: PodKey) -> None:
        """Do not speak to it any more."""

    def declare(self, key: PodKey, target: Target) -> None:
        """Tell it this until it has heard; whatever it was told before is void."""

    def contact(self, key: PodKey) -> Contact:
        """
        Say what is known of it.

        That never goes back: neither to an earlier version of a state, nor to an earlier
        incarnation. Of a SideCar that has not answered yet, it is told since when.
        """


class _Absence:
    """That a pod cannot be dialled."""

    def __init__(self, since: float) -> None:
        self._since = since
        self._known, self._shown = NO_CONTACT, replace(NO_CONTACT, since=since)

    def show(self, known: Contact) -> Contact:
        """What is known of its SideCar, as it is in its absence; the same object for the same."""
        if known is not self._known:
            self._known, self._shown = known, replace(known, reachable=False, since=self._since)
        return self._shown


class Hands:
    """Books, launches, says. One for the life of a controller."""

    def __init__(self, platform: Platform, dialer: Dialer, epoch: int) -> None:
        self._platform = platform
        self._dialer = dialer
        self._epoch = epoch
        self._followed: dict[PodKey, Address] = {}
        self._absent: dict[PodKey, _Absence] = {}
        """Pods that cannot be dialled."""
        self._asked: set[tuple[JobId, Booking]] = set()
        """Pods that we asked for with success."""
        self._launches: Trailing[tuple[JobId, Booking]] = Trailing()
        """Pods that we are asking for."""
        self._untold: set[tuple[JobId, Booking]] = set()
        """Pods that we booked and have told nothing to run."""
        self._removed: dict[tuple[JobId, Booking], float] = {}
        """Pods that we had ended, and when."""
        self._begun: dict[JobId, Begun] = {}
        self._commanded: dict[tuple[JobId, Booking], Commanded] = {}
        self._unlaunched: Backoff[tuple[JobId, Booking]] = Backoff()
        self._unremoved: Backoff[tuple[JobId, Booking]] = Backoff()
        self._unforgotten: Backoff[JobId] = Backoff()

    # --- what is remembered

    @property
    def begun(self) -> Mapping[JobId, Begun]:
        """What we told jobs to run."""
        return self._begun

    @property
    def commanded(self) -> Mapping[tuple[JobId, Booking], Commanded]:
        """What we told pods."""
        return self._commanded

    def has_asked(self, job: JobId, booking: Booking) -> bool:
        """Whether we have asked for this pod, or are just doing so."""
        return (job, booking) in self._asked or (job, booking) in self._launches

    def is_fresh(self, job: JobId, booking: Booking) -> bool:
        """Whether we booked this pod and have told it nothing to run."""
        return (job, booking) in self._untold

    def refusal(self, job: JobId, booking: Booking) -> str:
        """Why the platform would not even take the order for this pod; empty if it did."""
        return self._unlaunched.why((job, booking))

    def contact(self, key: PodKey) -> Contact:
        """What is known of a SideCar; where it has no address, since when it has none."""
        contact = self._dialer.contact(key)
        absence = self._absent.get(key)
        return contact if absence is None else absence.show(contact)

    def keep_up(
        self, entries: Mapping[JobId, Entry], addresses: Mapping[PodKey, Address], now: float
    ) -> None:
        """Speak to these SideCars and to no others, and remember nothing of what is gone."""
        for key in self._followed.keys() - addresses.keys():
            self._dialer.forget(key)
        for key, address in addresses.items():
            if self._followed.get(key) != address:
                self._dialer.follow(key, address)
        self._followed = dict(addresses)
        booked = {(job, pod) for job, entry in entries.items() for pod in entry.status.pods}
        absent = {PodKey(job, pod.node) for job, pod in booked} - addresses.keys()
        self._absent = {key: self._absent.get(key) or _Absence(now) for key in absent}
        self._asked &= booked
        self._untold &= booked
        for gone in self._removed.keys() - booked:
            del self._removed[gone]
        for gone in self._commanded.keys() - booked:
            del self._commanded[gone]
        for job in self._begun.keys() - entries.keys():
            del self._begun[job]
        self._unlaunched.keep(booked)
        self._unremoved.keep(booked)
        self._unforgotten.keep(entries)

    # --- what is recorded before it is done

    def bookings(self, commands: Iterable[Command], scene: Scene) -> dict[JobId, Status]:
        """Say which statuses have to be recorded before the commands are carried out."""
        statuses: dict[JobId, Status] = {}
        for command in commands:
            if isinstance(command, Book | Unbook | Begin):
                status = statuses.get(command.job, scene.entries[command.job].status)
                statuses[command.job] = _after(status, command, scene.now)
        return statuses

    async def carry_out(
        self,
        commands: Iterable[Command],
        scene: Scene,
        asides: Asides,
        *,
        turns: Turns,
        trailing: int = 0,
    ) -> None:
        """
        Do it. ``scene`` holds the statuses as they were recorded, bookings included.

        Pods are asked for in ``turns``; those that are given none are left for the next look. So many may
        still be asked for when this returns; see :meth:`finish`.
        """
        launch = partial(self._begin_launch, scene.now, turns)
        slow: list[Callable[[], Awaitable[None]]] = []
        for command in commands:
            match command:
                case Stamp() | Halt() | Try():
                    asides.attempt(command.key.job, self._say, scene, command)
                case Begin():
                    asides.attempt(command.job, self._begin, scene, command)
                case Book():
                    entry = scene.entries[command.job]
                    new = [pod for pod in entry.status.pods if pod.node in command.nodes]
                    self._untold.update((command.job, pod) for pod in new)
                    for pod in new:
                        launch(entry, pod)
                case Launch():
                    entry = scene.entries[command.key.job]
                    launch(entry, _booking(entry, command.key.node))
                case Remove():
                    slow.append(partial(self._remove, scene, command))
                case Forget():
                    slow.append(partial(self._forget, scene.now, command.job))
                case Unbook():
                    pass  # Was recorded, and there is nothing left to do.
        await asyncio.gather(*(act() for act in slow))
        await self._launches.wait_until_few(trailing)

    def check(self) -> None:
        """Raise :class:`Fenced` if it is known by now that we do not lead any more."""
        self._launches.check()

    async def finish(self) -> None:
        """Wait until all is done that was begun; raises :class:`Fenced` if we do not lead any more."""
        await self._launches.wait_until_few(0)

    async def end(self) -> None:
        """Do nothing any more."""
        await self._launches.end()

    # --- pods

    def _begin_launch(self, now: float, turns: Turns, entry: Entry, booking: Booking) -> None:
        pod = (entry.job.id, booking)
        if self._unlaunched.may_try(pod, now):
            self._launches.start(pod, self._wait_and_launch(now, turns, entry, booking))

    async def _wait_and_launch(
        self, now: float, turns: Turns, entry: Entry, booking: Booking
    ) -> None:
        async with turns.one() as is_mine:
            if is_mine:
                await self._launch(now, entry, booking)

    async def _launch(self, now: float, entry: Entry, booking: Booking) -> None:
        pod = (entry.job.id, booking)
        try:
            await self._platform.launch(PodOrder(entry, booking))
        except Fenced:
            raise
        except Exception as error:
            # It is asked for again, as long as the job shall have it.
            if self._unlaunched.refuse(pod, str(error), now):
                log.exception(
                    "the platform refused the pod of %s on %s", entry.job.id, booking.node
                )
            return
        self._unlaunched.settle(pod)
        self._asked.add(pod)

    async def _remove(self, scene: Scene, command: Remove) -> None:
        entry = scene.entries[command.key.job]
        pod = (entry.job.id, _booking(entry, command.key.node))
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
            if self._unremoved.refuse(pod, str(error), scene.now):
                log.exception("the pod of %s could not be removed", command.key)
            return
        self._unremoved.settle(pod)
        self._removed[pod] = scene.now
        if not command.is_needed:
            # That it ends now says nothing about whether the job can be started there.
            self._untold.discard(pod)

    async def _forget(self, now: float, job: JobId) -> None:
        if not self._unforgotten.may_try(job, now):
            return
        try:
            await self._platform.forget(job)
        except Fenced:
            raise
        except Exception as error:
            if self._unforgotten.refuse(job, str(error), now):
                log.exception("job %s could not be forgotten", job)

    # --- what is said

    def _say(self, scene: Scene, command: Stamp | Halt | Try) -> None:
        if isinstance(command, Stamp):
            self._stamp(scene, command.key)
        elif isinstance(command, Try):
            self._try(scene, command)
        else:
            self._halt(scene, command)

    def _stamp(self, scene: Scene, key: PodKey) -> None:
        """Declare what holds already, under our epoch."""
        seat = scene.seats[key.job][key.node]
        state = seat.state
        assert state is not None
        if state.target is not None:
            mine: Target = replace(state.target, epoch=self._epoch, incarnation=state.incarnation)
        else:
            mine = Stop(self._epoch, state.generation, state.incarnation, reason="a new controller")
        self._declare(scene.now, seat, mine, is_exact=False)

    def _try(self, scene: Scene, command: Try) -> None:
        """Declare what runs already, and that it shall have tried its checkpoint."""
        state = scene.seats[command.key.job][command.key.node].state
        assert state is not None
        assert isinstance(state.target, Run)
        trying = replace(state.target, epoch=self._epoch, trial=command.number)
        self._dialer.declare(command.key, trying)

    def _halt(self, scene: Scene, command: Halt) -> None:
        status = scene.entries[command.key.job].status
        seat = scene.seats[command.key.job][command.key.node]
        assert seat.state is not None
        known = seat.told.generation if seat.told is not None else seat.state.generation
        # A SideCar that is to leave may have been told to stop, or to run, in this generation.
        generation = max(status.stop_generation, known + command.leave)
        if command.leave:
            self._untold.discard((command.key.job, seat.booking))
        self._declare(
            scene.now,
            seat,
            Stop(
                self._epoch,
                generation,
                seat.state.incarnation,
                checkpoint=command.checkpoint,
                leave=command.leave,
                coming=0 if command.leave else _count_coming(scene, command.key),
                reason=status.message[:LONGEST_REASON],
            ),
        )

    def _begin(self, scene: Scene, command: Begin) -> None:
        entry = scene.entries[command.job]
        runs = self._runs(scene, entry)
        self._begun[command.job] = Begun(entry.status.run_generation, runs)
        for node in command.nodes:
            seat = scene.seats[command.job][node]
            self._untold.discard((command.job, seat.booking))
            self._declare(scene.now, seat, runs[node])

    def _declare(self, now: float, seat: Seat, target: Target, *, is_exact: bool = True) -> None:
        """Remember what a pod is told before it can have heard of it, and tell it."""
        pod = (seat.key.job, seat.booking)
        known = self._commanded.get(pod)
        if known is not None and known.start != seat.pod.start:
            known = None
        gpus = known.gpus if known is not None else frozenset[str]()
        if is_exact and isinstance(target, Run):
            gpus = gpus.union(target.gpus)
        if known is None or target.term >= known.target.term:
            is_first = known is None or target.term > known.target.term
            restarts = _restarts_of(known, target, now)
            is_given_time = is_first or (known is not None and not known.is_for(target.incarnation))
            at = now if known is None or is_given_time else known.at
            self._commanded[pod] = Commanded(
                target, at, gpus, is_exact=is_exact, restarts=restarts, start=seat.pod.start
            )
        self._dialer.declare(seat.key, target)

    def _runs(self, scene: Scene, entry: Entry) -> dict[NodeName, Run]:
        """What each container of the job is to run, as part of one whole; the same at each look."""
        begun, placement = self._begun.get(entry.job.id), entry.status.placement
        assert placement is not None
        if begun is None or begun.generation != entry.status.run_generation:
            return self._make_runs(scene, entry, placement)
        runs = dict(begun.runs)
        for node, run in runs.items():
            state = scene.seats[entry.job.id][node].state
            assert state is not None
            runs[node] = replace(run, incarnation=state.incarnation)
        return runs

    def _make_runs(self, scene: Scene, entry: Entry, placement: Placement) -> dict[NodeName, Run]:
        job = entry.job
        counts = _count_processes(job, placement)
        peers = tuple(
            Peer(self._platform.host_of(PodKey(job.id, node)), count)
            for node, count in counts.items()
        )
        generation = entry.status.run_generation
        port = self._platform.rendezvous_port(job.id, generation, max(counts.values()))
        runs: dict[NodeName, Run] = {}
        offset = 0
        for part in placement.slices:
            state = scene.seats[job.id][part.node].state
            assert state is not None
            runs[part.node] = Run(
                epoch=self._epoch,
                generation=generation,
                incarnation=state.incarnation,
                gpus=gpu_names(scene.nodes[part.node], part.gpus),
                rank_offset=offset,
                world_size=sum(counts.values()),
                peers=peers,
                rendezvous_port=port,
                batch_size=entry.status.batch_size or job.training.batch_size,
                learning_rate_factor=_learning_rate_factor(entry),
                reason=entry.status.message[:LONGEST_REASON],
            )
            offset += counts[part.node]
        return runs


def _restarts_of(known: Commanded | None, target: Target, now: float) -> tuple[float, ...]:
    if known is None:
        return ()
    lately = tuple(at for at in known.restarts if at > now - RESTARTS_S)
    return lately if known.target.incarnation == target.incarnation else (*lately, now)


def _after(status: Status, command: Book | Unbook | Begin, now: float) -> Status:
    """Say what has to be recorded before this is done."""
    match command:
        case Book():
            return status.with_pods(command.nodes, now)
        case Unbook():
            return status.without_pods(command.nodes)
        case Begin():
            return status.with_used(command.nodes)


def _count_processes(job: Job, placement: Placement) -> dict[NodeName, int]:
    """How many processes run on each node."""
    return {
        part.node: len(part.gpus) if job.processes == "perGpu" else 1 for part in placement.slices
    }


def _count_coming(scene: Scene, key: PodKey) -> int:
    """How many processes shall run there next, so that spares are made while the job saves itself."""
    entry = scene.entries[key.job]
    placement = entry.status.placement
    return 0 if placement is None else _count_processes(entry.job, placement).get(key.node, 0)


def _booking(entry: Entry, node: NodeName) -> Booking:
    return next(pod for pod in entry.status.pods if pod.node == node)


def gpu_names(node: Node, numbers: Iterable[int]) -> tuple[str, ...]:
    """
    Name GPUs by UUID, or by number where that is not known.

    What a number means changes when a GPU of a lower number dies. A SideCar gives its training the names
    that the job wants (``--gpu-ids``).
    """
    uuids = {gpu.index: gpu.uuid for gpu in node.gpus if gpu.uuid}
    return tuple(uuids.get(number, str(number)) for number in numbers)


def _learning_rate_factor(entry: Entry) -> float:
    """The linear rule: a batch that is twice as large is learnt from twice as fast."""
    own, now = entry.job.training.batch_size, entry.status.batch_size
    return now / own if now and own else 1.0
