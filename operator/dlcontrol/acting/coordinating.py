"""
What to do next, so that every job comes to have the GPUs that were decided for it: the paper's
coordinator, as a function.

It looks at one :class:`~dlcontrol.situation.scene.Scene` and says what may be done now. Nothing is remembered
from one look to the next, so that a controller that was killed and started again, a command that
was lost and a decision that was overtaken by a newer one need no code of their own: whoever looks
again sees what is left to do. Everything it says is a declaration, harmless when said twice; what
was said already and is not answered yet is not said again.

In place, a newcomer's pods start at once, while its victims still train; when they are ready, the
victims are told to run with what is left to them, or to stop. A job that grows trains on until its
new GPUs are free and its pods on new nodes ready. With the mechanism ``recreate`` a change ends the
job's pods, and new ones are asked for when all their GPUs are free.

A job over several containers changes as one: all are told to stop, and only when each of them has
released everything are all told to run. Where its leader alone saves it, the others train on until
it has, and are told then to hurry. What is left of a job whose processes or containers were
lost in part is ended at once, because it only hangs.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from dlcontrol.gpus.visibility import cannot_prove
from dlcontrol.judging import trials
from dlcontrol.judging.coming_up import is_coming_up
from dlcontrol.situation.ports import Entry, PodKey, PodPhase
from dlcontrol.situation.quarantine import Asides
from dlcontrol.situation.scene import Scene, Seat
from dlcore.model import GpuRef, JobId, Mechanism, NodeName, Placement
from dlwire.messages import Phase as SideCarPhase
from dlwire.messages import Run, State, Stop

NAMES_S = 10.0
"""For so long a new SideCar may tell the UUIDs of the GPUs; then they are named by their numbers."""
RENEWAL_S = 300.0
"""So much longer may be silent who only waits for another certificate; a kubelet looks once a minute."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """Declare again what a SideCar does already, under our epoch, so that it obeys only us."""

    key: PodKey


@dataclass(frozen=True, slots=True)
class Book:
    """Have pods on these nodes from now on."""

    job: JobId
    nodes: tuple[NodeName, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """Ask for a pod that is booked; whoever booked it may not have come so far."""

    key: PodKey


@dataclass(frozen=True, slots=True)
class Unbook:
    """Forget the pods on these nodes: their end is proven."""

    job: JobId
    nodes: tuple[NodeName, ...]


@dataclass(frozen=True, slots=True)
class Forget:
    """Forget the job altogether: it has ended, and so have its pods."""

    job: JobId


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
    is_needed: bool = False
    """Whether it should have been there, and another one has to take its place."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Tell these SideCars of a job to run the generation that was decided."""

    job: JobId
    nodes: tuple[NodeName, ...]


@dataclass(frozen=True, slots=True)
class Try:
    """Have a training save itself and go on, to see that its checkpoint works."""

    key: PodKey
    number: int


Command = Try | Stamp | Book | Launch | Unbook | Forget | Remove | Halt | Begin


def next_commands(scene: Scene, asides: Asides | None = None) -> list[Command]:
    """Say everything that may be done now."""
    asides = asides if asides is not None else Asides()
    board = _Board(scene, asides)
    commands: list[Command] = []
    for job, entry in scene.entries.items():
        if job in asides.unwritable.jobs and not _may_just_go(entry):
            continue
        commands += asides.attempt(job, board.commands, job) or ()
    return commands


def _may_just_go(entry: Entry) -> bool:
    """Whether its user wants it gone and it has nothing, so that nothing has to be recorded first."""
    return entry.cancelled and not entry.status.has_anything


def _is_at_rest(entry: Entry) -> bool:
    """Whether there is nothing to do, because it has nothing and shall have nothing."""
    may_be_forgotten = entry.cancelled or entry.status.is_final
    return not entry.status.has_anything and not may_be_forgotten


def is_ready(scene: Scene, job: JobId) -> bool:
    """Whether all pods that the job needs could start training at once: initialised, and warm."""
    return _Board(scene, Asides()).is_ready(job)


class _Board:
    """All jobs of a scene, each looked at once however many others ask about it."""

    def __init__(self, scene: Scene, asides: Asides) -> None:
        self.scene = scene
        self._asides = asides
        self._cases: dict[JobId, _Case] = {}

    def case(self, job: JobId) -> "_Case":
        if job not in self._cases:
            self._cases[job] = _Case(self, self.scene.entries[job])
        return self._cases[job]

    def commands(self, job: JobId) -> list[Command]:
        entry = self.scene.entries[job]
        if _is_at_rest(entry) or is_coming_up(self.scene, entry):
            return []
        return list(self.case(job).commands())

    def is_ready(self, job: JobId) -> bool:
        return self._asides.attempt(job, lambda: self.case(job).is_ready) or False


