"""
What to do next, so that every job comes to have the GPUs that were decided for it: the paper's
coordinator, as a function.

It looks at one :class:`~dlcontrol.scene.Scene` and says what may be done now. Nothing is remembered
from one look to the next, so that a controller that was killed and started again, a command that
was lost and a decision that was overtaken by a newer one need no code of their own: whoever looks
again sees what is left to do. Everything it says is a declaration, and harmless when said twice.

In place, a newcomer's pods start at once, while its victims still train; when they are ready, the
victims are told to run with what is left to them, or to stop. A job that grows trains on until its
new GPUs are free and its pods on new nodes ready. With the mechanism ``recreate`` a change ends the
job's pods, and new ones are asked for when all their GPUs are free.

A job over several containers changes as one: all are told to stop, and only when each of them has
released everything are all told to run.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dlcontrol.platforms import Entry, PodKey, PodPhase
from dlcontrol.scene import Scene, Seat
from dlcore.model import GpuRef, JobId, Mechanism, NodeName, Placement


@dataclass(frozen=True, slots=True)
class Stamp:
    """Declare again what a SideCar does already, under our epoch, so that it obeys only us."""

    key: PodKey


@dataclass(frozen=True, slots=True)
class Book:
    """Ask for pods on these nodes."""

    job: JobId
    nodes: tuple[NodeName, ...]


@dataclass(frozen=True, slots=True)
class Unbook:
    """Forget the pods on these nodes: their end is proven."""

    job: JobId
    nodes: tuple[NodeName, ...]


@dataclass(frozen=True, slots=True)
class Halt:
    """Tell a SideCar to stop; with ``leave`` it ends then, and its pod with it."""

    key: PodKey
    checkpoint: bool
    leave: bool


@dataclass(frozen=True, slots=True)
class Remove:
    """End a pod that cannot be told anything."""

    key: PodKey
    because: str


@dataclass(frozen=True, slots=True)
class Begin:
    """Tell these SideCars of a job to run the generation that was decided."""

    job: JobId
    nodes: tuple[NodeName, ...]


Command = Stamp | Book | Unbook | Remove | Halt | Begin


def next_commands(scene: Scene) -> list[Command]:
    """Say everything that may be done now."""
    commands: list[Command] = []
    for entry in scene.entries.values():
        commands += _Case(scene, entry).commands()
    return commands


def is_ready(scene: Scene, job: JobId) -> bool:
    """Whether all pods that the job needs could start training at once: initialised, and warm."""
    return _Case(scene, scene.entries[job]).is_ready


class _Case:
    """One job in the scene."""

    def __init__(self, scene: Scene, entry: Entry) -> None:
        self.scene = scene
        self.job = entry.job.id
        self.entry = entry
        self.status = entry.status
        self.seats = scene.seats_of(self.job)
        self.in_place = scene.mechanism is Mechanism.IN_PLACE

    def commands(self) -> Iterator[Command]:
        ended = tuple(n for n, seat in self.seats.items() if seat.pod.phase is PodPhase.ENDED)
        if ended:
            yield Unbook(self.job, ended)
        strangers = [seat for seat in self._present if not seat.is_stamped(self.scene.epoch)]
        for seat in strangers:
            if seat.state is not None and seat.contact.reachable:
                yield Stamp(seat.key)
        yield from self._remove_silent()
        if self.status.placement is None:
            yield from self._go()
        elif all(seat.fresh for seat in strangers):
            # What somebody else's commands may still do has to be known before ours are chosen.
            yield from self._approach(self.status.placement)

    def _remove_silent(self) -> Iterator[Command]:
        """End the pods whose SideCar was silent for too long: what they hold is never freed else."""
        for seat in self._present:
            silent_for = self.scene.now - seat.contact.since
            if (
                seat.pod.phase is PodPhase.UP
                and not seat.contact.reachable
                and silent_for > self.scene.lost_seconds
            ):
                yield Remove(seat.key, f"its SideCar has not answered for {silent_for:.0f} s")

    @property
    def _present(self) -> list[Seat]:
        return [seat for seat in self.seats.values() if seat.pod.phase is not PodPhase.ENDED]

    # --- to nothing

    def _go(self) -> Iterator[Command]:
        """The job has no GPUs any more: its processes stop, and its pods end."""
        if self._is_awaited() and not self._claimants_are_ready():
            return
        yield from self._halt(self._present, staying=())

    def _is_awaited(self) -> bool:
        """Whether it may train on until those are ready who get its GPUs."""
        wanted_gone = self.status.is_final or self.entry.cancelled or self.entry.job.suspend
        begun = any(self._has_heard_of_it(seat) for seat in self._present)
        return self.in_place and not wanted_gone and not begun

    def _has_heard_of_it(self, seat: Seat) -> bool:
        return seat.has_begun(self.status.stop_generation)

    # --- to a placement

    def _approach(self, placement: Placement) -> Iterator[Command]:
        needed = [self.seats.get(node) for node in placement.nodes]
        if all(seat is not None and self._runs(seat) for seat in needed):
            # Where it has left a node, the pod there is of no use any longer.
            extra = [seat for seat in self._present if seat.key.node not in placement.nodes]
            yield from self._halt(extra, staying=())
            return
        if any(seat.is_living for seat in self._present if not self._runs(seat)):
            yield from self._leave_old(placement)
        elif self._may_book(placement):
            missing = tuple(node for node in placement.nodes if node not in self.seats)
            if missing:
                yield Book(self.job, missing)
        if self._may_begin(placement):
            unheard = [n for n in placement.nodes if not self._runs(self.seats[n])]
            yield Begin(self.job, tuple(unheard))

    def _runs(self, seat: Seat) -> bool:
        return seat.has_begun(self.status.run_generation)

    def _leave_old(self, placement: Placement) -> Iterator[Command]:
        """Processes of an earlier generation live: end them when the moment has come."""
        if self.in_place:
            missing = tuple(node for node in placement.nodes if node not in self.seats)
            if missing:
                yield Book(self.job, missing)
        if not self._may_stop(placement):
            return
        if self._can_change_directly(placement):
            yield Begin(self.job, placement.nodes)
        elif self.in_place:
            yield from self._halt(self._present, staying=placement.nodes)
        else:
            yield from self._halt(self._present, staying=())

    def _may_stop(self, placement: Placement) -> bool:
        if not self.in_place or any(self._has_heard_of_it(seat) for seat in self._present):
            return True
        if self._claimants(self._holds - set(placement.refs())):
            return self._claimants_are_ready()
        return self.is_ready and self._gains_are_free(placement)

    def _can_change_directly(self, placement: Placement) -> bool:
        """In one container, "run" alone is enough: its SideCar saves, stops, proves and starts."""
        if not self.in_place or len(placement.nodes) > 1 or len(self._present) > 1:
            return False
        return self._present[0].key.node == placement.nodes[0] and self._may_begin_but_for_living(
            placement
        )

    def _may_begin(self, placement: Placement) -> bool:
        if any(seat.is_living and not self._runs(seat) for seat in self._present):
            return False
        return self._may_begin_but_for_living(placement)

    def _may_begin_but_for_living(self, placement: Placement) -> bool:
        return (
            self.is_ready
            and placement.gpus >= self.status.gang
            and self.scene.now >= self.status.retry_at
            and self._gains_are_free(placement)
        )

    @property
    def is_ready(self) -> bool:
        placement = self.status.placement
        if placement is None:
            return False
        return all(self._is_seat_ready(self.seats.get(node)) for node in placement.nodes)

    def _is_seat_ready(self, seat: Seat | None) -> bool:
        if seat is None or not seat.is_stamped(self.scene.epoch) or seat.is_leaving:
            return False
        if seat.pod.phase is not PodPhase.UP or not seat.contact.reachable:
            return False
        return seat.is_living or seat.is_warm(self.scene.warm_seconds, self.scene.now)

    def _may_book(self, placement: Placement) -> bool:
        """Pods that are granted devices when they start are asked for when these are free."""
        if self.in_place:
            return True
        stale = [seat for seat in self._present if seat.key.node not in placement.nodes]
        return not stale and self._gains_are_free(placement)

    # --- who has what

    @property
    def _holds(self) -> frozenset[GpuRef]:
        return self.scene.held[self.job]

    def _gains_are_free(self, placement: Placement) -> bool:
        return all(self.scene.is_free_for(self.job, ref) for ref in placement.refs())

    def _claimants(self, refs: Iterable[GpuRef]) -> set[JobId]:
        claims = (self.scene.claims.get(ref) for ref in refs)
        return {claimant for claimant in claims if claimant is not None and claimant != self.job}

    def _claimants_are_ready(self) -> bool:
        placement = self.status.placement
        kept = set(placement.refs()) if placement is not None else set()
        return all(is_ready(self.scene, job) for job in self._claimants(self._holds - kept))

    def _halt(self, seats: Sequence[Seat], *, staying: Sequence[NodeName]) -> Iterator[Command]:
        for seat in seats:
            if seat.state is None and seat.pod.phase is PodPhase.PENDING:
                yield Remove(seat.key, "it is not needed any longer")
            elif seat.state is not None and not seat.is_leaving:
                leave = seat.key.node not in staying
                if leave or not self._has_heard_of_it(seat):
                    yield Halt(seat.key, checkpoint=self.status.saves, leave=leave)
