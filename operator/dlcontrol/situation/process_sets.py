"""
The latest start of a job's processes, and whether it is whole.

A start is all processes of a job that were begun together, known by the generation on the wire. Some of its
containers may be other incarnations by now, or gone; then the processes in the others wait for them for
ever. Nothing of a container says so: the missing containers show it.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from dlcontrol.situation.ports import Entry
from dlcontrol.situation.scene import Scene, Seat
from dlcontrol.situation.status import Status
from dlcore.model import GpuRef, JobId, NodeName, Phase, Placement
from dlwire.messages import Phase as SideCarPhase
from dlwire.messages import Run


class Latest:
    """That of one job, in one scene."""

    def __init__(self, scene: Scene, entry: Entry, *, with_ended: bool = False) -> None:
        self._scene = scene
        self._entry = entry
        self._status = entry.status
        self._present = [
            seat for seat in scene.seats_of(entry.job.id).values() if not seat.has_ended
        ]
        self.seats = scene.latest_start(entry.job.id, with_ended=with_ended)
        """The nodes of the process set, also where it has ended."""
        self.generation = self.seats[0].start if self.seats else 0
        """0: as far as the controller knows, the job never started."""

    @cached_property
    def containers(self) -> int:
        """Over how many pods it is spread, as far as the controller knows."""
        for seat in self.seats:
            target = seat.state.target if seat.state is not None else None
            if isinstance(target, Run) and target.generation == self.generation:
                return len(target.peers)
        begun = self._scene.begun.get(self._entry.job.id)
        if begun is not None and self.generation == begun.generation:
            return len(begun.runs)
        if self.generation == self._status.running:
            return self._status.containers
        placement = self._status.placement
        if self.generation == self._status.run_generation and placement is not None:
            return len(placement.nodes)
        return len(self.seats)

    @property
    def is_incomplete(self) -> bool:
        """Whether some of it is gone and will not come, so that a new start is needed."""
        wanted = self._status.run_generation
        if self._status.phase is Phase.RUNNING and self.generation < wanted:
            # Its container is another one by now, and nothing lives of what was running.
            return not any(_is_told_to_run(seat, wanted) for seat in self._present)
        if not self.seats or self.generation <= self._status.broken:
            return False
        joining = [
            seat
            for seat in self._present
            if seat.start < self.generation and _is_told_to_run(seat, self.generation)
        ]
        is_hanging = any(seat.is_living for seat in self.seats) or self.generation == wanted
        return is_hanging and len(self.seats) + len(joining) < self.containers

    @property
    def is_undone(self) -> bool:
        """
        Whether a container has got another command since, although this is the start to be.

        The stamp of a new controller does that if it overtakes the news of what the former one
        had begun. As a generation is one start of all processes, another one is needed.
        """
        return self.generation == self._status.run_generation and any(
            not seat.has_begun(self.generation) and not seat.is_leaving for seat in self.seats
        )

    @property
    def foreign_generation(self) -> int:
        """The newest generation of a command to a pod of the job, if it is newer than the decision, or
        0."""
        if self._status.placement is None:
            return 0
        told = (
            seat.state.generation
            for seat in self._present
            if seat.state is not None and not seat.is_leaving
        )
        newest = max(told, default=0)
        return newest if newest > self._status.run_generation else 0


def _is_told_to_run(seat: Seat, generation: int) -> bool:
    return isinstance(seat.told, Run) and seat.told.generation == generation


@dataclass(frozen=True, slots=True)
class ProcessSet:
    """Processes that were started together, all of which live, and of which nothing else is asked."""

    generation: int
    gpus: frozenset[GpuRef]
    batch_size: int
    is_running: bool
    """Whether all of them have become the user's program."""

    def adopted_by(self, status: Status, held: frozenset[GpuRef]) -> Status:
        """Let the job, that was just given what they have, go on with them; ``held`` is all it may hold."""
        return replace(status, adopted=self.generation, leftover=held.difference(self.gpus))


def find_undisturbed(scene: Scene, job: JobId) -> ProcessSet | None:
    """The present start of the job's processes, if it is whole and may go on as it is."""
    living = [seat for seat in scene.seats_of(job).values() if seat.is_living]
    runs: list[Run] = []
    for seat in living:
        state = seat.state
        if state is None or not isinstance(state.target, Run) or seat.is_waited_for:
            return None
        is_whole = state.phase in _WHOLE and state.held_generation == state.generation
        if not is_whole or seat.contact.coming or not seat.is_stamped(scene.epoch):
            return None
        runs.append(state.target)
    if not runs or len({run.generation for run in runs}) > 1 or len(runs) < len(runs[0].peers):
        return None
    if runs[0].generation <= scene.entries[job].status.broken:
        return None
    gpus = frozenset().union(*map(scene.may_hold, living))
    is_running = all(seat.phase is SideCarPhase.RUNNING for seat in living)
    return ProcessSet(runs[0].generation, gpus, runs[0].batch_size, is_running)


def placement_of(scene: Scene, start: ProcessSet) -> Placement | None:
    """Where these processes train, as a decision would say it; none if a node of it is not there."""
    numbers: dict[NodeName, list[int]] = {}
    for ref in start.gpus:
        numbers.setdefault(ref.node, []).append(ref.number)
    nodes = [scene.nodes.get(name) for name in numbers]
    kinds = {node.gpu_type for node in nodes if node is not None}
    if None in nodes or len(kinds) != 1:
        return None
    return Placement.of(numbers, kinds.pop())


_WHOLE = frozenset({SideCarPhase.STARTING, SideCarPhase.RUNNING})
