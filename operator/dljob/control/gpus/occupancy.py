"""GPUs that other programs use although no job has them: no job gets such a GPU.

A SideCar checks right before a start (:mod:`dljob_sidecar.observing.gpus.gpu_thread`) and starts
nothing. The GPU is out of service until any SideCar on its node sees it empty. If no SideCar sees
it any more, it is offered again after a while: the next start checks it.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from dljob.control.gpus.marking import marked
from dljob.control.situation.job_pods import JobPod
from dljob.control.situation.scene import Scene
from dljob.core.model import GpuRef
from dljob_wire.messages import Gpu, Phase, Problem, Run

log = logging.getLogger(__name__)

NOT_EMPTY = "GPUNotEmpty"
REFUSALS = frozenset({NOT_EMPTY, "GPUsNotResolved"})
"""Refusals that are not the job's fault. With the second the driver did not name the GPU."""

SETTLE_S = 10.0
"""Reports of the node's other SideCars count after this time, in which each has checked again."""
RETRY_S = 60.0
"""After this time a GPU is offered again that no SideCar sees."""


@dataclass(frozen=True, slots=True)
class _Finding:
    why: str
    at: float


class Occupancy:
    """The GPUs that others use, as far as SideCars have reported."""

    def __init__(self) -> None:
        self._used: dict[GpuRef, _Finding] = {}
        self._heard: frozenset[tuple[str, int]] = frozenset()
        """The known refusals, by incarnation and generation."""

    def update(self, scene: Scene) -> None:
        """Take in the refusals of SideCars, and the GPUs that they see empty."""
        before = dict(self._used)
        for ref, finding in before.items():
            age = scene.now - finding.at
            views = list(_iter_views(scene, ref)) if age >= SETTLE_S else []
            is_empty = bool(views) and not any(views)
            if is_empty or (not views and age >= RETRY_S):
                del self._used[ref]
        heard = {
            (job_pod.state.incarnation, job_pod.state.generation): (job_pod, problem)
            for job_pods in scene.job_pods.values()
            for job_pod in job_pods.values()
            if job_pod.state is not None
            and (problem := find_refusal(job_pod)) is not None
            and problem.name == NOT_EMPTY
        }
        for which in heard.keys() - self._heard:
            job_pod, problem = heard[which]
            for ref in _named_by(scene, job_pod, problem=problem):
                self._used[ref] = _Finding(f"it is not empty: {problem.message}", scene.now)
        self._heard = frozenset(heard)
        self._tell(before)

    def mark(self, scene: Scene) -> Scene:
        """Mark these GPUs in the scene as out of service."""
        if not self._used:
            return scene
        reasons = {ref: finding.why for ref, finding in self._used.items()}
        nodes = {name: marked(node, reasons) for name, node in scene.nodes.items()}
        return replace(scene, nodes=nodes)

    def reinstate(self, ref: GpuRef) -> bool:
        """Reinstate a GPU; return False if it was not known as used."""
        return self._used.pop(ref, None) is not None

    def _tell(self, before: Mapping[GpuRef, _Finding]) -> None:
        for ref in sorted(self._used.keys() - before.keys()):
            log.warning("GPU %s gets no jobs: %s", ref, self._used[ref].why)
        for ref in sorted(before.keys() - self._used.keys()):
            log.info("GPU %s gets jobs again", ref)


def find_refusal(job_pod: JobPod) -> Problem | None:
    """Return why a SideCar refuses to start on the GPUs of its command, if not through the job's
    fault.
    """
    state = job_pod.state
    if state is None or state.phase is not Phase.FAILED:
        return None
    return next((problem for problem in state.problems if problem.name in REFUSALS), None)


def _named_by(scene: Scene, job_pod: JobPod, *, problem: Problem) -> Iterator[GpuRef]:
    state = job_pod.state
    if state is None or not isinstance(state.target, Run):
        return
    for name in set(problem.gpus).intersection(state.target.gpus):
        ref = scene.gpu_names.find_named(job_pod.key.node, name, state=state)
        if ref is not None:
            yield ref


def _iter_views(scene: Scene, ref: GpuRef) -> Iterator[bool]:
    """For each SideCar that sees the GPU, yield True if the GPU is in use."""
    for job_pods in scene.job_pods.values():
        job_pod = job_pods.get(ref.node)
        for gpu in _gpus_of(job_pod) if job_pod is not None else ():
            if not gpu.lost_because and scene.gpu_names.find_seen(ref.node, gpu) == ref:
                yield gpu.busy_unassigned


def _gpus_of(job_pod: JobPod) -> tuple[Gpu, ...]:
    is_there = job_pod.contact.reachable and not job_pod.has_ended
    return job_pod.state.gpus if is_there and job_pod.state is not None else ()
