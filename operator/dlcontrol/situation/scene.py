"""
Everything that is known at one instant, put side by side: what was decided about each job, what
the platform says of its pods, and what their SideCars said last.

And what follows from it about GPUs (:meth:`Scene.may_hold`): which ones a job *may* hold. Until a
SideCar has accepted the epoch of this controller, a command of a former one may still be on its
way to it; until then it may hold whatever was ever decided for it there and not seen released.
From then on only we can make it hold anything, so what it says is exact, even if it is silent now.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from dlcontrol.situation.ports import (
    Entry,
    Machine,
    Pod,
    PodKey,
    PodPhase,
)
from dlcontrol.situation.status import Booking, Status
from dlcore.model import GpuRef, JobId, Mechanism, Node, NodeName, Placement
from dlcore.placement.needs import Needs
from dlwire.messages import Gpu, Run, State, Stop, Target
from dlwire.messages import Phase as SideCarPhase

SILENT_S = 10.0
"""A SideCar that was silent for so long is not counted on to release anything soon."""


class Doubt(NamedTuple):
    """What a SideCar says that is not taken in, because only another controller could have made it so."""

    epoch: int
    installation: str = ""

    @property
    def sentence(self) -> str:
        """Say it, as the reason of what follows from it."""
        whose = f" of another installation ({self.installation})" if self.installation else ""
        return (
            f"it says that it obeys another controller{whose} in epoch {self.epoch}, and none leads"
        )


@dataclass(frozen=True, slots=True)
class Contact:
    """What the controller knows of a SideCar by speaking to it."""

    state: State | None = None
    """What it said last."""
    reachable: bool = False
    since: float = 0.0
    """Since when it is reachable, or not."""
    first_seen: float = 0.0
    """When this incarnation was first spoken to."""
    declared: Target | None = None
    """What it was told last, by this controller and in this incarnation."""
    overtaken: tuple[Run, ...] = ()
    """What it was told before that, and may still be on its way: to say something newer does not
    call back what was said."""
    problem: str = ""
    """Why it cannot be spoken to, or what it does not accept and why."""
    outdated: bool = False
    """It is there, and cannot be spoken to because its certificate is over."""
    doubt: Doubt | None = None
    """Why what it says now is not taken in; ``state`` is what it said before."""

    @property
    def unanswered(self) -> tuple[Run, ...]:
        """The runs that it may accept yet, without our having heard of it."""
        state = self.state
        if state is None:
            return ()
        return tuple(
            told
            for told in (*self.overtaken, self.declared)
            if isinstance(told, Run)
            and told.incarnation == state.incarnation
            and told.term > state.term
        )

    @property
    def coming(self) -> tuple[Run, ...]:
        """The runs that may begin in it without anything more being said."""
        target = self.state.target if self.state is not None else None
        if self.state is None or not isinstance(target, Run):
            return self.unanswered
        has_begun = target.generation == self.state.held_generation
        return self.unanswered if has_begun else (target, *self.unanswered)


NO_CONTACT = Contact()


@dataclass(frozen=True)
class Seat:
    """A pod of a job, as all three see it; the same object as long as all of that is the same."""

    key: PodKey
    booking: Booking
    pod: Pod
    contact: Contact = NO_CONTACT
    asked: bool = False
    """Whether this controller has asked for the pod; its predecessor may not have come so far."""
    fresh: bool = False
    """Whether this controller booked it and has told it nothing to run: nobody else can have."""
    untrusted: str = ""
    """Why nothing that its SideCar says counts any more; its pod is ended, and only that is a proof."""
    claimed: frozenset[str] = frozenset()
    """GPUs that an untrusted one may hold besides what is recorded, by its own names for them."""

    @property
    def state(self) -> State | None:
        return None if self.untrusted else self.contact.state

    @cached_property
    def is_coming_up(self) -> bool:
        """Whether this controller has asked for it, and can tell it nothing yet."""
        is_pending = self.pod.phase is PodPhase.PENDING and not self.contact.reachable
        return (
            not self.untrusted and is_pending and self.asked and self.fresh and self.state is None
        )

    @property
    def is_known(self) -> bool:
        """Whether it was heard of since it can be reached, or nobody has told it anything yet."""
        return self.state is not None or self.fresh

    def is_stamped(self, epoch: int) -> bool:
        """Whether only this controller can command it any longer."""
        return self.state is not None and self.state.epoch == epoch

    @cached_property
    def has_ended(self) -> bool:
        """Whether it is proven that no process of it is left, and none will be started."""
        if self.pod.phase is PodPhase.ENDED:
            return True
        state = self.state
        return self.pod.vanished and state is not None and state.leaving and state.released

    @cached_property
    def is_living(self) -> bool:
        """Whether processes of the job may live in it, as far as it is known exactly."""
        if self.has_ended:
            return False
        if self.state is None:
            return not self.fresh
        return not self.state.released or bool(self.contact.coming)

    @cached_property
    def told(self) -> Target | None:
        """The newest that it was told, whether it has heard of it or not."""
        declared, state = self.contact.declared, self.state
        if state is None:
            return None
        if declared is not None and declared.incarnation == state.incarnation:
            return declared if declared.term > state.term else state.target
        return state.target

    @property
    def is_waited_for(self) -> bool:
        """Whether it has not answered yet to what it was told."""
        return self.state is not None and self.told is not self.state.target

    @cached_property
    def is_leaving(self) -> bool:
        """Whether its SideCar has been told to end, and will take no more orders."""
        told = self.told
        if self.has_ended or (isinstance(told, Stop) and told.leave):
            return True
        return self.state is not None and self.state.leaving

    @property
    def phase(self) -> SideCarPhase | None:
        return self.state.phase if self.state is not None else None

    @property
    def start(self) -> int:
        """The generation of the processes that were started last in it; 0: none ever were."""
        return self.state.held_generation if self.state is not None else 0

    def has_begun(self, generation: int) -> bool:
        """Whether it runs this generation or did so last, and was told nothing newer."""
        state = self.state
        return (
            state is not None and state.generation == generation and isinstance(state.target, Run)
        )

    def has_heard_of(self, generation: int) -> bool:
        """Whether it has accepted this, or anything newer."""
        return self.state is not None and self.state.generation >= generation

    def is_warm(self, deadline_s: float, now: float) -> bool:
        """Whether its spare interpreters are ready, or have had the time to be."""
        if self.state is None:
            return False
        warmth = self.state.warmth
        return warmth.ready >= warmth.wanted or now - self.contact.first_seen >= deadline_s


@dataclass(frozen=True, slots=True)
class Begun:
    """What the SideCars of a job were told to run by this controller, as parts of one whole."""

    generation: int
    runs: Mapping[NodeName, Run]


@dataclass(frozen=True, slots=True)
class Start:
    """Processes that were started together, all of which live, and of which nothing else is asked."""

    generation: int
    gpus: frozenset[GpuRef]
    batch_size: int
    is_running: bool
    """Whether all of them have become the user's program."""

    def adopted_by(self, status: Status, held: frozenset[GpuRef]) -> Status:
        """Let the job, that was just given what they have, go on with them; ``held`` is all it may hold."""
        return replace(status, adopted=self.generation, leftover=held.difference(self.gpus))


