"""
Carries out what :mod:`dlcontrol.acting.coordinating` says, and remembers the little that must be.

Everything here may be done twice. A step that would be harmful without a record (a pod that no
status mentions) is recorded first; commands to SideCars follow from the record, and a later cycle
repeats them. Commands go out first, because they cost nothing and jobs wait for them; after that
pods are created and ended, all at once. The last creations may still be under way when the next
cycle begins, but not when that cycle records its decision.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial

from dlcontrol.acting.commands import (
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
from dlcontrol.acting.dialer import Absence, Dialer
from dlcontrol.acting.pod_requests import PodRequests
from dlcontrol.acting.task_pool import Slots
from dlcontrol.at_once import do_all
from dlcontrol.situation.commanded import Commanded
from dlcontrol.situation.ports import (
    Address,
    Entry,
    Platform,
    PodKey,
)
from dlcontrol.situation.quarantine import Quarantine
from dlcontrol.situation.scene import (
    NO_CONTACT,
    Begun,
    Contact,
    JobPod,
    Scene,
)
from dlcontrol.situation.status import Booking, Status
from dlcore.model import Job, JobId, Node, NodeName, Placement
from dlwire.messages import Peer, Run, Stop, Target
from dlwire.messages import Phase as SideCarPhase

LONGEST_REASON = 1024
RESTARTS_S = 3600.0


class Commander:
    """Remembers the command of each pod. One for the life of a controller."""

    def __init__(self, platform: Platform, dialer: Dialer, *, epoch: int) -> None:
        self._platform = platform
        self._dialer = dialer
        self._epoch = epoch
        self.begun: dict[JobId, Begun] = {}
        """The start that each job was commanded last."""
        self.commanded: dict[tuple[JobId, Booking], Commanded] = {}
        """The command that each pod got last."""
        self.untold: set[tuple[JobId, Booking]] = set()
        """Pods that we booked and have told nothing to run."""

    def keep(self, booked: AbstractSet[tuple[JobId, Booking]], jobs: AbstractSet[JobId]) -> None:
        """Remember nothing of other pods and jobs."""
        self.untold.intersection_update(booked)
        for gone in self.commanded.keys() - booked:
            del self.commanded[gone]
        for job in self.begun.keys() - jobs:
            del self.begun[job]

    def say(self, scene: Scene, command: Stamp | Halt | Try) -> None:
        """Send one SideCar its command."""
        if isinstance(command, Stamp):
            self._stamp(scene, command.key)
        elif isinstance(command, Try):
            self._try(scene, command)
        else:
            self._halt(scene, command)

    def _stamp(self, scene: Scene, key: PodKey) -> None:
        """Declare what holds already, under our epoch."""
        job_pod = scene.job_pods[key.job][key.node]
        state = job_pod.state
        assert state is not None
        if state.target is not None:
            mine: Target = replace(state.target, epoch=self._epoch, incarnation=state.incarnation)
        else:
            mine = Stop(self._epoch, state.generation, state.incarnation, reason="a new controller")
        self._declare(scene.now, job_pod, target=mine, is_exact=False)

    def _try(self, scene: Scene, command: Try) -> None:
        """Declare what runs already, and that it shall have tried its checkpoint."""
        state = scene.job_pods[command.key.job][command.key.node].state
        assert state is not None
        assert isinstance(state.target, Run)
        trying = replace(state.target, epoch=self._epoch, trial=command.number)
        # Not by _declare(), which would note the SideCar's own report as our exact command.
        self._dialer.declare(command.key, trying)

    def _halt(self, scene: Scene, command: Halt) -> None:
        status = scene.entries[command.key.job].status
        job_pod = scene.job_pods[command.key.job][command.key.node]
        assert job_pod.state is not None
        known = job_pod.told.generation if job_pod.told is not None else job_pod.state.generation
        # A SideCar that is to leave may have got a command to stop, or to run, in this generation.
        generation = max(status.stop_generation, known + command.leave)
        if command.leave:
            self.untold.discard((command.key.job, job_pod.booking))
        self._declare(
            scene.now,
            job_pod,
            target=Stop(
                self._epoch,
                generation,
                job_pod.state.incarnation,
                checkpoint=command.checkpoint,
                leave=command.leave,
                coming=0 if command.leave else _count_coming(scene, command.key),
                reason=status.message[:LONGEST_REASON],
            ),
        )

    def begin(self, scene: Scene, command: Begin) -> None:
        """Send the SideCars of a job the parts of one start."""
        entry = scene.entries[command.job]
        runs = self._runs(scene, entry)
        # All parts are made at once and kept: those that are sent in later cycles name the same
        # peers and ports, even if a pod has another address by then.
        self.begun[command.job] = Begun(entry.status.run_generation, runs)
        for node in command.nodes:
            job_pod = scene.job_pods[command.job][node]
            self.untold.discard((command.job, job_pod.booking))
            self._declare(scene.now, job_pod, target=runs[node])

    def _declare(
        self, now: float, job_pod: JobPod, *, target: Target, is_exact: bool = True
    ) -> None:
        """Remember the command before the pod can have got it, and send it."""
        pod = (job_pod.key.job, job_pod.booking)
        known = self.commanded.get(pod)
        if known is not None and known.start != job_pod.pod.start:
            # Another start of the container got none of these commands, and holds no GPU by them.
            known = None
        gpus = known.gpus if known is not None else frozenset[str]()
        if is_exact and isinstance(target, Run):
            gpus = gpus.union(target.gpus)
        if known is None or target.term >= known.target.term:
            is_first = known is None or target.term > known.target.term
            restarts = _restarts_of(known, target, now=now)
            is_given_time = is_first or (known is not None and not known.is_for(target.incarnation))
            at = now if known is None or is_given_time else known.at
            self.commanded[pod] = Commanded(
                target, at, gpus, is_exact=is_exact, restarts=restarts, start=job_pod.pod.start
            )
        self._dialer.declare(job_pod.key, target)

    def _runs(self, scene: Scene, entry: Entry) -> dict[NodeName, Run]:
        """Return the part of the job's run for each of its containers; it is the same in each cycle."""
        begun, placement = self.begun.get(entry.job.id), entry.status.placement
        assert placement is not None
        if begun is None or begun.generation != entry.status.run_generation:
            return self._make_runs(scene, entry, placement=placement)
        runs = dict(begun.runs)
        for node, run in runs.items():
            state = scene.job_pods[entry.job.id][node].state
            assert state is not None
            # A container that has restarted refuses a command to its former incarnation.
            runs[node] = replace(run, incarnation=state.incarnation)
        return runs

    def _make_runs(
        self, scene: Scene, entry: Entry, *, placement: Placement
    ) -> dict[NodeName, Run]:
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
            state = scene.job_pods[job.id][part.node].state
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
                # Judged before this decision, so what ended there is known not to be the end of the job.
                ended=state.held_generation if state.phase is SideCarPhase.EXITED else 0,
                reason=entry.status.message[:LONGEST_REASON],
            )
            offset += counts[part.node]
        return runs


