"""
The platform of Kubernetes: jobs are custom resources, and their statuses hold the decisions.

Implements :class:`dlcontrol.situation.ports.Platform`. It reads everything from mirrors that the watches
fill, and polls nothing. Every write of a status has a precondition on the version
it was made from, names the epoch of the decision, and comes before the actions that follow from it.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dlcontrol.situation.ports import (
    Entry,
    Observation,
    PodKey,
    PodOrder,
)
from dlcontrol.situation.status import Status
from dlcore.model import JobId, NodeName
from dlcore.predicting.predictor import Span
from dlkube.certificates import Certificates
from dlkube.client import (
    ApiServer,
)
from dlkube.events import EventWriter
from dlkube.names import Name
from dlkube.watches.mirror import Mirrors
from dloperator.job_reading import JobReader
from dloperator.jobs.entries import (
    Jobs,
    name_of,
)
from dloperator.jobs.epochs import Epochs, Term
from dloperator.jobs.stamping import stamp
from dloperator.jobs.status_writing import FigureWriter, StatusDocuments, StatusWriter
from dloperator.nodes.nodes import (
    Pool,
)
from dloperator.nodes.reading import NodeReader
from dloperator.nodes.reserving import Reservations
from dloperator.nodes.room.account import Room
from dloperator.pods.booked_pods import BookedPods
from dloperator.pods.deletions import Deletions
from dloperator.pods.dry_runs import DryRuns
from dloperator.pods.launching import Launcher
from dloperator.pods.orphans import Orphans
from dloperator.podspecs.host_ports import meeting_port
from dloperator.podspecs.podsettings import PodSettings

log = logging.getLogger(__name__)

Json = Mapping[str, Any]

FIRST_PORT, PORTS, PORTS_A_START = 20_000, 10_000, 64
"""Where processes of a job meet; every pod has an address of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """How the operator uses the nodes and pods of a cluster."""

    pods: PodSettings = PodSettings()
    pool: Pool = Pool()