@dataclass(frozen=True)
class Scene:
    """All of it."""

    now: float
    epoch: int
    entries: Mapping[JobId, Entry]
    seats: Mapping[JobId, Mapping[NodeName, Seat]]
    nodes: Mapping[NodeName, Node]
    mechanism: Mechanism = Mechanism.IN_PLACE
    warm_seconds: float = 30.0
    """For how long a newcomer's spare interpreters are waited for."""
    lost_seconds: float = 60.0
    """For how long a SideCar may be silent before its pod is ended."""
    obey_seconds: float = 300.0
    """For how long one that answers may leave undone what it was told, beyond its checkpoint and grace."""
    needs: Mapping[JobId, Needs] = field(default_factory=dict)
    """What pods of a job need of a node besides GPUs, where that is known."""
    begun: Mapping[JobId, Begun] = field(default_factory=dict)
    """What this controller told jobs to run."""
    machines: Mapping[NodeName, Machine] = field(default_factory=dict)
    """What is known of nodes besides their GPUs."""

    def seats_of(self, job: JobId) -> Mapping[NodeName, Seat]:
        """The pods of a job, by their nodes."""
        return self.seats.get(job, {})

    def machine(self, node: NodeName) -> Machine:
        """What is known of a node besides its GPUs."""
        return self.machines.get(node, _UNKNOWN)

    @cached_property
    def holding(self) -> int:
        """How many jobs have pods."""
        return sum(bool(seats) for seats in self.seats.values())

    @cached_property
    def starting(self) -> int:
        """How many jobs have pods that were not heard of yet."""
        return sum(
            any(seat.state is None for seat in seats.values()) for seats in self.seats.values()
        )

    def with_statuses(self, statuses: Mapping[JobId, Status]) -> "Scene":
        """Show the scene with these statuses in it."""
        if not statuses:
            return self
        entries, seats = dict(self.entries), dict(self.seats)
        for job, status in statuses.items():
            entries[job] = replace(entries[job], status=status)
            if job in seats and status.pods != self.entries[job].status.pods:
                booked = set(status.pods)
                seats[job] = {n: seat for n, seat in seats[job].items() if seat.booking in booked}
        return replace(self, entries=entries, seats=seats)

    @cached_property
    def claims(self) -> Mapping[GpuRef, JobId]:
        """Whom every GPU is decided for."""
        claims: dict[GpuRef, JobId] = {}
        for job, entry in self.entries.items():
            if entry.status.placement is not None:
                claims.update(dict.fromkeys(entry.status.placement.refs(), job))
        return claims

    @cached_property
    def held(self) -> Mapping[JobId, frozenset[GpuRef]]:
        """Which GPUs each job may hold that has pods."""
        return {
            job: frozenset().union(*map(self.may_hold, seats.values()))
            for job, seats in self.seats.items()
        }

    def held_by(self, job: JobId) -> frozenset[GpuRef]:
        """Which GPUs this job may hold."""
        return self.held.get(job, frozenset())

    @cached_property
    def holders(self) -> Mapping[GpuRef, tuple[JobId, ...]]:
        """Who may hold each GPU. Several may where not all is known; then it is nobody's to give."""
        holders: dict[GpuRef, tuple[JobId, ...]] = {}
        for job, seats in self.seats.items():
            for ref in frozenset().union(*map(self._occupies, seats.values())):
                holders[ref] = (*holders.get(ref, ()), job)
        return holders

    def _occupies(self, seat: Seat) -> frozenset[GpuRef]:
        """Which GPUs nobody else can be given because of this pod."""
        held = self.may_hold(seat)
        if self.mechanism is Mechanism.RECREATE and not seat.has_ended:
            # They were granted to its container, which has them until it is gone.
            return held | self._everything(seat)
        return held

    def is_free_for(self, job: JobId, ref: GpuRef) -> bool:
        """Whether it is proven that no other job holds this GPU."""
        return all(holder == job for holder in self.holders.get(ref, ()))

    def may_hold(self, seat: Seat) -> frozenset[GpuRef]:
        """Which GPUs processes of this pod may use, now or by what is on its way to it."""
        if seat.has_ended:
            return frozenset()
        if seat.state is None:
            more = self.refs_of(seat, seat.claimed)
            return more if seat.fresh else more | self._everything(seat)
        named = set(seat.state.held)
        for run in seat.contact.coming:
            # It waits for the end of what is held, and then takes these without asking again.
            named.update(run.gpus)
        numbers = {self._number(seat.key.node, name, seat.state) for name in named}
        known = frozenset(GpuRef(seat.key.node, n) for n in numbers if n is not None)
        if None in numbers:
            # It is one of those whose names are not known, or is there no more.
            return known | self._everything(seat) | self._unnamed(seat.key.node)
        is_exact = seat.fresh or seat.is_stamped(self.epoch)
        return known if is_exact else known | self._everything(seat)

    def is_awaited(self, seat: Seat) -> bool:
        """Whether it is back, and about to say what there is of the job."""
        is_back = seat.pod.phase is PodPhase.UP and not seat.is_known and not seat.untrusted
        return is_back and self.now - seat.contact.since < SILENT_S

    def latest_start(self, job: JobId) -> list[Seat]:
        """The pods in which the job's processes were started last, whatever became of them."""
        present = [seat for seat in self.seats_of(job).values() if not seat.has_ended]
        latest = max((seat.start for seat in present), default=0)
        return [seat for seat in present if 0 < latest == seat.start]

    def undisturbed(self, job: JobId) -> Start | None:
        """The present start of the job's processes, if it is whole and may go on as it is."""
        living = [seat for seat in self.seats_of(job).values() if seat.is_living]
        runs: list[Run] = []
        for seat in living:
            state = seat.state
            if state is None or not isinstance(state.target, Run) or seat.is_waited_for:
                return None
            is_whole = state.phase in _WHOLE and state.held_generation == state.generation
            if not is_whole or seat.contact.coming or not seat.is_stamped(self.epoch):
                return None
            runs.append(state.target)
        if not runs or len({run.generation for run in runs}) > 1 or len(runs) < len(runs[0].peers):
            return None
        if runs[0].generation <= self.entries[job].status.broken:
            return None
        gpus = frozenset().union(*map(self.may_hold, living))
        is_running = all(seat.phase is SideCarPhase.RUNNING for seat in living)
        return Start(runs[0].generation, gpus, runs[0].batch_size, is_running)

    def placement_of(self, start: Start) -> Placement | None:
        """Where these processes train, as a decision would say it; none if a node of it is not there."""
        numbers: dict[NodeName, list[int]] = {}
        for ref in start.gpus:
            numbers.setdefault(ref.node, []).append(ref.number)
        nodes = [self.nodes.get(name) for name in numbers]
        kinds = {node.gpu_type for node in nodes if node is not None}
        if None in nodes or len(kinds) != 1:
            return None
        return Placement.of(numbers, kinds.pop())

    def _everything(self, seat: Seat) -> frozenset[GpuRef]:
        """All that was decided for it on this node, and never seen released."""
        entry = self.entries.get(seat.key.job)
        if entry is None:
            return frozenset()
        placement = entry.status.placement
        decided = placement.refs() if placement is not None else ()
        return frozenset(
            ref for ref in (*decided, *entry.status.leftover) if ref.node == seat.key.node
        )

    def recorded_for(self, seat: Seat) -> frozenset[GpuRef]:
        """All GPUs that were decided for its job on its node, and never seen released."""
        return self._everything(seat)

    def refs_of(self, seat: Seat, names: Iterable[str]) -> frozenset[GpuRef]:
        """Which GPUs of its node these names mean; a name that means none is left out."""
        state = seat.contact.state
        if state is None:
            return frozenset()
        found = (self.find_named(seat.key.node, name, state) for name in names)
        return frozenset(ref for ref in found if ref is not None)

    def find_gpu(self, node: NodeName, seen: Gpu) -> GpuRef | None:
        """Which GPU of the node it is that a SideCar there speaks of."""
        for gpu in self.nodes[node].gpus if node in self.nodes else ():
            # A container may number them otherwise, so that only what has no name goes by number.
            if gpu.uuid == seen.uuid if gpu.uuid else gpu.index == seen.index:
                return GpuRef(node, gpu.index)
        return None

    def find_named(self, node: NodeName, name: str, state: State) -> GpuRef | None:
        """Which GPU of the node it is that a SideCar there names; ``state`` is what it said last."""
        number = self._number(node, name, state)
        return None if number is None else GpuRef(node, number)

    def _number(self, node: NodeName, name: str, state: State) -> int | None:
        """The number of a GPU that a SideCar names by UUID, or by index as its own NVML counts."""
        if not name.isdigit():
            return self._numbers.get((node, name))
        index = int(name)
        uuid = next((gpu.uuid for gpu in state.gpus if gpu.index == index), "")
        if not uuid or (node, index) in self._nameless:
            return index
        return self._numbers.get((node, uuid))

    def _unnamed(self, node: NodeName) -> frozenset[GpuRef]:
        """The GPUs of a node whose UUIDs are not known."""
        gpus = self.nodes[node].gpus if node in self.nodes else ()
        return frozenset(GpuRef(node, gpu.index) for gpu in gpus if not gpu.uuid)

    @cached_property
    def _nameless(self) -> frozenset[tuple[NodeName, int]]:
        return frozenset(
            (node.name, gpu.index)
            for node in self.nodes.values()
            for gpu in node.gpus
            if not gpu.uuid
        )

    @cached_property
    def _numbers(self) -> Mapping[tuple[NodeName, str], int]:
        return {
            (node.name, gpu.uuid): gpu.index for node in self.nodes.values() for gpu in node.gpus
        }


_UNKNOWN = Machine()
_WHOLE = frozenset({SideCarPhase.STARTING, SideCarPhase.RUNNING})
