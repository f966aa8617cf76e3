"""What there is only while an operator leads: the controller, its memory and what serves it."""

import asyncio
import itertools
import logging
import os
from dataclasses import dataclass, replace

from dlcontrol.judging.conditions import NOT_STARTED
from dlcontrol.learning.memory import Remembrance
from dlcontrol.learning.speeds import Lessons
from dlcontrol.loop import Controller, Options
from dlcontrol.reporting.metrics import Metrics
from dlcontrol.sidecars.dialing import DialSettings
from dlcontrol.sidecars.following import SideCars, Surroundings
from dlcontrol.situation.clocks import SteadyClock, report_steps
from dlcontrol.situation.ports import Fenced, NotKeptAlone, PodKey
from dlcontrol.situation.status import ConditionType
from dlcore.model import JobId
from dlkube.certificates import Certificates
from dlkube.client import ApiServer, Rejected, Unreachable
from dlkube.events import Teller
from dlkube.leases import Election
from dlkube.mirror import Mirrors
from dlkube.names import Name
from dlkube.tasks import together
from dloperator.cluster import Cluster, ClusterSettings, Term
from dloperator.jobs.entries import Specs, name_of
from dloperator.nodes.ownership import Customs
from dloperator.nodes.reserving import Reservations
from dloperator.pods.cleanup import Tidier
from dloperator.pods.dry_runs import Templates
from dloperator.reporting.expecting import Expectations
from dloperator.reporting.gpu_configmap import Bulletin
from dloperator.reporting.operator_events import tell_of_store
from dloperator.reporting.publishing import Publisher, Publishing
from dloperator.reporting.settings_configmap import Notice, show_settings
from dlstore.notebook.notebook import Notebook
from dlstore.opening import open_notebook, open_store

log = logging.getLogger(__name__)

