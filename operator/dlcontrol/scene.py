"""
Everything that is known at one instant, put side by side: what was decided about each job, what
the platform says of its pods, and what their SideCars said last.

And what follows from it about GPUs (:meth:`Scene.may_hold`): which ones a job *may* hold. Until a
SideCar has accepted the epoch of this controller, a command of a former one may still be on its
way to it; until then it may hold whatever was ever decided for it there and not seen released.
From then on only we can make it hold anything, so what it says is exact, even if it is silent now.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from dlcontrol.platforms import Entry, Pod, PodKey, PodPhase
from dlcontrol.records import Booking
from dlcore.model import GpuRef, JobId, Mechanism, Node, NodeName
from dlwire.messages import Phase as SideCarPhase
from dlwire.messages import Run, State, Target


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


@dataclass(frozen=True, slots=True)
class Seat:
    """A pod of a job, as all three see it."""

    key: PodKey
    booking: Booking
    pod: Pod
    contact: Contact = NO_CONTACT
    fresh: bool = False
    """Whether this controller launched it and has told it nothing yet."""

    @property
    def state(self) -> State | None:
        return self.contact.state

    def is_stamped(self, epoch: int) -> bool:
        """Whether only this controller can command it any longer."""
        return self.state is not None and self.state.epoch == epoch

    @property
    def is_living(self) -> bool:
        """Whether processes of the job may live in it, as far as it is known exactly."""
        if self.pod.phase is PodPhase.ENDED:
            return False
        if self.state is None:
            return not self.fresh
        return not self.state.released or bool(self.contact.coming)

    @property
    def is_leaving(self) -> bool:
        """Whether its SideCar has been told to end, and will take no more orders."""
        if self.pod.phase is PodPhase.ENDED:
            return True
        declared = self.contact.declared
        told = declared is not None and not isinstance(declared, Run) and declared.leave
        return told or (self.state is not None and self.state.leaving)

    @property
    def phase(self) -> SideCarPhase | None:
        return self.state.phase if self.state is not None else None

    def has_begun(self, generation: int) -> bool:
        """Whether it has accepted to run this generation, and is that start of the container."""
        return self.state is not None and self.state.generation >= generation

    def is_warm(self, deadline_s: float, now: float) -> bool:
        """Whether its spare interpreters are ready, or have had the time to be."""
        if self.state is None:
            return False
        warmth = self.state.warmth
        return warmth.ready >= warmth.wanted or now - self.contact.first_seen >= deadline_s


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
    begun: Mapping[JobId, tuple[int, Mapping[NodeName, str]]] = field(default_factory=dict)
    """Of jobs that this controller told to run: which generation, in which incarnations."""

    def seats_of(self, job: JobId) -> Mapping[NodeName, Seat]:
        """The pods of a job, by their nodes."""
        return self.seats.get(job, {})

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
        """Which GPUs each job may hold."""
        return {job: frozenset(self._iter_held(job)) for job in self.entries}

    @cached_property
    def holders(self) -> Mapping[GpuRef, tuple[JobId, ...]]:
        """Who may hold each GPU. Several may where not all is known; then it is nobody's to give."""
        holders: dict[GpuRef, tuple[JobId, ...]] = {}
        for job, refs in self.held.items():
            for ref in refs:
                holders[ref] = (*holders.get(ref, ()), job)
        return holders

    def is_free_for(self, job: JobId, ref: GpuRef) -> bool:
        """Whether it is proven that no other job holds this GPU."""
        return all(holder == job for holder in self.holders.get(ref, ()))

    def _iter_held(self, job: JobId) -> Iterator[GpuRef]:
        for seat in self.seats_of(job).values():
            yield from self.may_hold(seat)

    def may_hold(self, seat: Seat) -> frozenset[GpuRef]:
        """Which GPUs processes of this pod may use, now or by what is on its way to it."""
        if seat.pod.phase is PodPhase.ENDED:
            return frozenset()
        if seat.state is None and seat.fresh:
            return frozenset()
        everything = self._everything(seat)
        if not seat.is_stamped(self.epoch) and not seat.fresh:
            return everything
        named = set(seat.state.held if seat.state is not None else ())
        for run in seat.contact.coming:
            # It waits for the end of what is held, and then takes these without asking again.
            named.update(run.gpus)
        numbers = [self._number(seat.key.node, name) for name in named]
        known = frozenset(GpuRef(seat.key.node, n) for n in numbers if n is not None)
        return known if None not in numbers else known | everything

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

    def _number(self, node: NodeName, name: str) -> int | None:
        """The number of a GPU that a SideCar names by index or UUID."""
        if name.isdigit():
            return int(name)
        there = self.nodes.get(node)
        gpus = there.gpus if there is not None else ()
        return next((gpu.index for gpu in gpus if gpu.uuid == name), None)
