"""
The free resources on the nodes of the pool, and the needs of each job's pods.

Other owners' pods, our existing pods, and our pods that are decided but not created yet are added up; a pod counts
until the kubelet reports its end. Only changed objects are read again, because thousands of jobs wait, and pods
come and go on hundreds of nodes.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from dljob.control.situation.ports import Entry
from dljob.core.model import JobId, Node, NodeName
from dljob.core.placement.needs import Needs
from dljob.kube.constraints.foreign import Ways, read_ways
from dljob.kube.constraints.usage import PodUsage, read_usage
from dljob.kube.documents import Json, NodeDocument, PodDocument
from dljob.kube.names import Name
from dljob.kube.unread import Unread
from dljob.kube.watches.mirror import Mirrors
from dljob.operator.jobs.entries import job_id, name_of
from dljob.operator.nodes.nodes import is_ready
from dljob.operator.nodes.placeholders import is_placeholder
from dljob.operator.nodes.requests import Asks
from dljob.operator.nodes.room.fitting import Fitting
from dljob.operator.nodes.room.free_amounts import FreeAmounts
from dljob.operator.nodes.room.job_requests import JobRequests
from dljob.operator.nodes.room.refusals import Refusals, leave_out, read_refusal
from dljob.operator.podspecs import building
from dljob.operator.proofs import is_bound, job_of, role_of

UNBOUND: Final = "unbound immediate PersistentVolumeClaims"
"""The words by which kube-scheduler refuses a pod on every node until its volumes are bound."""


class Room:
    """One for the life of a leader."""

    def __init__(
        self,
        mirrors: Mirrors,
        asks_of: Callable[[Name], Asks | None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mirrors = mirrors
        self._others = mirrors.others
        self._free = FreeAmounts(mirrors.others.pods)
        self._whose: dict[Name, JobId] = {}
        """The jobs of our pods."""
        self._needs: Mapping[JobId, Needs] = {}
        self._refusals = Refusals(clock)
        self._doubtful: set[JobId] = set()
        """Jobs whose pod kube-scheduler refused for a passing reason; the next cycle reads the pod again."""
        self._unread = Unread()
        self._fitting = Fitting(self._unread)
        mirrors.collect_changes()
        self._requests = JobRequests(self._others, asks_of)

    @property
    def needs(self) -> Mapping[JobId, Needs]:
        """The known needs of each job's pods; a new object after each change."""
        return self._needs

    def settle(
        self,
        entries: Mapping[JobId, Entry],
        changed: Iterable[Name],
        *,
        nodes: Iterable[tuple[NodeDocument, Node]],
    ) -> tuple[Node, ...]:
        """Take in the changes, and return the nodes with their free resources."""
        there = list(nodes)
        touched = {job_id(name) for name in changed} | self._see_pods() | self._doubtful
        self._doubtful = set()
        for job in touched:
            self._see_job(job, entries.get(job))
        self._find_needs(touched, entries, fits_changed=self._fitting.update(there))
        return self._free.count(there, fitting=self._fitting)

    # --- pods

    def _see_pods(self) -> set[JobId]:
        """Take in the changes of our pods, and return their jobs."""
        whose = set()
        for name in self._mirrors.changed_pods:
            document = self._mirrors.pods.get(name)
            usage = self._unread.attempt(f"Pod {name}", partial(_usage, document), otherwise=None)
            self._free.ours.put(name, (usage,) if usage is not None else ())
            ways = self._unread.attempt(f"Pod {name}", partial(_ways, document), otherwise=None)
            self._others.reaching.labelled.put(name, ways)
            job = _job_of(name, document) if document is not None else self._whose.pop(name, None)
            if job is None:
                continue
            whose.add(job)
            if document is not None:
                self._whose[name] = job
        self._mirrors.changed_pods.clear()
        return whose

    def _see_job(self, job: JobId, entry: Entry | None) -> None:
        """Count the pods of a job that are decided but not on their node."""
        name = name_of(job)
        if entry is None or (entry.status.is_final and not entry.status.pods):
            self._requests.forget(job)
            self._free.decided.drop(name)
            self._refusals.forget(job)
            return
        asks = self._requests.update(job, name)
        if asks is None:
            return
        self._free.learn_ports(asks)
        booked = {booking.node: booking.serial for booking in entry.status.pods}
        placed = entry.status.placement.nodes if entry.status.placement is not None else ()
        coming = [
            PodUsage(node, asks.amounts)
            for node in {*placed, *booked}
            if not self._is_there(job, node, serial=booked.get(node))
        ]
        self._free.decided.put(name, sorted(coming))

    def _is_there(self, job: JobId, node: NodeName, *, serial: int | None) -> bool:
        """True if the pod is bound to its node, or has ended."""
        if serial is None:
            return False
        name = name_of(job)
        pod_name = building.trainer_name(name.name, serial)
        document = self._mirrors.pods.get(Name(name.namespace, pod_name))
        if document is None:
            return False
        if is_bound(document):
            self._refusals.forget_node(job, node)
            return True
        self._note_refusal(job, node, said=read_refusal(document))
        return (document.get("status") or {}).get("phase") in ("Succeeded", "Failed")

    def _note_refusal(self, job: JobId, node: NodeName, *, said: str) -> None:
        """Note a refusal, unless its reason is passing."""
        if not said:
            return
        document = self._mirrors.nodes.get(Name("", node))
        # A kubelet that restarts is not ready for a moment; then the pod may be bound after all.
        is_restarting = document is not None and not is_ready(document)
        # kube-scheduler may not have tried the pod again since its volumes were bound.
        is_outdated = UNBOUND in said and self._requests.is_bound(job)
        if is_restarting or is_outdated:
            self._doubtful.add(job)
            return
        self._refusals.note(job, node, said=said)

    # --- needs

    def _see_claims(self) -> set[JobId]:
        """Return the jobs whose claims were bound or moved, so that other nodes may suit them."""
        jobs = self._requests.take_moved()
        for job in jobs:
            # kube-scheduler may have refused the pods because of this claim.
            self._refusals.forget(job)
        return jobs

    def _find_needs(
        self, touched: set[JobId], entries: Mapping[JobId, Entry], *, fits_changed: bool
    ) -> None:
        jobs = touched | self._see_claims() | self._refusals.expire()
        if fits_changed:
            jobs.update(self._requests.jobs)
        changed = {}
        for job in jobs:
            needs = self._needs_of(job) if job in entries else None
            if needs is not self._needs.get(job):
                changed[job] = needs
        if changed:
            merged = {**self._needs, **changed}
            self._needs = {job: needs for job, needs in merged.items() if needs is not None}

    def _needs_of(self, job: JobId) -> Needs | None:
        asks = self._requests.get(job)
        if asks is None:
            return None
        found = self._fitting.find(asks.wants, self._requests.reaches(asks))
        refused = self._refusals.of(job)
        if not refused:
            return found
        return self._fitting.share(leave_out(found, refused, nodes=self._fitting.names))


def _usage(document: PodDocument | None) -> PodUsage | None:
    return read_usage(document) if document is not None else None


def _ways(document: PodDocument | None) -> Ways | None:
    """Return how a pod reaches GPUs that has our label but is not of our jobs."""
    if document is None or role_of(document) or is_placeholder(document):
        return None
    return read_ways(document)


def _job_of(name: Name, document: Json) -> JobId | None:
    job = job_of(document)
    return job_id(Name(name.namespace, job)) if job else None
