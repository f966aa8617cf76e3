"""GPUs that a container cannot use although its node has them.

A device that vanishes from a container (as when systemd reloads its units, and with them the device
rules) comes back only with a new container. So no job gets the GPU as long as the container that
lost it exists; afterwards a job may try it. A GPU that a new container does not see from its start
is out of service until some container sees it again, or until an administrator cordons and
uncordons its node.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from dljob.control.gpus.corroborating import Suspicions
from dljob.control.gpus.faults import Reinstatements, ReturnedNodes
from dljob.control.gpus.marking import marked
from dljob.control.situation.job_pods import JobPod
from dljob.control.situation.ports import PodKey
from dljob.control.situation.scene import Scene
from dljob.core.model import GpuRef, JobId, Node
from dljob_wire.messages import Run, State

log = logging.getLogger(__name__)

NOT_VISIBLE = "GPUsNotVisible"
NOT_RELEASED = "GPUMemoryNotReleased"
UNKNOWN = "UnknownGPUs"


class _Name(NamedTuple):
    """Which container: one may say that it is the incarnation of another job's."""

    pod: PodKey
    incarnation: str


@dataclass(frozen=True, slots=True)
class _View:
    name: _Name
    state: State
    node: Node
    seen: frozenset[GpuRef]
    missing: Mapping[GpuRef, str]
    ever_seen: frozenset[GpuRef]
    since: float
    """When this controller first reached the container."""

    @property
    def job(self) -> JobId:
        return self.name.pod.job


@dataclass(frozen=True, slots=True)
class _Absence:
    """A GPU that a new container does not see."""

    why: str
    since: float
    """When this controller first reached that container."""


class MissingGpus:
    """The GPUs that containers do not see, as far as their SideCars have reported."""

    def __init__(self) -> None:
        self._views: dict[_Name, _View] = {}
        self._suspicions = Suspicions()
        self._absences: dict[GpuRef, _Absence] = {}
        self._lost: dict[GpuRef, str] = {}
        """The GPUs that existing containers have lost."""
        self._returned_nodes = ReturnedNodes()
        self._reinstatements = Reinstatements()

    @property
    def absent(self) -> Mapping[GpuRef, str]:
        """The GPUs that new containers did not see, and the reasons."""
        return {ref: absence.why for ref, absence in self._absences.items()}

    def update(self, scene: Scene) -> None:
        """Take in which GPUs the containers see."""
        before = self._unavailable
        returned, reinstated = (
            self._returned_nodes.update(scene),
            self._reinstatements.update(scene),
        )
        for ref in [ref for ref in self._absences if ref.node in returned or ref in reinstated]:
            del self._absences[ref]
        self._views = {each.name: each for each in self._iter_views(scene)}
        believed = self._weigh(scene)
        self._lost = {}
        for view in self._views.values():
            for ref in believed & view.missing.keys():
                why = view.missing[ref]
                if ref in view.ever_seen:
                    self._lost[ref] = f"it vanished from a SideCar on its node: {why}"
                elif _is_the_nodes(scene, view.job):
                    told = f"a new SideCar on its node does not see it: {why}"
                    known = self._absences.get(ref)
                    since = max(view.since, known.since) if known is not None else view.since
                    self._absences[ref] = _Absence(told, since)
        for view in self._views.values():
            for ref in view.seen:
                self._lost.pop(ref, None)
                absence = self._absences.get(ref)
                # The open devices of an older container do not show which ones a new container gets.
                if absence is not None and view.since >= absence.since:
                    del self._absences[ref]
        self._tell(before)

    def _weigh(self, scene: Scene) -> frozenset[GpuRef]:
        accused: dict[GpuRef, set[JobId]] = {}
        for view in self._views.values():
            for ref in view.missing:
                if ref in view.ever_seen or _is_the_nodes(scene, view.job):
                    accused.setdefault(ref, set()).add(view.job)
        for ref in self._suspicions.overtaken(scene, accused):
            self._absences.pop(ref, None)
        believed = self._suspicions.weigh(scene, accused)
        for ref, job in self._suspicions.news(believed):
            log.warning(
                "GPU %s is missing according to job %s alone, and stays in service", ref, job
            )
        return believed

    @property
    def _unavailable(self) -> Mapping[GpuRef, str]:
        return {**self._lost, **self.absent}

    def mark(self, scene: Scene) -> Scene:
        """Mark these GPUs in the scene as out of service."""
        unavailable = self._unavailable
        if not unavailable:
            return scene
        nodes = {name: marked(node, unavailable) for name, node in scene.nodes.items()}
        return replace(scene, nodes=nodes)

    def reinstate(self, ref: GpuRef) -> bool:
        """Note that a container sees the GPU again; return whether it was missing."""
        self._suspicions.settle(ref)
        return self._absences.pop(ref, None) is not None

    def _iter_views(self, scene: Scene) -> Iterator[_View]:
        for job_pods in scene.job_pods.values():
            for name, job_pod in job_pods.items():
                node = scene.nodes.get(name)
                if node is not None and job_pod.state is not None and not job_pod.has_ended:
                    yield self._view(scene, job_pod, state=job_pod.state, node=node)

    def _view(self, scene: Scene, job_pod: JobPod, *, state: State, node: Node) -> _View:
        name = _Name(job_pod.key, state.incarnation)
        known = self._views.get(name)
        if known is not None and known.state is state and known.node is node:
            return known  # Nothing is new, as for most of thousands of containers.
        usable = (gpu for gpu in state.gpus if not gpu.lost_because)
        found = (scene.gpu_names.find_seen(job_pod.key.node, gpu) for gpu in usable)
        seen = frozenset(ref for ref in found if ref is not None)
        ever_seen = seen if known is None else seen | known.ever_seen
        missing, since = missing_in(scene, job_pod), job_pod.contact.first_seen
        return _View(name, state, node, seen, missing, ever_seen, since)

    def _tell(self, before: Mapping[GpuRef, str]) -> None:
        now = self._unavailable
        for ref in sorted(now.keys() - before.keys()):
            log.warning("GPU %s gets no jobs: %s", ref, now[ref])
        for ref in sorted(before.keys() - now.keys()):
            log.info("GPU %s gets jobs again", ref)