class _Case:
    """One job in the scene."""

    def __init__(self, board: _Board, entry: Entry) -> None:
        self.board = board
        self.scene = scene = board.scene
        self.job = entry.job.id
        self.entry = entry
        self.status = entry.status
        self.seats = scene.seats_of(self.job)
        there = [seat for seat in self.seats.values() if not seat.has_ended]
        self.present = [seat for seat in there if not seat.untrusted]
        self._untrusted = [seat for seat in there if seat.untrusted]
        self.in_place = scene.mechanism is Mechanism.IN_PLACE

    def commands(self) -> Iterator[Command]:
        ended = tuple(node for node, seat in self.seats.items() if seat.has_ended)
        if ended:
            yield Unbook(self.job, ended)
        if not self.seats:
            if self._is_over:
                yield Forget(self.job)
                return
            if self.status.placement is None:
                return
        strangers = [seat for seat in self.present if not seat.is_stamped(self.scene.epoch)]
        addressed: set[NodeName] = set()
        for command in chain(self._towards_goal(strangers), self._hurry()):
            addressed |= _addressed(command)
            yield command
        for seat in strangers:
            if self._wants_stamp(seat) and seat.key.node not in addressed:
                yield Stamp(seat.key)
        yield from self._remove_silent()
        yield from self._remove_blind()
        for seat in self._untrusted:
            yield Remove(seat.key, f"its SideCar is not trusted: {seat.untrusted}")

    @property
    def _is_over(self) -> bool:
        if self.entry.cancelled:
            return True
        ttl, finished_at = self.entry.job.limits.ttl_seconds_after_finished, self.status.finished_at
        is_old = ttl is not None and finished_at is not None and self.scene.now >= finished_at + ttl
        return self.status.is_final and is_old

    def _towards_goal(self, strangers: list[Seat]) -> Iterator[Command]:
        placement = self.status.placement
        if placement is None:
            yield from self._go()
            return
        wanted = [seat for seat in self.present if seat.key.node in placement.nodes]
        for seat in wanted:
            if not seat.asked and seat.pod.phase is PodPhase.PENDING:
                yield Launch(seat.key)
        if self.entry.problem:
            return  # What its user wants of it now cannot be read.
        if all(seat.fresh for seat in strangers):
            # What somebody else's commands may still do has to be known before ours are chosen.
            yield from self._approach(placement)

    def _wants_stamp(self, seat: Seat) -> bool:
        state = seat.state
        return (
            state is not None
            and seat.contact.reachable
            and not seat.is_waited_for
            and not state.leaving
        )

    def _remove_silent(self) -> Iterator[Command]:
        """End the pods whose SideCar was silent for too long: what they hold is never freed else."""
        for seat in self.present:
            silent_for = self.scene.now - seat.contact.since
            patience = self.scene.lost_seconds
            if seat.contact.outdated:
                patience += RENEWAL_S
            if (
                seat.pod.phase is PodPhase.UP
                and not seat.contact.reachable
                and silent_for > patience
            ):
                because = f"its SideCar has not answered for {silent_for:.0f} s"
                yield Remove(seat.key, because, is_needed=True)

    def _remove_blind(self) -> Iterator[Command]:
        """End the pods that are to end and cannot prove it, for want of GPUs that they could ask."""
        for seat in self.present:
            if seat.pod.phase is PodPhase.UP and seat.is_leaving and cannot_prove(seat):
                yield Remove(
                    seat.key,
                    "its GPUs have vanished, so only the end of its own processes is a proof",
                )

    # --- to nothing

    def _go(self) -> Iterator[Command]:
        """The job has no GPUs any more: its processes stop, and its pods end."""
        if self.entry.may_come_back and any(map(self._is_to_be_heard, self.present)):
            return  # Whether it goes on as it was is said when they are.
        trains_on = self._is_awaited() and not self._claimants_are_ready()
        yield from self._halt(
            [seat for seat in self.present if not (trains_on and seat.is_living)], staying=()
        )

    def _is_to_be_heard(self, seat: Seat) -> bool:
        """Whether it is back, and has not yet said what there is of the job, to us alone."""
        is_foreign = self._wants_stamp(seat) and not seat.is_stamped(self.scene.epoch)
        return self.in_place and (is_foreign or self.scene.is_awaited(seat))

    def _is_awaited(self) -> bool:
        """Whether it may train on until those are ready who get its GPUs."""
        may_save = self.status.saves and not self._is_broken
        is_wanted = not self.entry.is_wanted_gone and not self._was_told_to_stop
        return self.in_place and may_save and is_wanted

    @property
    def _was_told_to_stop(self) -> bool:
        """Whether the end of its latest start was begun; then it is brought to its end."""
        latest = max((seat.start for seat in self.present), default=0)
        return any(
            self._knows_of_the_stop(seat) for seat in self.present if 0 < latest == seat.start
        )

    def _knows_of_the_stop(self, seat: Seat) -> bool:
        return seat.told is not None and seat.told.generation >= self.status.stop_generation

    @property
    def _is_broken(self) -> bool:
        """Whether what lives of it hangs, because some of it was lost."""
        return any(seat.is_living and self._has_lost_peers(seat) for seat in self.present)

    def _has_lost_peers(self, seat: Seat) -> bool:
        # Of what is on its way to it, it may have begun something since we heard of it.
        return 0 < seat.start <= self.status.broken and not seat.contact.coming

    # --- to a placement

    def _approach(self, placement: Placement) -> Iterator[Command]:
        useless = [seat for seat in self.present if self._is_useless(seat, placement)]
        yield from self._halt(useless, staying=())
        if self._may_book(placement, useless):
            missing = tuple(node for node in placement.nodes if node not in self.seats)
            if missing:
                yield Book(self.job, missing)
        if self._all_run(placement):
            yield from self._try()
            return
        old = [seat for seat in self.present if seat.is_living and not self._runs(seat)]
        if not old:
            if self._may_begin(placement):
                yield from self._begin(placement)
        elif self._may_stop(placement):
            if self._can_change_directly(placement):
                yield from self._begin(placement)
            else:
                stopping = [seat for seat in old if seat not in useless]
                yield from self._halt(stopping, staying=placement.nodes)

    def _try(self) -> Iterator[Command]:
        """Nothing is to be changed, so that the checkpoint can be tried before something is."""
        number = trials.find_due(self.scene, self.entry)
        if not number:
            return
        for seat in trials.find_asked(self.entry.job, self.seats.values()):
            target = seat.state.target if seat.state is not None else None
            is_told = isinstance(target, Run) and target.trial >= number
            if seat.phase is SideCarPhase.RUNNING and seat.contact.reachable and not is_told:
                yield Try(seat.key, number)

    def _runs(self, seat: Seat) -> bool:
        return seat.has_begun(self.status.run_generation)

    def _all_run(self, placement: Placement) -> bool:
        seats = (self.seats.get(node) for node in placement.nodes)
        return all(seat is not None and not seat.has_ended and self._runs(seat) for seat in seats)

    def _is_useless(self, seat: Seat, placement: Placement) -> bool:
        """Whether a pod can end now that has no part in what was decided."""
        if self._is_outdated(seat):
            return True
        if seat.key.node in placement.nodes:
            return False
        return not seat.is_living or self._all_run(placement)

    def _is_outdated(self, seat: Seat) -> bool:
        """Whether it was granted other devices when it started, or is part of what has to change."""
        return not self.in_place and seat.booking.shaped != self.status.shaped

    def _may_book(self, placement: Placement, useless: list[Seat]) -> bool:
        """Pods that are granted devices when they start are asked for when these are free."""
        return self.in_place or (not useless and self._gains_are_free(placement))

    def _begin(self, placement: Placement) -> Iterator[Command]:
        untold = tuple(
            node
            for node in placement.nodes
            if not self._runs(self.seats[node]) and not self._was_told_to_run(self.seats[node])
        )
        if untold:
            yield Begin(self.job, untold)

    def _was_told_to_run(self, seat: Seat) -> bool:
        told = seat.told
        return isinstance(told, Run) and told.generation == self.status.run_generation

    def _may_stop(self, placement: Placement) -> bool:
        """Whether the moment has come to end the processes of an earlier generation."""
        if not self.in_place or self._was_told_to_stop or self._is_broken:
            return True
        if self._claimants(self._holds - set(placement.refs())):
            return self._claimants_are_ready()
        return self.is_ready and self._gains_are_free(placement)

    def _can_change_directly(self, placement: Placement) -> bool:
        """In one container, "run" alone is enough: its SideCar saves, stops, proves and starts."""
        if not self.in_place or len(placement.nodes) > 1 or len(self.present) > 1:
            return False
        return self.present[0].key.node == placement.nodes[0] and self._may_begin(placement)

    def _may_begin(self, placement: Placement) -> bool:
        """Whether nothing but its own living processes is in the way of a new start."""
        return (
            self.is_ready and placement.gpus >= self.status.gang and self._gains_are_free(placement)
        )

    @cached_property
    def is_ready(self) -> bool:
        placement = self.status.placement
        if placement is None or self.scene.now < self.status.retry_at:
            return False
        if self._untrusted or any(seat.pod.phase is PodPhase.LOST for seat in self.present):
            return False  # Nobody could prove that no other process of the job is left.
        return all(self._is_seat_ready(self.seats.get(node)) for node in placement.nodes)

    def _is_seat_ready(self, seat: Seat | None) -> bool:
        if seat is None or seat.is_leaving or self._is_outdated(seat):
            return False
        if not seat.is_stamped(self.scene.epoch):
            return False
        if not seat.contact.reachable or seat.key.node not in self.scene.nodes:
            return False
        if seat.is_living:
            return True
        return seat.is_warm(
            self.scene.warm_seconds, self.scene.now
        ) and not self._names_are_awaited(seat)

    def _names_are_awaited(self, seat: Seat) -> bool:
        """Whether its SideCar may be about to tell what the GPUs that it shall use are called."""
        if self.entry.job.gpus.ids != "uuid" or seat.state is None or seat.state.gpus:
            return False
        is_new = self.scene.now - seat.contact.first_seen < NAMES_S
        return is_new and not all(gpu.uuid for gpu in self.scene.nodes[seat.key.node].gpus)

    # --- who has what

    @property
    def _holds(self) -> frozenset[GpuRef]:
        return self.scene.held_by(self.job)

    def _gains_are_free(self, placement: Placement) -> bool:
        return all(self.scene.is_free_for(self.job, ref) for ref in placement.refs())

    def _claimants(self, refs: Iterable[GpuRef]) -> set[JobId]:
        claims = (self.scene.claims.get(ref) for ref in refs)
        return {claimant for claimant in claims if claimant is not None and claimant != self.job}

    def _claimants_are_ready(self) -> bool:
        placement = self.status.placement
        kept = set(placement.refs()) if placement is not None else set()
        return all(self.board.is_ready(job) for job in self._claimants(self._holds - kept))

    # --- the end of pods and processes

    def _halt(self, seats: Iterable[Seat], *, staying: Iterable[NodeName]) -> Iterator[Command]:
        for seat in seats:
            leaves = seat.key.node not in staying
            if seat.pod.phase is PodPhase.PENDING and not seat.contact.reachable:
                if leaves:
                    yield Remove(seat.key, "it is no longer needed")
            elif seat.state is None or seat.is_leaving:
                continue
            elif leaves or not self._knows_of_the_stop(seat):
                yield Halt(seat.key, checkpoint=self._may_save(seat), leave=leaves)

    def _hurry(self) -> Iterator[Command]:
        """End what waits for the checkpoint of the job's leader, as soon as that is over."""
        if self.entry.job.checkpoint.to != "leader" or any(map(_may_be_saving, self.present)):
            return
        for seat in self.present:
            stop = _waits_with(seat)
            if stop is not None and seat.is_stamped(self.scene.epoch):
                yield Halt(seat.key, checkpoint=False, leave=stop.leave)

    def _may_save(self, seat: Seat) -> bool:
        wanted = self.status.saves and not self.entry.cancelled
        # Until it obeys us alone, it may have begun something newer at the word of another.
        is_known = seat.is_stamped(self.scene.epoch)
        return wanted and not (is_known and self._has_lost_peers(seat))


