"""The latest start of a job's processes, and if the start is complete.

A start is all processes of a job that were begun together, identified by the generation on the
wire. Some of its containers may have restarted or gone; then the processes in the others wait for
ever. No report shows that, only the missing containers do.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from dljob.control.situation.job_pods import JobPod
from dljob.control.situation.ports import Entry
from dljob.control.situation.scene import Scene
from dljob.control.situation.status import StartNumber, Status
from dljob.core.model import GpuRef, JobId, NodeName, Phase, Placement
from dljob_wire.messages import Phase as SideCarPhase
from dljob_wire.messages import Run


class ProcessSet:
    """The process set of one job, in one scene."""

    def __init__(self, scene: Scene, entry: Entry, *, with_ended: bool = False) -> None:
        self._scene = scene
        self._entry = entry
        self._status = entry.status
        self._present = [
            job_pod for job_pod in scene.pods_of(entry.job.id).values() if not job_pod.has_ended
        ]
        self.job_pods = scene.latest_start(entry.job.id, with_ended=with_ended)
        """The pods of the process set, including ended ones."""
        self.generation = self.job_pods[0].start if self.job_pods else StartNumber(0)
        """0 if the controller knows of no start of the job."""

    @cached_property
    def containers(self) -> int:
        """The number of pods in the set, as far as the controller knows."""
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
        """Return True if a part is gone for good, so that a new start is needed."""
        wanted = self._status.run_generation
        if self._status.phase is Phase.RUNNING and self.generation < wanted:
            # The container has restarted, and none of its former processes lives.
            return not any(is_told_to_run(job_pod, wanted) for job_pod in self._present)
        if not self.job_pods or self.generation <= self._status.broken:
            return False
        joining = [
            job_pod
            for job_pod in self._present
            if job_pod.start < self.generation and is_told_to_run(job_pod, self.generation)
        ]
        is_hanging = (
            any(job_pod.is_living for job_pod in self.job_pods) or self.generation == wanted
        )
        return is_hanging and len(self.job_pods) + len(joining) < self.containers

    @property
    def is_undone(self) -> bool:
        """Return True if a container of this start has received another command since.

        The stamp of a new controller does that if it overtakes the report of a start by the former
        controller. A generation is one start of all processes, so another one is needed.
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


def is_told_to_run(job_pod: JobPod, generation: int) -> bool:
    return isinstance(job_pod.told, Run) and job_pod.told.generation == generation


@dataclass(frozen=True, slots=True)
class IntactProcesses:
    """Processes that were started together, are all alive, and have no other command."""

    generation: StartNumber
    gpus: frozenset[GpuRef]
    batch_size: int
    is_running: bool
    """All of the processes run the user's program."""

    def adopted_by(self, status: Status, held: frozenset[GpuRef]) -> Status:
        """Let the job continue on the GPUs of these processes;

        ``held`` are all that it may hold.
        """
        return replace(status, adopted=self.generation, leftover=held.difference(self.gpus))


def find_intact(scene: Scene, job: JobId) -> IntactProcesses | None:
    """Return the present start of the processes if it is complete and may continue."""
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


def find_members(scene: Scene, job: JobId) -> IntactProcesses | None:
    """
    Return the processes that train together, also while others join or leave them and nothing is agreed with others.

    Their SideCar can still withdraw such a change if it has all of them, and a newer target may start from them.
    """
    intact = find_intact(scene, job)
    if intact is not None:
        return intact
    broken = scene.entries[job].status.broken
    for job_pod in scene.pods_of(job).values():
        run = job_pod.run_before if job_pod.phase in _GOING_ON else None
        if run is None or len(run.peers) > 1 or run.generation <= broken:
            continue
        if job_pod.is_waited_for or not job_pod.is_stamped(scene.epoch):
            continue
        gpus = scene.gpu_names.find_all(job_pod.key.node, run.gpus, state=job_pod.state)
        return IntactProcesses(StartNumber(run.generation), gpus, run.batch_size, is_running=True)
    return None


def placement_of(scene: Scene, start: IntactProcesses) -> Placement | None:
    """Return where these processes train as a placement; None if a node is missing."""
    numbers: dict[NodeName, list[int]] = {}
    for ref in start.gpus:
        numbers.setdefault(ref.node, []).append(ref.number)
    nodes = [scene.nodes.get(name) for name in numbers]
    kinds = {node.gpu_type for node in nodes if node is not None}
    if None in nodes or len(kinds) != 1:
        return None
    return Placement.of(numbers, kinds.pop())


_WHOLE = frozenset({SideCarPhase.STARTING, SideCarPhase.RUNNING})
_GOING_ON = frozenset({SideCarPhase.RUNNING, SideCarPhase.CHANGING})