def _restarts_of(known: Commanded | None, target: Target, *, now: float) -> tuple[float, ...]:
    if known is None:
        return ()
    lately = tuple(at for at in known.restarts if at > now - RESTARTS_S)
    return lately if known.target.incarnation == target.incarnation else (*lately, now)


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


def gpu_names(node: Node, numbers: Iterable[int]) -> tuple[str, ...]:
    """
    Name GPUs by UUID, or by number where that is not known.

    When a GPU of a lower number dies, a number means another device. A SideCar gives its training the names
    that the job wants (``gpuIds``).
    """
    uuids = {gpu.index: gpu.uuid for gpu in node.gpus if gpu.uuid}
    return tuple(uuids.get(number, str(number)) for number in numbers)


def _learning_rate_factor(entry: Entry) -> float:
    """The linear rule: a batch that is twice as large is learnt from twice as fast."""
    own, now = entry.job.training.batch_size, entry.status.batch_size
    return now / own if now and own else 1.0


class Actor:
    """Books, launches, says. One for the life of a controller."""

    def __init__(
        self, platform: Platform, dialer: Dialer, *, epoch: int, clock: Callable[[], float]
    ) -> None:
        self._dialer = dialer
        self._followed: dict[PodKey, Address] = {}
        self._absent: dict[PodKey, Absence] = {}
        """Pods that cannot be dialled."""
        self._requests = PodRequests(platform, clock)
        self._commander = Commander(platform, dialer, epoch=epoch)

    # --- what is remembered

    @property
    def begun(self) -> Mapping[JobId, Begun]:
        """The starts of jobs that we have commanded."""
        return self._commander.begun

    @property
    def commanded(self) -> Mapping[tuple[JobId, Booking], Commanded]:
        """The commands that we sent to pods."""
        return self._commander.commanded

    def has_asked(self, job: JobId, booking: Booking) -> bool:
        """Whether we have asked for this pod, or are just doing so."""
        return self._requests.has_asked((job, booking))

    def is_fresh(self, job: JobId, booking: Booking) -> bool:
        """Whether we booked this pod and have told it nothing to run."""
        return (job, booking) in self._commander.untold

    def refusal(self, job: JobId, booking: Booking) -> str:
        """Why the platform would not even take the order for this pod; empty if it did."""
        return self._requests.refusal((job, booking))

    def contact(self, key: PodKey) -> Contact:
        """Return what is known of a SideCar; where it has no address, this says since when."""
        contact = self._dialer.contact(key)
        absence = self._absent.get(key)
        return contact if absence is None else absence.show(contact)

    def keep_up(
        self, entries: Mapping[JobId, Entry], addresses: Mapping[PodKey, Address], *, now: float
    ) -> None:
        """Speak to these SideCars and to no others, and remember nothing of what is gone."""
        last: dict[PodKey, Contact] = {}
        for key in self._followed.keys() - addresses.keys():
            last[key] = self._dialer.contact(key)
            self._dialer.forget(key)
        for key, address in addresses.items():
            if self._followed.get(key) != address:
                self._dialer.follow(key, address)
        self._followed = dict(addresses)
        booked = {(job, pod) for job, entry in entries.items() for pod in entry.status.pods}
        absent = {PodKey(job, pod.node) for job, pod in booked} - addresses.keys()
        # While a pod has no address, its silence counts from the cycle that first saw it so.
        self._absent = {
            key: self._absent.get(key) or Absence(now, last.get(key, NO_CONTACT)) for key in absent
        }
        self._requests.keep(booked, entries)
        self._commander.keep(booked, entries.keys())

    # --- what is recorded before it is done

    def bookings(self, commands: Iterable[Command], scene: Scene) -> dict[JobId, Status]:
        """Say which statuses have to be recorded before the commands are carried out."""
        statuses: dict[JobId, Status] = {}
        for command in commands:
            if isinstance(command, Book | Unbook | Begin):
                # Several commands about one job add to one status, because only one is recorded.
                status = statuses.get(command.job, scene.entries[command.job].status)
                statuses[command.job] = _after(status, command, now=scene.now)
        return statuses

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
        Do it. ``scene`` holds the statuses as they were recorded, bookings included.

        Pods are asked for in ``turns``; those that are given none are left for the next look. This number
        of pods may still be in creation when it returns; see :meth:`finish`.
        """
        launch = partial(self._requests.begin_launch, scene.now, slots)
        slow: list[Callable[[], Awaitable[None]]] = []
        for command in commands:
            match command:
                case Stamp() | Halt() | Try():
                    quarantine.attempt(command.key.job, self._commander.say, scene, command)
                case Begin():
                    quarantine.attempt(command.job, self._commander.begin, scene, command)
                case Book():
                    entry = scene.entries[command.job]
                    new = [pod for pod in entry.status.pods if pod.node in command.nodes]
                    self._commander.untold.update((command.job, pod) for pod in new)
                    for pod in new:
                        launch(entry, pod)
                case Launch():
                    entry = scene.entries[command.key.job]
                    launch(entry, _booking(entry, command.key.node))
                case Remove():
                    slow.append(partial(self._remove, scene, command))
                case Forget():
                    slow.append(partial(self._requests.forget, scene.now, command.job))
                case Unbook():
                    pass  # Was recorded, and there is nothing left to do.
        await do_all(act() for act in slow)
        await self._requests.wait_until_few(trailing)

    def check(self) -> None:
        """Raise :class:`Fenced` if it is known by now that we do not lead any more."""
        self._requests.check()

    async def finish(self) -> None:
        """Wait until all is done that was begun; raises :class:`Fenced` if we do not lead any more."""
        await self._requests.wait_until_few(0)

    async def end(self) -> None:
        """Do nothing any more."""
        await self._requests.end()

    async def _remove(self, scene: Scene, command: Remove) -> None:
        entry = scene.entries[command.key.job]
        booking = _booking(entry, command.key.node)
        if await self._requests.remove(scene, command, booking) and not command.is_needed:
            # That it ends now says nothing about whether the job can be started there.
            self._commander.untold.discard((command.key.job, booking))


def _after(status: Status, command: Book | Unbook | Begin, *, now: float) -> Status:
    """Say what has to be recorded before this is done."""
    match command:
        case Book():
            return status.with_pods(command.nodes, now)
        case Unbook():
            return status.without_pods(command.nodes, ended=command.ended)
        case Begin():
            return status.with_used(command.nodes)


def _booking(entry: Entry, node: NodeName) -> Booking:
    return next(pod for pod in entry.status.pods if pod.node == node)
