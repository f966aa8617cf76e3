"""
Carries out what :mod:`dlcontrol.coordinating` says, and remembers the little that must be.

Everything here may be done twice. What would be harmful if it were done without being recorded
(a pod that nobody knows of) is recorded first; what is only said to a SideCar follows from what is
recorded, and is said again by whoever looks next.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from dlcontrol.coordinating import Begin, Book, Command, Halt, Remove, Stamp, Unbook
from dlcontrol.platforms import Address, Entry, Platform, PodKey, PodOrder
from dlcontrol.records import Booking, Status
from dlcontrol.scene import Contact, Scene
from dlcore.model import JobId, Node, NodeName, Placement
from dlwire.messages import Peer, Run, Stop, Target


class Dialer(Protocol):
    """Whoever speaks to the SideCars."""

    def follow(self, key: PodKey, address: Address) -> None:
        """Speak to the SideCar of this pod from now on, at this address."""

    def forget(self, key: PodKey) -> None:
        """Do not speak to it any more."""

    def declare(self, key: PodKey, target: Target) -> None:
        """Tell it this until it has heard; whatever it was told before is void."""

    def contact(self, key: PodKey) -> Contact:
        """Say what is known of it."""


class Hands:
    """Books, launches, says. One for the life of a controller."""

    def __init__(self, platform: Platform, dialer: Dialer, epoch: int) -> None:
        self._platform = platform
        self._dialer = dialer
        self._epoch = epoch
        self._followed: dict[PodKey, Address] = {}
        self._untold: set[tuple[JobId, Booking]] = set()
        """Pods that we launched and have told nothing to run."""
        self._begun: dict[JobId, tuple[int, Mapping[NodeName, str]]] = {}

    # --- what is remembered

    @property
    def begun(self) -> Mapping[JobId, tuple[int, Mapping[NodeName, str]]]:
        """Of jobs that we told to run: which generation, in which starts of the containers."""
        return self._begun

    def is_fresh(self, job: JobId, booking: Booking) -> bool:
        """Whether we launched this pod and have told it nothing to run."""
        return (job, booking) in self._untold

    def follow(self, addresses: Mapping[PodKey, Address]) -> None:
        """Speak to these SideCars and to no others."""
        for key in self._followed.keys() - addresses.keys():
            self._dialer.forget(key)
        for key, address in addresses.items():
            if self._followed.get(key) != address:
                self._dialer.follow(key, address)
        self._followed = dict(addresses)

    # --- what is recorded before it is done

    def bookings(self, commands: Iterable[Command], scene: Scene) -> dict[JobId, Status]:
        """Say which statuses have to be recorded before the commands are carried out."""
        statuses: dict[JobId, Status] = {}
        for command in commands:
            if isinstance(command, Book | Unbook):
                status = statuses.get(command.job, scene.entries[command.job].status)
                statuses[command.job] = (
                    status.with_pods(command.nodes)
                    if isinstance(command, Book)
                    else status.without_pods(command.nodes)
                )
        return statuses

    async def carry_out(self, commands: Iterable[Command], scene: Scene) -> None:
        """Do it. ``scene`` holds the statuses as they were recorded, bookings included."""
        for command in commands:
            match command:
                case Book():
                    await self._launch(scene.entries[command.job], command.nodes)
                case Remove():
                    await self._platform.remove(command.key, because=command.because)
                case Stamp():
                    self._stamp(scene, command.key)
                case Halt():
                    self._halt(scene, command)
                case Begin():
                    self._begin(scene, command)
                case Unbook():
                    pass  # Was recorded, and there is nothing left to do.

    async def _launch(self, entry: Entry, nodes: Iterable[NodeName]) -> None:
        for booking in entry.status.pods:
            if booking.node in nodes:
                self._untold.add((entry.job.id, booking))
                await self._platform.launch(PodOrder(entry, booking))

    # --- what is said

    def _stamp(self, scene: Scene, key: PodKey) -> None:
        """Declare what holds already, under our epoch."""
        state = scene.seats[key.job][key.node].state
        assert state is not None
        if state.target is not None:
            mine: Target = replace(state.target, epoch=self._epoch, incarnation=state.incarnation)
        else:
            mine = Stop(self._epoch, state.generation, state.incarnation, reason="a new controller")
        self._dialer.declare(key, mine)

    def _halt(self, scene: Scene, command: Halt) -> None:
        status = scene.entries[command.key.job].status
        state = scene.seats[command.key.job][command.key.node].state
        assert state is not None
        # A SideCar that is to leave may have been told to stop, or to run, in this generation.
        generation = max(status.stop_generation, state.generation)
        if command.leave and generation == state.generation:
            generation += 1
        self._dialer.declare(
            command.key,
            Stop(
                self._epoch,
                generation,
                state.incarnation,
                checkpoint=command.checkpoint,
                leave=command.leave,
                reason=status.message[:1024],
            ),
        )

    def _begin(self, scene: Scene, command: Begin) -> None:
        entry = scene.entries[command.job]
        placement = entry.status.placement
        assert placement is not None
        incarnations = self._incarnations(scene, command, entry.status)
        self._begun[command.job] = (entry.status.run_generation, incarnations)
        for node, run in self._runs(scene, entry, placement, incarnations).items():
            if node in command.nodes:
                booking = scene.seats[command.job][node].booking
                self._untold.discard((command.job, booking))
                self._dialer.declare(PodKey(command.job, node), run)

    def _incarnations(self, scene: Scene, command: Begin, status: Status) -> dict[NodeName, str]:
        generation, known = self._begun.get(command.job, (0, {}))
        incarnations = dict(known) if generation == status.run_generation else {}
        for node, seat in scene.seats[command.job].items():
            if status.placement is not None and node in status.placement.nodes:
                assert seat.state is not None
                incarnations.setdefault(node, seat.state.incarnation)
        return incarnations

    def _runs(
        self, scene: Scene, entry: Entry, placement: Placement, incarnations: Mapping[NodeName, str]
    ) -> dict[NodeName, Run]:
        """Say for each container of the job what it is to run, as part of the whole."""
        job = entry.job
        counts = {
            part.node: len(part.gpus) if job.processes == "perGpu" else 1
            for part in placement.slices
        }
        peers = tuple(
            Peer(self._platform.host_of(PodKey(job.id, node)), count)
            for node, count in counts.items()
        )
        generation = entry.status.run_generation
        port = self._platform.rendezvous_port(job.id, generation, max(counts.values()))
        runs: dict[NodeName, Run] = {}
        offset = 0
        for part in placement.slices:
            runs[part.node] = Run(
                epoch=self._epoch,
                generation=generation,
                incarnation=incarnations[part.node],
                gpus=gpu_names(scene.nodes[part.node], part.gpus, job.gpus.ids),
                rank_offset=offset,
                world_size=sum(counts.values()),
                peers=peers,
                rendezvous_port=port,
                batch_size=entry.status.batch_size or job.training.batch_size,
                learning_rate_factor=_learning_rate_factor(entry),
                reason=entry.status.message[:1024],
            )
            offset += counts[part.node]
        return runs


def gpu_names(node: Node, numbers: Iterable[int], kind: str) -> tuple[str, ...]:
    """Name GPUs as the job wants them named."""
    if kind == "uuid":
        uuids = {gpu.index: gpu.uuid for gpu in node.gpus}
        return tuple(uuids[number] for number in numbers)
    return tuple(str(number) for number in numbers)


def _learning_rate_factor(entry: Entry) -> float:
    """The linear rule: a batch that is twice as large is learnt from twice as fast."""
    own, now = entry.job.training.batch_size, entry.status.batch_size
    return now / own if now and own else 1.0