RENEWAL_S = 5.0
AGAIN_S = 1.0
ROUNDS = 12
MOST_WAITING = 20
"""After so many rounds a certificate is written once more for so many jobs, in case it is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What the one that leads is to do, and how."""

    options: Options
    store: str = ""
    """Where profiles and the history are kept."""
    sample_seconds: float = 10.0
    cluster: ClusterSettings = ClusterSettings()
    dialing: DialSettings = DialSettings()
    publishing: Publishing = Publishing()
    notice: Notice | None = None
    """How this operator is set, for people to see."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """What an operator has whether it leads or not."""

    api: ApiServer
    mirrors: Mirrors
    election: Election
    metrics: Metrics
    identity: str
    namespace: str
    """Its own."""
    specs: Specs
    """What jobs say, as far as it was read while somebody else led."""
    installation: str = ""
    """The id of the installation of DLJob that it is of; empty if it cannot be known."""


class Leading:
    """All parts of a leader; of one epoch."""

    def __init__(
        self,
        candidate: Candidate,
        work: Work,
        certificates: Certificates,
        folder: str,
        *,
        notebook: Notebook,
    ) -> None:
        self._api = api = candidate.api
        self._mirrors = candidate.mirrors
        self._home = candidate.namespace
        self._notice = work.notice
        self._election = candidate.election
        self._certificates = certificates
        self._teller = Teller(api, instance=candidate.identity)
        specs = candidate.specs
        self._templates = Templates(api, specs, work.cluster.pods, self._wake_soon)
        reservations = _make_reservations(candidate, work.cluster)
        self._tidier = Tidier(api, self._mirrors, specs, reservations, warn=self._teller.warn)
        reservations.asks_for_look = self._tidier.wake
        epoch = self._election.epoch
        self._clock = SteadyClock()
        self._memory = Remembrance(
            notebook,
            Lessons(sample_seconds=work.sample_seconds),
            epoch=epoch,
        )
        candidate.metrics.watch_store(notebook.state)
        dialing = replace(work.dialing, certificates=folder)
        self._sidecars = SideCars(self._surroundings(candidate), dialing)
        self._cluster = Cluster(
            api,
            self._mirrors,
            certificates,
            self._teller,
            term=Term(epoch, lambda: self._election.is_leading, self._election.is_overtaken),
            templates=self._templates,
            settings=work.cluster,
            reservations=reservations,
        )
        self._controller = Controller(
            self._cluster,
            self._sidecars,
            self._memory,
            candidate.metrics,
            work.options,
            epoch=epoch,
            clock=self._clock,
        )

        self._bulletin = Bulletin(api, candidate.namespace, self._controller)
        self._publisher = Publisher(
            self._cluster,
            lambda: self._controller.scene,
            self._controller.snapshot,
            work.publishing,
        )
        self._expectations = Expectations(self._cluster, self._controller, work.options.policy)

    def _surroundings(self, candidate: Candidate) -> Surroundings:
        """Say whom the SideCars tell what they hear."""
        return Surroundings(
            heard=self._hear,
            epoch=self._election.epoch,
            installation=candidate.installation,
            meter=candidate.metrics,
            clock=self._clock,
        )

    async def run(self) -> None:
        """Control until something fails, and put the epoch on every allocation meanwhile."""
        await self._cluster.begin()
        await self._recall()
        if self._notice is not None:
            await show_settings(self._api, self._notice)
        self._mirrors.wake = lambda is_burst: self._controller.wake(burst=is_burst)
        self._mirrors.stir = self._tidier.wake
        self._mirrors.meet = self._meet
        await together(
            self._controller.run(),
            self._stamp(),
            self._teller.run(),
            self._tidier.run(),
            self._publisher.run(),
            self._expectations.run(),
            self._bulletin.run(),
            tell_of_store(self._api, self._teller, self._home, self._memory.notebook.state),
            self._renew(),
            report_steps(self._clock, log.warning),
        )

    async def close(self) -> None:
        """Let go of everything. What trains goes on."""
        self._mirrors.wake = lambda _: None
        self._mirrors.stir = lambda: None
        self._mirrors.meet = lambda _: None
        await self._templates.close()
        await self._sidecars.close()
        self._memory.close()

    def _meet(self, name: Name) -> None:
        self._cluster.meet(name)
        self._wake_soon()

    def _wake_soon(self) -> None:
        self._controller.wake(burst=True, urgent=True)

    async def _recall(self) -> None:
        """Know of GPUs what the former leader knew, however long the API server has to be asked for it."""
        while True:
            try:
                await self._bulletin.recall()
                return
            except Unreachable as error:
                if not self._election.is_leading:
                    raise Fenced(f"cannot take over: {error}") from error
                log.warning("cannot take over yet: %s", error)
            await asyncio.sleep(AGAIN_S)

    async def _stamp(self) -> None:
        """Put the epoch on what is recorded; where that is refused of some jobs, they are left alone."""
        try:
            await self._cluster.stamp()
        except NotKeptAlone as error:
            await self._controller.leave_alone(error)
        # Others go on for ever, and the first that ends ends all.
        await asyncio.Event().wait()

    async def _renew(self) -> None:
        for number in itertools.count(1):
            await asyncio.sleep(RENEWAL_S)
            jobs = {}
            for job, entry in self._cluster.entries.items():
                document = self._mirrors.jobs.get(name_of(job))
                if entry.status.pods and document is not None:
                    jobs[job] = document["metadata"]
            try:
                lacking = [job for job in jobs if self._is_outdated(job)]
                if number % ROUNDS == 0:
                    # Nobody says what they wait for, which may be a Secret that is gone.
                    waiting = (job for job in jobs if self._is_waiting(job))
                    lacking += itertools.islice(waiting, MOST_WAITING)
                await self._certificates.renew(jobs, lacking)
            except (Rejected, Unreachable) as error:
                log.warning("certificates are not renewed yet: %s", error)

    def _is_outdated(self, job: JobId) -> bool:
        """Whether the certificate of a pod of it is known to be over."""
        keys = (PodKey(job, booking.node) for booking in self._cluster.entries[job].status.pods)
        return any(self._sidecars.contact(key).outdated for key in keys)

    def _is_waiting(self, job: JobId) -> bool:
        """Whether a pod of it does not start, and nobody says why."""
        said = self._cluster.entries[job].status.condition(ConditionType.INITIALIZED)
        return said is not None and said.reason == NOT_STARTED

    def _hear(self, key: PodKey, material: bool) -> None:  # noqa: FBT001 - as Surroundings has it
        entry = self._cluster.entries.get(key.job)
        state = self._sidecars.contact(key).state
        if entry is not None and state is not None:
            self._memory.hear(entry, key, state, self._clock())
        if material:
            self._controller.wake(urgent=True)


def _make_reservations(candidate: Candidate, settings: ClusterSettings) -> Reservations:
    return Reservations(
        candidate.api,
        candidate.mirrors,
        candidate.namespace,
        settings.pool,
        customs=Customs(settings.pods.taint, settings.pods.runtime_class),
    )


def open_memory(work: Work) -> Notebook:
    """Open what is remembered; it may take seconds, so not for the event loop."""
    return open_notebook(open_store(work.store, environment=os.environ), work.options.costs)
