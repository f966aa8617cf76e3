"""
The latest start of a job's processes, and whether it is whole.

A start is all processes of a job that were begun together, known by the generation on the wire. Some of its
containers may be other incarnations by now, or gone; then the processes in the others wait for them for
ever. Nothing of a container says so: the missing containers show it.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from dlcontrol.situation.job_pods import JobPod
from dlcontrol.situation.ports import Entry
from dlcontrol.situation.scene import Scene
from dlcontrol.situation.status import StartNumber, Status
from dlcore.model import GpuRef, JobId, NodeName, Phase, Placement
from dlwire.messages import Phase as SideCarPhase
from dlwire.messages import Run


class ProcessSet:
    """That of one job, in one scene."""

    def __init__(self, scene: Scene, entry: Entry, *, with_ended: bool = False) -> None:
        self._scene = scene
        self._entry = entry
        self._status = entry.status
        self._present = [
            job_pod for job_pod in scene.pods_of(entry.job.id).values() if not job_pod.has_ended
        ]
        self.job_pods = scene.latest_start(entry.job.id, with_ended=with_ended)
        """The nodes of the process set, also where it has ended."""
        self.generation = self.job_pods[0].start if self.job_pods else StartNumber(0)
        """0: as far as the controller knows, the job never started."""

    @cached_property
    def containers(self) -> int:
        """Over how many pods it is spread, as far as the controller knows."""
        for job_pod in self.job_pods:
            target = job_pod.state.target if job_pod.state is not None else None
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
        return len(self.job_pods)

    @property
    def is_incomplete(self) -> bool:
        """A part is gone and does not come back, so that a new start is needed."""
        wanted = self._status.run_generation
        if self._status.phase is Phase.RUNNING and self.generation < wanted:
            # The container has restarted, and none of its former processes lives.
            return not any(_is_told_to_run(job_pod, wanted) for job_pod in self._present)
        if not self.job_pods or self.generation <= self._status.broken:
            return False
        joining = [
            job_pod
            for job_pod in self._present
            if job_pod.start < self.generation and _is_told_to_run(job_pod, self.generation)
        ]
        is_hanging = (
            any(job_pod.is_living for job_pod in self.job_pods) or self.generation == wanted
        )
        return is_hanging and len(self.job_pods) + len(joining) < self.containers

    @property
    def is_undone(self) -> bool:
        """
        Whether a container has got another command since, although this is the start to be.

        The stamp of a new controller does that if it overtakes the news of a start by the former
        controller. As a generation is one start of all processes, another one is needed.
        """
        return self.generation == self._status.run_generation and any(
            not job_pod.has_begun(self.generation) and not job_pod.is_leaving
            for job_pod in self.job_pods
        )

    @property
    def foreign_generation(self) -> int:
        """The newest generation of a command to a pod of the job, if it is newer than the decision, or
        0."""
        if self._status.placement is None:
            return 0
        told = (
            job_pod.state.generation
            for job_pod in self._present
            if job_pod.state is not None and not job_pod.is_leaving
        )
        newest = max(told, default=0)
        return newest if newest > self._status.run_generation else 0


def _is_told_to_run(job_pod: JobPod, generation: int) -> bool:
    return isinstance(job_pod.told, Run) and job_pod.told.generation == generation


@dataclass(frozen=True, slots=True)
class IntactProcesses:
    """Processes that were started together, all of which live, and of which nothing else is asked."""

    generation: StartNumber
    gpus: frozenset[GpuRef]
    batch_size: int
    is_running: bool
    """All of them run the user's program."""

    def adopted_by(self, status: Status, held: frozenset[GpuRef]) -> Status:
        """Let the job, that was just given what they have, go on with them; ``held`` is all it may hold."""
        return replace(status, adopted=self.generation, leftover=held.difference(self.gpus))


def find_intact(scene: Scene, job: JobId) -> IntactProcesses | None:
    """The present start of the job's processes, if it is whole and may go on as it is."""
    living = [job_pod for job_pod in scene.pods_of(job).values() if job_pod.is_living]
    runs: list[Run] = []
    for job_pod in living:
        state = job_pod.state
        if state is None or not isinstance(state.target, Run) or job_pod.is_waited_for:
            return None
        is_whole = state.phase in _WHOLE and state.held_generation == state.generation
        if not is_whole or job_pod.contact.coming or not job_pod.is_stamped(scene.epoch):
            return None
        runs.append(state.target)
    if not runs or len({run.generation for run in runs}) > 1 or len(runs) < len(runs[0].peers):
        return None
    if runs[0].generation <= scene.entries[job].status.broken:
        return None
    gpus = frozenset().union(*map(scene.may_hold, living))
    is_running = all(job_pod.phase is SideCarPhase.RUNNING for job_pod in living)
    return IntactProcesses(StartNumber(runs[0].generation), gpus, runs[0].batch_size, is_running)


def placement_of(scene: Scene, start: IntactProcesses) -> Placement | None:
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
