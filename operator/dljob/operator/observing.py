"""
The jobs, nodes and pods as the controller sees them in each cycle, read from the mirrors.

Part of :mod:`dljob.operator.cluster`.
"""

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from dljob.control.situation.ports import Behind, Entry, NotKeptAlone, Observation
from dljob.core.documents.rules.podrules import TRAINER
from dljob.core.model import Ceiling, GpuRef, JobId, Node, NodeName
from dljob.core.placement.needs import Needs
from dljob.kube.names import Name
from dljob.kube.watches.mirror import Mirrors
from dljob.operator.jobs.entries import job_id
from dljob.operator.jobs.status_writing import StatusWriter
from dljob.operator.jobs.trusted_jobs import TrustedJobs
from dljob.operator.kueue.quotas import Quotas
from dljob.operator.nodes.reading import NodeReader
from dljob.operator.nodes.reserving import Reservations
from dljob.operator.nodes.room import Room
from dljob.operator.pods.booked_pods import BookedPods
from dljob.operator.pods.dry_runs import DryRuns
from dljob.operator.proofs import is_booked, is_bound, job_of, proof_of_end, role_of

log = logging.getLogger(__name__)


class Orphans:
    """
    Pods that no job accounts for, and whose end is not proven; one for the life of a leader.

    Our finalizer keeps a job until the end of its pods is proven. If a person removes the finalizer, the record of the
    pods' GPUs is lost.

    A deleted Node counts as gone, and its jobs move elsewhere. If that was a mistake, its pods may still train when the
    machine registers again. Their objects are kept for a while (:mod:`dljob.operator.pods.cleanup`), until the kubelet
    reports their end or the machine has another boot ID.

    Until the end of an orphan is proven, no job gets a GPU of its node, except for those that a job already holds.
    """

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
        held: set[GpuRef] = set()
        for entry in entries.values():
            # The GPUs that a job has, or has not released yet.
            held.update(entry.status.leftover)
            if entry.status.placement is not None:
                held.update(entry.status.placement.refs())
        return [
            _without(node, found[node.name], held=held) if node.name in found else node
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
            job = self._jobs.get(Name(name.namespace, job_of(pod)))
            if proof_of_end(pod, machine) or (job is not None and is_booked(job, pod)):
                self._known.discard(name)
            elif is_bound(pod):
                found[NodeName(node)] = str(name)
        return found


def _without(node: Node, pod: str, *, held: Collection[GpuRef]) -> Node:
    """Make the GPUs of a node with an orphan unavailable, but for those that jobs hold."""
    why = f"pod {pod}, which no job accounts for, has not been proven to have ended"
    return replace(
        node,
        gpus=tuple(
            gpu
            if GpuRef(node.name, gpu.index) in held or gpu.unavailable_because
            else replace(gpu, unavailable_because=why)
            for gpu in node.gpus
        ),
    )


class JobReader:
    """Keeps the entries of all jobs."""

    def __init__(
        self, mirrors: Mirrors, *, dry_runs: DryRuns, orphans: Orphans, writer: StatusWriter
    ) -> None:
        self._mirrors = mirrors
        self._trusted = writer.trusted
        self._dry_runs = dry_runs
        self._orphans = orphans
        self._writer = writer
        self.entries: dict[JobId, Entry] = {}
        """All jobs; a new dictionary whenever one has changed."""
        self._doubted: set[Name] = set()
        """Jobs whose status was doubted when they were last read."""

    async def settle_epochs(self) -> None:
        """
        Write over epochs that the Lease does not confirm, and over statuses of other programs.

        Raises :class:`Fenced` if the Lease confirms one, and :class:`Behind` if another program has decided
        about a job: then the operator reads everything again, as a new leader does.
        """
        jobs = self._mirrors.jobs
        found = (jobs.get(name) for name in self._mirrors.changed_jobs | self._doubted)
        doubted = [each for each in found if each is not None and self._trusted.is_doubted(each)]
        # Kept for the next cycle: a status that is not written over yet need not change again.
        self._doubted = set(map(Name.of, doubted))
        for document in doubted:
            if not self._trusted.epochs.is_later(document):
                self._trusted.epochs.report_foreign(document)
            elif not self._trusted.records.is_as_decided(document):
                await self._trusted.epochs.insist(document)
                why = (
                    f"another program has decided about job {Name.of(document)}, and no other leads"
                )
                raise Behind(self._writer.term.epoch + 1, why)
        try:
            await self._writer.write_all({job_id(name): None for name in self._doubted})
        except NotKeptAlone as error:
            log.warning("a status is not written over yet: %s", error)

    def read(self) -> set[Name]:
        """Read the jobs that have changed, and return their names."""
        changed = set(self._mirrors.changed_jobs) | self._dry_runs.news()
        # Copied and cleared with no await in between, so that no change is lost.
        self._mirrors.changed_jobs.clear()
        if not changed:
            return changed
        entries = dict(self.entries)
        for name in changed:
            document = self._mirrors.jobs.get(name)
            if document is None:
                if entries.pop(job_id(name), None) is not None:
                    self._orphans.note_end(name)
                self._trusted.forget(name)
                self._writer.documents.forget(job_id(name))
                self._dry_runs.forget(name)
                continue
            known, uid = entries.get(job_id(name)), document["metadata"]["uid"]
            if known is not None and known.document["metadata"]["uid"] != uid:
                # One cycle without the job, so that all readers forget the former job of this name.
                del entries[job_id(name)]
                self._orphans.note_end(name)
                self._trusted.records.forget(name)
                self._writer.documents.forget(job_id(name))
                self._mirrors.changed_jobs.add(name)
                self._mirrors.report_news(burst=True)
                continue
            # The next cycle asks the Lease; until then the status as recorded counts.
            if self._trusted.is_doubted(document):
                self._doubted.add(name)
            document = self._trusted.trusted(document)
            self._dry_runs.begin(document)
            refusal = self._dry_runs.result(document)
            # A job that was decided about before is always seen, because it may hold GPUs.
            was_seen = job_id(name) in entries or bool(document.get("status"))
            if refusal is not None or was_seen:
                entries[job_id(name)] = self._trusted.records.read(document, problem=refusal or "")
        self.entries = entries
        return changed


class Observer:
    """Observes the cluster once a cycle."""

    def __init__(
        self,
        mirrors: Mirrors,
        *,
        dry_runs: DryRuns,
        writer: StatusWriter,
        nodes: NodeReader,
        reservations: Reservations,
        booked: BookedPods,
        quotas: Quotas | None = None,
    ) -> None:
        self._mirrors = mirrors
        self._quotas = quotas
        self._dry_runs = dry_runs
        self._orphans = Orphans(mirrors, writer.trusted)
        self._jobs = JobReader(mirrors, dry_runs=dry_runs, orphans=self._orphans, writer=writer)
        self._nodes = nodes
        self._reservations = reservations
        self._room = Room(mirrors, dry_runs.asks)
        self._booked = booked
        self._unsettled: set[Name] = set()
        """Jobs that have changed since the requests of their pods were counted."""

    @property
    def entries(self) -> Mapping[JobId, Entry]:
        return self._jobs.entries

    async def begin(self) -> None:
        """Read all jobs before the first cycle."""
        await self._dry_runs.specs.read_ahead(self._mirrors.jobs.objects.values())
        self._unsettled |= self._jobs.read()

    async def observe(self) -> Observation:
        await self._jobs.settle_epochs()
        # There is no await from here on, so jobs, nodes and pods are of the same instant.
        changed = self._jobs.read() | self._unsettled
        self._unsettled = set()
        nodes, gone = self._nodes.read(self.entries.values())
        for name in gone:
            self._orphans.note_gone(name)
        there = [(self._mirrors.nodes.objects[Name("", node.name)], node) for node in nodes]
        settled = self._room.settle(self.entries, changed, nodes=there)
        marked = tuple(self._orphans.mark(settled, self.entries))
        self._reservations.note(self._nodes.refusals)
        needs: Mapping[JobId, Needs] = self._room.needs
        ceilings: Mapping[JobId, Ceiling] = {}
        if self._quotas is not None:
            ceilings = self._quotas.read(self.entries)
            needs = self._quotas.narrow(needs, ceilings)
        return Observation(
            self.entries,
            marked,
            self._booked.read(self.entries),
            needs,
            {NodeName(name): machine for name, machine in self._nodes.machines.items()},
            {
                name: why
                for namespace in self._mirrors.held.objects.values()
                for name, why in namespace["holds"].items()
            },
            {
                name.name: namespace["max_priority"]
                for name, namespace in self._mirrors.held.objects.items()
                if namespace["max_priority"] is not None
            },
            ceilings,
        )
