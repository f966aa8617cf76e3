"""The Kubernetes platform: jobs are custom resources, and their statuses hold the decisions.

Implements :class:`dljob.control.situation.ports.Platform`. It reads everything from mirrors that the
watches fill, and polls nothing. Every write of a status has a precondition on the version it was
made from, names the epoch of the decision, and comes before the actions that follow from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from dljob.control.situation.ports import Entry, Observation, PodKey, PodOrder
from dljob.control.situation.status import Status
from dljob.core.model import JobId
from dljob.core.placement.limits import NamespaceLimits
from dljob.kube.certificates import Certificates
from dljob.kube.client import ApiServer
from dljob.kube.events import EventWriter
from dljob.kube.watches.mirror import Mirrors
from dljob.operator.jobs.ending import Deletions
from dljob.operator.jobs.entries import name_of
from dljob.operator.jobs.status_writing import FigureWriter, StatusDocuments, StatusWriter
from dljob.operator.jobs.trusted_jobs import TrustedJobs
from dljob.operator.kueue.quotas import KueueSettings, Quotas
from dljob.operator.nodes.nodes import Pool
from dljob.operator.nodes.reading import NodeReader
from dljob.operator.nodes.reserving import Reservations
from dljob.operator.observing import Observer
from dljob.operator.pods.booked_pods import BookedPods
from dljob.operator.pods.dry_runs import DryRuns
from dljob.operator.pods.launching import Launcher
from dljob.operator.podspecs.podsettings import PodSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """How the operator uses the nodes, pods and queues of a cluster."""

    pods: PodSettings = PodSettings()
    pool: Pool = Pool()
    kueue: KueueSettings = KueueSettings()
    limits: NamespaceLimits = NamespaceLimits()
    """A queue gets no higher priority of a job than these allow to decisions."""


class Cluster:
    """The jobs, nodes and pods of one cluster, for the life of a leader."""

    def __init__(
        self,
        api: ApiServer,
        mirrors: Mirrors,
        *,
        jobs: TrustedJobs,
        certificates: Certificates,
        events: EventWriter,
        dry_runs: DryRuns,
        settings: ClusterSettings,
        reservations: Reservations,
    ) -> None:
        self._mirrors = mirrors
        self._jobs = jobs
        self._events = events
        self._term = jobs.term
        documents = StatusDocuments(jobs.term.epoch, dry_runs.result)
        self._statuses = StatusWriter(api, mirrors, trusted=jobs, documents=documents)
        self.figures = FigureWriter(mirrors, self._statuses)
        booked = BookedPods(mirrors)
        self.quotas = (
            Quotas(api, mirrors, settings=settings.kueue, limits=settings.limits)
            if settings.kueue.enabled
            else None
        )
        self._observer = Observer(
            mirrors,
            dry_runs=dry_runs,
            writer=self._statuses,
            nodes=NodeReader(mirrors, reservations, pool=settings.pool),
            reservations=reservations,
            booked=booked,
            quotas=self.quotas,
        )
        self._launcher = Launcher(
            api,
            mirrors,
            certificates=certificates,
            booked=booked,
            settings=settings.pods,
            turns=self._statuses.turns,
        )
        self._deletions = Deletions(api, mirrors, writer=self._statuses)

    @property
    def entries(self) -> Mapping[JobId, Entry]:
        """All jobs, as of the last cycle."""
        return self._observer.entries

    async def begin(self) -> None:
        await self._observer.begin()

    async def observe(self) -> Observation:
        self._term.insist()
        # Answers about pods from the last cycle do not hold in this one.
        self._deletions.begin_cycle()
        return await self._observer.observe()

    async def stamp(self) -> None:
        """Write our epoch into every allocation, first into those that are being changed.

        Stamping is a separate task; the loop's own writes bear the new epoch already. A former
        leader that wakes up can at most send requests that it had prepared: their commands were
        recorded before we began, and if it wrote a late record, we would notice it and exit.
        """
        await self._statuses.stamp(self.entries)

    async def record(self, statuses: Mapping[JobId, Status]) -> None:
        await self._statuses.record(statuses, self.entries)

    async def is_overtaken(self) -> bool:
        return await self._jobs.epochs.is_over()

    async def launch(self, order: PodOrder) -> None:
        self._term.insist()
        # A creation has no precondition. If it arrives when another operator leads and the pod is no
        # longer booked, that operator deletes the pod.
        await self._launcher.launch(order)

    async def remove(self, key: PodKey, *, because: str) -> None:
        self._term.insist()
        entry = self.entries[key.job]
        recorded = self._jobs.records.status(name_of(key.job))
        for booking in entry.status.pods:
            if booking.node == key.node:
                message = f"the pod on {key.node} is removed: {because}"
                await self.tell(key.job, "PodRemoved", message, warning=True)
                # Use the record, not the scene: a start that this cycle has recorded is not in the
                # entry yet, and a pod that counts as never used needs no proof of its end.
                was_used = recorded is None or booking.serial in recorded.used
                await self._launcher.end(entry, booking, was_used=was_used)

    async def forget(self, job: JobId) -> None:
        self._term.insist()
        await self._deletions.delete(job, self.entries.get(job))

    def host_of(self, key: PodKey) -> str:
        return self._launcher.host_of(key)

    def rendezvous_port(self, job: JobId, generation: int, processes: int) -> int:
        return self._launcher.rendezvous_port(self.entries[job], generation, processes=processes)

    async def tell(self, job: JobId, reason: str, message: str, *, warning: bool = False) -> None:
        document = self._mirrors.jobs.get(name_of(job))
        if document is not None:
            self._events.write(document, reason, message, warning=warning)
