"""Decides which reports suffice to take a GPU out of service.

A SideCar sees all GPUs of its node and may report anything. So a job's report counts for the GPUs
that the job holds, and only while it leaves others on their node. For any other GPU, or for all of
a node, a second source has to confirm the report: the SideCar of the job that holds the GPU, or the
node itself. Until then the GPU is *suspected*: an Event reports it, the GPU stays in service, the
suspicion expires, and the next controller never learns of it.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from dljob.control.situation.scene import Scene
from dljob.core.model import GpuRef, JobId

SUSPECTED_S: Final = 600.0
"""The time for which a report of one job waits for that of a second one."""

Accusations = Mapping[GpuRef, Collection[JobId]]
"""The jobs that report faults of each GPU."""


class Suspicions:
    """Recent reports of single jobs against GPUs; one object for the life of a controller."""

    def __init__(self) -> None:
        self._said: dict[GpuRef, dict[JobId, float]] = {}
        """The end of each report's validity."""
        self._alone: dict[JobId, frozenset[GpuRef]] = {}
        """The GPUs that the reports of one job alone took out of service."""
        self._told: set[tuple[GpuRef, JobId]] = set()

    @property
    def suspected(self) -> frozenset[GpuRef]:
        """The GPUs with reports that are not confirmed, or not yet."""
        return frozenset(self._said)

    def weigh(self, scene: Scene, accused: Accusations) -> frozenset[GpuRef]:
        """Return the GPUs whose faults are confirmed, with earlier reports taken into account."""
        self._said = {
            ref: left
            for ref, said in self._said.items()
            if (left := {job: until for job, until in said.items() if until > scene.now})
        }
        self._told = {each for each in self._told if each[1] in self._said.get(each[0], ())}
        accused = {ref: jobs for ref, jobs in accused.items() if jobs}
        for ref, jobs in accused.items():
            said = self._said.setdefault(ref, {})
            said.update(dict.fromkeys(jobs, scene.now + SUSPECTED_S))
        held = _held(scene)
        sure = {ref for ref in accused if self._is_sure(scene, ref, held=held)}
        alone = {
            ref: next(iter(self._said[ref]))
            for ref in accused
            if ref not in sure and len(self._said[ref]) == 1
        }
        own = {ref for ref, job in alone.items() if ref in held.get(job, ())}
        # A single job cannot take all GPUs of a node out of service.
        own -= {ref for ref in own if _is_all_of_its_node(scene, ref, own=own, alone=alone)}
        for ref in own:
            self._alone[alone[ref]] = self._alone.get(alone[ref], frozenset()) | {ref}
        return frozenset(sure | own)

    def _is_sure(
        self, scene: Scene, ref: GpuRef, *, held: Mapping[JobId, frozenset[GpuRef]]
    ) -> bool:
        """Return True with two witnesses, one of which holds the GPU: jobs that conspire harm themselves."""
        if scene.machine(ref.node).ails:
            return True
        said = self._said[ref]
        return len(said) > 1 and any(ref in held.get(job, ()) for job in said)

    def overtaken(self, scene: Scene, accused: Accusations) -> frozenset[GpuRef]:
        """Return the GPUs to put back, whose one accusing job accuses the GPUs it holds now.

        So a job never takes out more than it holds at a time.
        """
        held, freed = _held(scene), frozenset[GpuRef]()
        for job, refs in list(self._alone.items()):
            mine = held.get(job, frozenset())
            if any(job in accused.get(ref, ()) for ref in mine - refs):
                freed |= refs - mine
                self._alone[job] = refs & mine
        return freed

    def news(self, believed: Collection[GpuRef]) -> Iterator[tuple[GpuRef, JobId]]:
        """Yield the GPUs that are newly suspected, with the accusing job."""
        for ref, jobs in self._said.items():
            for job in jobs:
                if ref not in believed and (ref, job) not in self._told:
                    self._told.add((ref, job))
                    yield ref, job

    def settle(self, ref: GpuRef) -> None:
        """Drop the reports against a GPU, which were confirmed or dismissed by a person."""
        self._said.pop(ref, None)


def _held(scene: Scene) -> Mapping[JobId, frozenset[GpuRef]]:
    """Return the GPUs that are assigned to jobs with pods, or that these have yet to release."""
    held: dict[JobId, frozenset[GpuRef]] = {}
    for job in scene.job_pods:
        status = scene.entries[job].status
        placed = status.placement.refs() if status.placement is not None else ()
        held[job] = status.leftover.union(placed)
    return held


def _is_all_of_its_node(
    scene: Scene, ref: GpuRef, *, own: Collection[GpuRef], alone: Mapping[GpuRef, JobId]
) -> bool:
    """Return True if the reports of the one job that accuses this GPU would take out its whole node."""
    node = scene.nodes.get(ref.node)
    if node is None:
        return False
    of_node = [GpuRef(node.name, gpu.index) for gpu in node.gpus]
    return all(each in own and alone[each] == alone[ref] for each in of_node)
