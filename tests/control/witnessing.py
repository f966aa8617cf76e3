"""
An independent witness: it sees all processes, records and obeyed commands, and shares no code with
the controllers.
"""

from collections import defaultdict
from typing import TYPE_CHECKING

from dljob.control.situation.status import Status
from dljob.core.model import JobId, NodeName, Placement
from dljob_wire.messages import Run, Target
from tests.control.played_sidecars import Container, Processes, number_of

if TYPE_CHECKING:
    from tests.control.played import World


class LawBroken(AssertionError):
    """A state that must never occur."""


class Witness:
    """Sees everything, and names the law that was broken."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.living: set[Processes] = set()
        self.starts = 0
        self.commands = 0
        """New declarations, requested pods and removed pods."""
        self.decisions = 0
        """Recorded generations, over all jobs."""
        self.lost_iterations: dict[JobId, int] = defaultdict(int)
        self._decided: dict[JobId, dict[int, Placement | None]] = defaultdict(dict)
        self.ends = 0
        """Trainings that were done."""
        self.ends_in_changes = 0
        """Those of them that had another command pending."""
        self.excused = 0
        """Trainings that were done and began again, because all who knew of the end were killed."""
        self._done: dict[JobId, tuple[JobId, int]] = {}
        """The start in which a training was done."""
        self._spoilt: set[tuple[JobId, int]] = set()
        self._seen: set[tuple[JobId, int]] = set()

    def _refuse(self, law: str) -> None:
        story = "\n".join(self._world.log)
        raise LawBroken(f"{law}\n--- what happened before\n{story}")

    # --- processes

    def see_begin(self, processes: Processes) -> None:
        self.starts += 1
        for other in self.living:
            shared = processes.gpus & other.gpus
            if shared:
                self._refuse(
                    f"GPU {min(shared)} has two masters: {other.job} ({other.run.generation}) and"
                    f" {processes.job} ({processes.run.generation})"
                )
            is_mine = other.job == processes.job
            if is_mine and other.run.generation != processes.run.generation:
                self._refuse(f"{processes.job} lives twice: {other.run} and {processes.run}")
            if is_mine and other.node == processes.node:
                self._refuse(f"{processes.job} lives twice on {processes.node}")
        self._check_whole(processes)
        self._check_undone(processes)
        self.living.add(processes)

    def _check_whole(self, processes: Processes) -> None:
        """Check that all containers of a start have the same description of the start."""
        for other in self.living:
            if other.job == processes.job and (
                other.run.peers != processes.run.peers
                or other.run.rendezvous_port != processes.run.rendezvous_port
            ):
                self._refuse(f"{processes.job}: its containers would not find each other")

    def _check_undone(self, processes: Processes) -> None:
        done = self._done.pop(processes.job, None)
        if done is None:
            return
        if done not in self._spoilt and not self._is_given_up(processes.job):
            self._refuse(f"{processes.job} was done in {done[1]}, and begins again")
        self.excused += 1

    def see_done(self, processes: Processes) -> None:
        """A training says that it is done, and ends."""
        self._done[processes.job] = (processes.job, processes.run.generation)
        self.ends += 1
        self.ends_in_changes += any(
            pod.job == processes.job
            and pod.container is not None
            and pod.container.machine.target != pod.container.machine.run
            for pod in self._world.pods.values()
        )

    def see_end(self, processes: Processes) -> None:
        self.living.discard(processes)
        key = (processes.job, processes.run.generation)
        if processes.is_spoilt or processes.hang:
            self._spoilt.add(key)
        if self.of_same_start(processes):
            return
        course = self._world.courses[processes.job]
        lost = course.iteration - course.saved
        if lost > 0 and not course.is_done:
            self.lost_iterations[processes.job] += lost
            if key not in self._spoilt and not self._is_given_up(processes.job):
                self._refuse(f"{processes.job} lost {lost} iterations for no reason")

    def _is_given_up(self, job: JobId) -> bool:
        entry = self._world.entries.get(job)
        return entry is None or entry.cancelled

    def of_same_start(self, processes: Processes) -> list[Processes]:
        """The living processes of all containers of this start."""
        key = (processes.job, processes.run.generation)
        return [other for other in self.living if (other.job, other.run.generation) == key]

    def is_first_of(self, processes: Processes) -> bool:
        """Whether this is the first time that processes of this start begin; true once."""
        key = (processes.job, processes.run.generation)
        is_first = key not in self._seen or self.of_same_start(processes) == [processes]
        self._seen.add(key)
        return is_first

    def is_whole(self, processes: Processes) -> bool:
        """Whether all processes of this start live, run and answer."""
        same = self.of_same_start(processes)
        ranks = sum(len(each.ranks) for each in same)
        return ranks == processes.run.world_size and all(
            each.are_running and not each.hang for each in same
        )

    def freeze(self, processes: Processes) -> None:
        """The whole start has saved and stands still."""
        for each in self.of_same_start(processes):
            each.is_ending = True

    def spoil(self, processes: Processes) -> None:
        """Something other than the controller disturbed this start."""
        self._spoilt.add((processes.job, processes.run.generation))

    # --- records and obedience

    def see_record(self, job: JobId, old: Status, new: Status) -> None:
        if new.generation < old.generation:
            self._refuse(f"{job} goes back from {old.generation} to {new.generation}")
        self.decisions += new.generation > old.generation
        known = self._decided[job].setdefault(new.generation, new.placement)
        if known != new.placement:
            self._refuse(f"{job}: generation {new.generation} is {known}, and {new.placement}")
        missing = {pod.node for pod in old.pods} - {pod.node for pod in new.pods}
        for node in missing:
            self._check_gone(job, node)

    def _check_gone(self, job: JobId, node: NodeName) -> None:
        if any((each.job, each.node) == (job, node) for each in self.living):
            self._refuse(f"the pod of {job} on {node} is forgotten, and lives")

    def see_obedience(self, container: Container, target: Target, *, saves: bool) -> None:
        job = container.job
        recorded = max(self._decided[job], default=0)
        if target.generation > 2 * recorded + 1:
            self._refuse(f"{job} was ordered {target} before that was recorded")
        if isinstance(target, Run):
            self._check_run(job, container.node, target)
            self._check_used(container)

    def _check_run(self, job: JobId, node: NodeName, run: Run) -> None:
        placement = self._decided[job].get(run.generation // 2)
        if placement is None:
            self._refuse(f"{job} was ordered to run, and no record says where")
            return
        there = dict(placement.slices).get(node, ())
        if tuple(map(number_of, run.gpus)) != there:
            self._refuse(f"{job} was ordered to run on {run.gpus} of {node}, decided is {there}")

    def _check_used(self, container: Container) -> None:
        """Check the record from which the next leader knows the pods in which processes may have begun."""
        entry = self._world.entries.get(container.job)
        if entry is None:
            return
        status = entry.status
        if not any(pod.node == container.node and pod.serial in status.used for pod in status.pods):
            self._refuse(f"{container.incarnation} was ordered to run before that was recorded")

    def see_forgotten(self, job: JobId) -> None:
        if any(each.job == job for each in self.living):
            self._refuse(f"{job} is forgotten, and lives")
