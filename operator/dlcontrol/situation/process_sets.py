"""
The latest start of a job's processes, and whether it is whole.

A start is all processes of a job that were begun together, known by the generation on the wire.
Some of its containers may be other incarnations by now, or gone; then the processes in the others
wait for them for ever. Nothing of a container says so: it is seen by who is missing.
"""

from functools import cached_property

from dlcontrol.situation.ports import Entry
from dlcontrol.situation.scene import Scene, Seat
from dlcore.model import Phase
from dlwire.messages import Run


class Latest:
    """That of one job, in one scene."""

    def __init__(self, scene: Scene, entry: Entry) -> None:
        self._scene = scene
        self._entry = entry
        self._status = entry.status
        self._present = [
            seat for seat in scene.seats_of(entry.job.id).values() if not seat.has_ended
        ]
        self.seats = scene.latest_start(entry.job.id)
        """Where it is, whatever became of it there."""
        self.generation = self.seats[0].start if self.seats else 0
        """0: nothing was ever started, as far as anybody knows."""

    @cached_property
    def containers(self) -> int:
        """Over how many it is, as far as anybody knows."""
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
        Whether a container was told something else since, although this is the start to be.

        The stamp of a new controller does that if it overtakes the news of what the former one
        had begun. As a generation is one start of all processes, another one is needed.
        """
        return self.generation == self._status.run_generation and any(
            not seat.has_begun(self.generation) and not seat.is_leaving for seat in self.seats
        )

    @property
    def foreign_generation(self) -> int:
        """The newest that a pod of the job was told, if that is newer than what was decided, or 0."""
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
