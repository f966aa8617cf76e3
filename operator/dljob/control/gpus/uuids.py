"""The UUIDs of a node's GPUs as SideCars report them, if the platform reports none.

Kubernetes knows GPUs by their count only. A container of ours sees all GPUs of its node, so the
first SideCar that reports all of them shows the UUID of each. From then on a number belongs to a
UUID for as long as the node has that GPU: when a GPU dies, NVML and CUDA renumber those behind it,
but a job assigned to number 3 stays on the same device. :meth:`GpuUuids.restore` passes the numbers
to the next controller, which learns missing ones from running SideCars.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from dljob.control.situation.ports import PodKey
from dljob.control.situation.scene import Scene
from dljob.core.model import Gpu, JobId, Node, NodeName
from dljob_wire.messages import State

log = logging.getLogger(__name__)

NO_JOB: Final = JobId("")
"""The source of UUIDs that no present job has reported."""

Names = tuple[str, ...]
"""The UUIDs of a node in the order in which one SideCar counts its GPUs; empty if it reports none."""
Numbers = Mapping[int, str]
"""The UUIDs of a node by the numbers of its GPUs."""


class GpuUuids:
    """The UUIDs of GPUs, as far as SideCars have reported them."""

    def __init__(self) -> None:
        self._numbers: dict[NodeName, Numbers] = {}
        self._fewer: dict[NodeName, Names] = {}
        """The UUIDs from a SideCar that saw fewer GPUs than its node should have."""
        self._named: dict[NodeName, tuple[Node, Node]] = {}
        """The latest nodes, each with its copy that has UUIDs."""
        self._told: dict[PodKey, tuple[State, Names]] = {}
        """The latest states of SideCars, with the UUIDs in them."""
        self._witnesses: dict[NodeName, set[JobId]] = {}
        """The jobs whose SideCars have reported the known UUIDs of a node."""

    def restore(self, numbers: Mapping[NodeName, Numbers]) -> None:
        """Take over the UUIDs of the former controller, until SideCars report others."""
        self._numbers = dict(numbers)
        # Each UUID came from a job; from how many is unknown.
        self._witnesses = {node: {NO_JOB} for node in numbers}

    def update(self, scene: Scene) -> None:
        """Take in the reports of SideCars."""
        told: dict[NodeName, dict[JobId, Names]] = {}
        before, self._told = self._told, {}
        for pod, node, state in _iter_states(scene):
            known = before.get(pod)
            names = known[1] if known is not None and known[0] is state else _read(state)
            self._told[pod] = (state, names)
            if len(names) == len(scene.nodes[node].gpus):
                told.setdefault(node, {})[pod.job] = names
            elif 0 < len(names) < len(self._numbers.get(node, {})):
                self._fewer[node] = names
        for node, names in self._fewer.items():
            # The platform has noticed as well that the node lost GPUs.
            if node in scene.nodes and len(scene.nodes[node].gpus) == len(names):
                told.setdefault(node, {})[NO_JOB] = names
        for node, by_job in told.items():
            self._learn(node, by_job)
            if len(self._numbers[node]) == len(self._fewer.get(node, ())):
                del self._fewer[node]

    def _learn(self, node: NodeName, by_job: Mapping[JobId, Names]) -> None:
        """Take in the majority's UUIDs, because one false report must not misdirect commands for
        others.
        """
        known, witnesses = self._numbers.get(node, {}), self._witnesses.setdefault(node, set())
        agreeing = {job for job, names in by_job.items() if _agrees(known, names)}
        others = Counter(names for job, names in by_job.items() if job not in agreeing)
        witnesses |= agreeing
        if not others or (agreeing and len(witnesses) > max(others.values())):
            return
        said, count = others.most_common(1)[0]
        is_tie = len(others) > 1 and others.most_common(2)[1][1] == count
        if is_tie or (agreeing and len(agreeing) == count):
            log.warning("SideCars contradict each other about the GPUs of node %s", node)
            self._numbers[node] = {}
            witnesses.clear()
        else:
            if known:
                log.warning("node %s has other GPUs than before: %s", node, said)
            self._numbers[node] = renumber(known, said)
            self._witnesses[node] = {job for job, names in by_job.items() if names == said}
        self._named.pop(node, None)

    def mark(self, scene: Scene) -> Scene:
        """Return the scene with the UUIDs that the platform does not report."""
        if not self._numbers:
            return scene
        return replace(scene, nodes={n: self._mark(node) for n, node in scene.nodes.items()})

    def _mark(self, node: Node) -> Node:
        known = self._named.get(node.name)
        if known is None or known[0] is not node:
            known = self._named[node.name] = (node, named(node, self._numbers.get(node.name, {})))
        return known[1]


def renumber(known: Numbers, names: Names) -> Numbers:
    """Number the present GPUs: known ones as before, new ones by their place or a free number."""
    numbers = {number: uuid for number, uuid in known.items() if uuid in names}
    new = {index: uuid for index, uuid in enumerate(names) if uuid not in numbers.values()}
    for index, uuid in new.items():
        free = (each for each in range(len(numbers) + 1) if each not in numbers)
        number = index if index not in numbers else next(free)
        numbers[number] = uuid
    return {number: uuid for number, uuid in sorted(numbers.items()) if uuid}


def named(node: Node, numbers: Numbers) -> Node:
    """Name the unnamed GPUs of a node, and keep the numbers of named ones."""
    if not numbers or all(gpu.uuid for gpu in node.gpus):
        return node
    there = {gpu.index: gpu for gpu in node.gpus}
    if len(numbers) == len(there):
        # Only as many as the node has, because a number may be missing.
        there = {number: there.get(number, Gpu(number)) for number in numbers}
    gpus = (replace(gpu, uuid=gpu.uuid or numbers.get(n, "")) for n, gpu in there.items())
    return replace(node, gpus=tuple(gpus))


def _agrees(known: Numbers, names: Names) -> bool:
    """Return True if a SideCar reports the same GPUs; a GPU that it has lost has no UUID there."""
    told = {name for name in names if name}
    untold = set(known.values()) - told
    return bool(known) and told <= set(known.values()) and len(untold) <= names.count("")


def _iter_states(scene: Scene) -> Iterator[tuple[PodKey, NodeName, State]]:
    job_pods = (each for job_pods in scene.job_pods.values() for each in job_pods.items())
    for name, job_pod in job_pods:
        state = job_pod.state
        if name in scene.nodes and state is not None and state.gpus and not job_pod.has_ended:
            yield job_pod.key, name, state


def _read(state: State) -> Names:
    """Return the UUIDs by number, with gaps for lost GPUs; empty if any other UUID is missing."""
    by_number = {gpu.index: gpu for gpu in state.gpus}
    found = [by_number.get(number) for number in range(len(state.gpus))]
    names = tuple(gpu.uuid if gpu is not None else "" for gpu in found)
    told = [name for name in names if name]
    is_whole = all(gpu is not None and (gpu.uuid or gpu.lost_because) for gpu in found)
    return names if is_whole and told and len(set(told)) == len(told) else ()