def cannot_prove(job_pod: JobPod) -> bool:
    """Return True if the processes are gone, and only lost GPUs keep the SideCar from proving it."""
    state = job_pod.state
    if state is None or state.released:
        return False
    lost = {name for g in state.gpus if g.lost_because for name in (g.uuid, str(g.index))}
    is_stuck = any(problem.name == NOT_RELEASED for problem in state.problems)
    return is_stuck and not lost.isdisjoint(state.held)


def missing_in(scene: Scene, job_pod: JobPod) -> Mapping[GpuRef, str]:
    """Return the GPUs of its node that a container cannot use, with the SideCar's reason for each."""
    state, node = job_pod.state, scene.nodes.get(job_pod.key.node)
    if state is None or node is None or job_pod.has_ended:
        return {}
    complaints = {problem.name: problem.message for problem in state.problems}
    refs = {gpu.index: GpuRef(node.name, gpu.index) for gpu in node.gpus}
    if NOT_VISIBLE in complaints:
        return dict.fromkeys(refs.values(), complaints[NOT_VISIBLE])
    missing: dict[GpuRef, str] = {}
    for gpu in state.gpus:
        ref = scene.gpu_names.find_seen(node.name, gpu)
        if gpu.lost_because and ref is not None:
            missing[ref] = gpu.lost_because
    told = {gpu.uuid for gpu in state.gpus}
    for known in node.gpus if state.gpus else ():
        if known.uuid and known.uuid not in told:
            missing[refs[known.index]] = "the driver does not list it"
    missing.update(_named_in_vain(state, refs, complaints=complaints))
    return missing


def _named_in_vain(
    state: State, refs: Mapping[int, GpuRef], *, complaints: Mapping[str, str]
) -> Mapping[GpuRef, str]:
    """Find GPUs that were assigned to processes and that the driver does not know."""
    if UNKNOWN not in complaints or not isinstance(state.target, Run):
        return {}
    there = {str(gpu.index) for gpu in state.gpus}
    unknown = {int(name) for name in state.target.gpus if name.isdigit() and name not in there}
    return {refs[number]: complaints[UNKNOWN] for number in unknown & refs.keys()}


def _is_the_nodes(scene: Scene, job: JobId) -> bool:
    """Return False if the user's own runtime class may be the reason that a container sees no GPU."""
    return "runtimeClassName" not in scene.entries[job].job.template.get("spec", {})