class Cluster:
    """
    The jobs, nodes and pods of one cluster, for as long as we lead.

    It has a method for each one of the platform's contract, and so is long; its parts do the work.
    """

    def __init__(
        self,
        api: ApiServer,
        mirrors: Mirrors,
        *,
        certificates: Certificates,
        events: EventWriter,
        term: Term,
        dry_runs: DryRuns,
        settings: ClusterSettings,
        reservations: Reservations,
    ) -> None:
        self._mirrors = mirrors
        self._events = events
        self._term = term
        self._dry_runs = dry_runs
        self._reservations = reservations
        self._jobs = Jobs(dry_runs.specs, term.clock)
        self._epochs = Epochs(term.epoch, term.is_over, warn=events.warn)
        documents = StatusDocuments(term.epoch, dry_runs.result)
        self._writer = StatusWriter(
            api, mirrors, term=term, epochs=self._epochs, jobs=self._jobs, documents=documents
        )
        self._figures = FigureWriter(
            mirrors, self._writer, epochs=self._epochs, jobs=self._jobs, documents=documents
        )
        self._orphans = Orphans(mirrors)
        self._reader = JobReader(
            mirrors,
            self._jobs,
            epoch=term.epoch,
            epochs=self._epochs,
            dry_runs=dry_runs,
            orphans=self._orphans,
            writer=self._writer,
            documents=documents,
        )
        self._nodes = NodeReader(mirrors, reservations, pool=settings.pool)
        self._room = Room(mirrors, dry_runs.asks)
        self._unsettled: set[Name] = set()
        """Jobs that have changed since what their pods ask was counted."""
        self._pods = BookedPods(mirrors)
        self._launcher = Launcher(
            api, mirrors, certificates=certificates, booked=self._pods, settings=settings.pods
        )
        self._deletions = Deletions(api, mirrors, writer=self._writer)
        mirrors.attend()
        mirrors.believe = self._writer.believed

    @property
    def entries(self) -> Mapping[JobId, Entry]:
        """All jobs, as they were seen last."""
        return self._reader.entries

    # --- what is

    async def observe(self) -> Observation:
        """Tell everything there is."""
        self._term.insist()
        await self._reader.settle_epochs()
        # Answers about pods from the last cycle do not hold in this one.
        self._deletions.begin_cycle()
        # Nothing awaits from here on, so that jobs, nodes and pods are those of one instant.
        changed = self._reader.read() | self._unsettled
        self._unsettled = set()
        nodes, gone = self._nodes.read(self.entries.values())
        for name in gone:
            self._orphans.note_gone(name)
        there = [(self._mirrors.nodes.objects[Name("", node.name)], node) for node in nodes]
        settled = self._room.settle(self.entries, changed, nodes=there)
        marked = tuple(self._orphans.mark(settled, self.entries))
        self._reservations.note(self._nodes.refusals)
        return Observation(
            self.entries,
            marked,
            self._pods.read(self.entries),
            self._room.needs,
            {NodeName(name): machine for name, machine in self._nodes.machines.items()},
        )

    def meet(self, name: Name) -> None:
        """Begin to find out whether Kubernetes takes its pods, so that the next look knows."""
        document = self._mirrors.jobs.get(name)
        if document is not None:
            self._dry_runs.begin(document)

    # --- what is kept

    async def begin(self) -> None:
        """Know all jobs, before anything is asked about them."""
        await self._dry_runs.specs.read_ahead(self._mirrors.jobs.objects.values())
        self._unsettled |= self._reader.read()

    async def stamp(self) -> None:
        """
        Put our epoch on every allocation, first on those that are being changed.

        It goes on beside the loop, which stamps what it writes itself. A former leader that wakes up has at
        most the requests that it was about to send: what they command was recorded before we began, and a
        record that comes late is seen, is not ours, and ends us.
        """
        await stamp(
            self.entries, self._mirrors, epoch=self._term.epoch, write=self._writer.write_all
        )

    async def record(self, statuses: Mapping[JobId, Status]) -> None:
        """
        Keep these, first of all of those that gain nothing.

        Within each part they do not depend on each other, so they are written at the same time.
        """
        self._term.insist()
        gaining = {job for job, status in statuses.items() if _gains(self.entries, job, status)}
        # GPUs are recorded as free before another job is recorded to have them.
        for part in (statuses.keys() - gaining, gaining):
            # A failure in the first part keeps the second from being written, because GPUs that it
            # gives away may still be recorded as held.
            await self._writer.write_all({job: statuses[job] for job in statuses if job in part})

    async def publish(self, job: JobId, status: Status, *, remaining: Span | None) -> None:
        """
        Show how far a job is, unless anything else has changed by now.

        No decision depends on it. Between reading the record and sending the write no other task runs, so
        that the write replaces exactly the version that was read.
        """
        self._term.insist()
        await self._figures.publish(job, status, remaining=remaining)

    def shown_queue(self, job: JobId) -> Json | None:
        """Where a job is in the queue, as its status says it now."""
        document = self._mirrors.jobs.get(name_of(job))
        queue: Json | None = (document or {}).get("status", {}).get("queue")
        return queue

    async def show_queue(self, job: JobId, queue: Json | None) -> None:
        """Show where a job that waits is in the queue, or no longer that it is in it; as :meth:`publish`."""
        self._term.insist()
        await self._figures.show_queue(job, queue)

    async def is_overtaken(self) -> bool:
        """Ask the Lease, past all that is remembered, whether another operator leads."""
        return await self._epochs.is_over()

    # --- pods

    async def launch(self, order: PodOrder) -> None:
        """Let there be this pod."""
        self._term.insist()
        # A request to create has no version to fail by. If it arrives when another operator leads,
        # and the pod is not booked any more, that operator deletes it.
        await self._launcher.launch(order, self._writer.turns)

    async def remove(self, key: PodKey, *, because: str) -> None:
        """Have this pod end."""
        self._term.insist()
        entry = self.entries[key.job]
        recorded = self._jobs.status(name_of(key.job))
        for booking in entry.status.pods:
            if booking.node == key.node:
                message = f"the pod on {key.node} is removed: {because}"
                await self.tell(key.job, "PodRemoved", message, warning=True)
                # As recorded, not as seen: a start that this cycle has recorded is not in the entry
                # yet, and a pod that counts as never used needs no proof of its end.
                was_used = recorded is None or booking.serial in recorded.used
                await self._launcher.end(entry, booking, was_used=was_used)

    async def forget(self, job: JobId) -> None:
        """
        Delete a job that has ended and whose pods have, and keep it no longer.

        It goes after its pods (:class:`~dloperator.pods.deletions.Deletions`).
        """
        self._term.insist()
        await self._deletions.delete(job, self.entries.get(job))

    def host_of(self, key: PodKey) -> str:
        """Every pod has an address of its own, by which the others reach it."""
        address = self._pods.address(key)
        if address is None:
            raise LookupError(f"the pod of {key} has no address")
        return address.host

    def rendezvous_port(self, job: JobId, generation: int, processes: int) -> int:
        """Take other ports for each start, since a process of the last one may still hold its own."""
        if first := self._launcher.host_port(self.entries[job]):
            return meeting_port(first, generation, processes)
        step = max(PORTS_A_START, processes)
        return FIRST_PORT + generation * step % (PORTS - step)

    async def tell(self, job: JobId, reason: str, message: str, *, warning: bool = False) -> None:
        """Write an Event, when there is time for it."""
        document = self._mirrors.jobs.get(name_of(job))
        if document is not None:
            self._events.write(document, reason, message, warning=warning)


def _gains(entries: Mapping[JobId, Entry], job: JobId, status: Status) -> bool:
    """Whether a job is to have a GPU that it does not have."""
    before = entries[job].status if job in entries else None
    held = before.placement.refs() if before is not None and before.placement else ()
    wanted = status.placement.refs() if status.placement is not None else ()
    return not set(wanted) <= set(held)
