"""
Orphans: pods that no job accounts for, and whose end is not proven.

Our finalizer keeps a job until the end of its pods is proven. If a person removes the finalizer, the record of the
pods' GPUs is lost.

A deleted Node counts as gone, and its jobs move elsewhere. If that was a mistake, its pods may still train when the
machine registers again. Their objects are kept for a while (:mod:`dljob.operator.pods.cleanup`), until the kubelet
reports their end or the machine has another boot ID.

Until the end of an orphan is proven, no job gets a GPU of its node, except for those that a job already holds.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from dljob.control.situation.ports import Entry
from dljob.control.situation.status import Status
from dljob.core.documents.rules.podrules import TRAINER
from dljob.core.model import GpuRef, JobId, Node, NodeName
from dljob.kube.documents import Json
from dljob.kube.names import Name
from dljob.kube.watches.mirror import Mirrors
from dljob.operator.jobs.trusted_jobs import TrustedJobs
from dljob.operator.proofs import is_booked, is_bound, job_of, proof_of_end, role_of


class Orphans:
    """One for the life of a leader."""

    def __init__(self, mirrors: Mirrors, jobs: TrustedJobs) -> None:
        self._mirrors = mirrors
        self._jobs = jobs
        self._known = set(mirrors.pods.objects)
        """The pods that may be orphans; at the beginning, all pods."""

    def note_end(self, job: Name) -> None:
        """Remember that a job is gone; its pods do not belong to a new job of the same name."""
        for name, pod in self._mirrors.pods.objects.items():
            if name.namespace == job.namespace and job_of(pod) == job.name:
                self._known.add(name)

    def note_gone(self, node: str) -> None:
        """Remember that a Node was deleted; its pods count if it registers again."""
        for name, pod in self._mirrors.pods.objects.items():
            if (pod.get("spec") or {}).get("nodeName") == node:
                self._known.add(name)

    def mark(self, nodes: Iterable[Node], entries: Mapping[JobId, Entry]) -> list[Node]:
        """Mark the GPUs that orphans may use as unavailable."""
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
        """Return the nodes with orphans, each with the name of one."""
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
    """Return the GPUs that a job has, or has not released yet."""
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