def _leads(state: State) -> bool:
    """Whether the first process of the whole job was started there last."""
    return any(process.rank == 0 for process in state.processes)


def _may_be_saving(seat: Seat) -> bool:
    """Whether the leader may live there, with a checkpoint still to make."""
    state = seat.state
    if not seat.is_living:
        return False
    return state is None or (_leads(state) and state.phase in _MAY_SAVE)


def _waits_with(seat: Seat) -> Stop | None:
    """Return the stop with which a SideCar waits for a leader elsewhere, if it can be hurried."""
    state, declared = seat.state, seat.contact.declared
    if state is None or not isinstance(state.target, Stop) or not seat.contact.reachable:
        return None
    # Of one term with the first word, so that by the term it cannot be told whether it was said.
    is_said = isinstance(declared, Stop) and not declared.checkpoint
    is_waiting = state.phase is SideCarPhase.CHECKPOINTING and not _leads(state)
    # One that was interrupted takes no orders.
    is_ours = state.leaving == state.target.leave and not is_said
    return state.target if is_waiting and is_ours else None


_MAY_SAVE = frozenset({SideCarPhase.STARTING, SideCarPhase.RUNNING, SideCarPhase.CHECKPOINTING})


def _addressed(command: Command) -> set[NodeName]:
    """Which SideCars of the job a command tells something."""
    match command:
        case Halt() | Remove():
            return {command.key.node}
        case Begin():
            return set(command.nodes)
        case _:
            return set()
