"""
Pods whose GPUs no job's status accounts for, and that are not proven to have ended.

Our finalizer keeps a job until its pods are proven to have ended. People may remove it, as they do with
an object that does not go. Then nothing is written any more of which GPUs the pods have.

A Node that is deleted says that its machine is gone, and jobs go elsewhere. It may have been a mistake:
when the machine registers again its pods may train there yet. Their objects are kept for a while for
that reason (:mod:`dloperator.pods.cleanup`), until the kubelet tells what became of them or the machine has
another boot id.

Until such a pod is proven to have ended, no GPU of its node is given away that no other job holds.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from dlcontrol.situation.ports import Entry
from dlcontrol.situation.status import Status
from dlcore.documents.rules.podrules import TRAINER
from dlcore.model import GpuRef, JobId, Node, NodeName
from dlkube.documents import Json
from dlkube.names import Name
from dlkube.watches.mirror import Mirrors
from dloperator.jobs.trusted_jobs import TrustedJobs
from dloperator.proofs import is_booked, is_bound, job_of, proof_of_end, role_of


class Orphans:
    """One for the life of a leader."""

    def __init__(self, mirrors: Mirrors, jobs: TrustedJobs) -> None:
        self._mirrors = mirrors
        self._jobs = jobs
        self._known = set(mirrors.pods.objects)
        """The pods that may be such; to begin with, all there are."""

    def note_end(self, job: Name) -> None:
        """Remember that a job is gone; its orphans do not count for a new job of the same name."""
        for name, pod in self._mirrors.pods.objects.items():
            if name.namespace == job.namespace and job_of(pod) == job.name:
                self._known.add(name)

    def note_gone(self, node: str) -> None:
        """Remember that a Node is deleted; what was on it counts should it come back."""
        for name, pod in self._mirrors.pods.objects.items():
            if (pod.get("spec") or {}).get("nodeName") == node:
                self._known.add(name)

    def mark(self, nodes: Iterable[Node], entries: Mapping[JobId, Entry]) -> list[Node]:
        """Keep all jobs off the GPUs that a job that no longer exists may still use."""
        found = self._find()
        if not found:
            return list(nodes)
        held = {ref for entry in entries.values() for ref in _refs_of(entry.status)}
        return [
            _without(
                node, found[node.name], held={gpu for where, gpu in held if where == node.name}
            )
            if node.name in found
            else node
            for node in nodes
        ]

    def _find(self) -> dict[NodeName, str]:
        """Find the nodes where there are such pods, each with the name of one."""
        found = {}
        for name in list(self._known):
            pod = self._mirrors.pods.get(name)
            if pod is None or role_of(pod) != TRAINER:
                self._known.discard(name)
                continue
            node = str(pod["spec"].get("nodeName", ""))
            machine = self._mirrors.nodes.get(Name("", node))
            if machine is None and is_bound(pod):
                continue
            if proof_of_end(pod, machine) or self._is_booked(name, pod):
                self._known.discard(name)
            elif is_bound(pod):
                found[NodeName(node)] = str(name)
        return found

    def _is_booked(self, name: Name, pod: Json) -> bool:
        job = self._jobs.get(Name(name.namespace, job_of(pod)))
        return job is not None and is_booked(job, pod)


def _refs_of(status: Status) -> Iterable[GpuRef]:
    """All that a job has, or has not been seen to release."""
    placed = status.placement.refs() if status.placement is not None else ()
    return (*placed, *status.leftover)


def _without(node: Node, pod: str, *, held: Collection[int]) -> Node:
    why = f"pod {pod}, which no job accounts for, has not been proven to have ended"
    return replace(
        node,
        gpus=tuple(
            gpu
            if gpu.index in held or gpu.unavailable_because
            else replace(gpu, unavailable_because=why)
            for gpu in node.gpus
        ),
    )
