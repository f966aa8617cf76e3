"""Builds and runs the parts that exist only while an operator leads: the controller, its memory and background tasks."""

import asyncio
import itertools
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace

from dljob.control.judging.conditions import NOT_STARTED
from dljob.control.learning.learned_state import LearnedState
from dljob.control.loop import Controller
from dljob.control.reporting.metrics import Metrics
from dljob.control.scheduling import Options
from dljob.control.settings import Setting
from dljob.control.sidecars.dialing import DialSettings
from dljob.control.sidecars.following import SideCars, Surroundings
from dljob.control.situation.clocks import SteadyClock, report_steps
from dljob.control.situation.ports import Fenced, NotKeptAlone, PodKey
from dljob.control.situation.status import ConditionType
from dljob.core.measuring import SpeedSamples
from dljob.core.model import JobId
from dljob.kube import names
from dljob.kube.certificates import Certificates
from dljob.kube.client import ApiServer, NotFound, Rejected, Unreachable
from dljob.kube.events import EventWriter
from dljob.kube.leases import Election
from dljob.kube.names import Name
from dljob.kube.programs import return_freed_memory, together
from dljob.kube.resources import PODS
from dljob.kube.watches.mirror import Mirrors
from dljob.operator.cluster import Cluster, ClusterSettings
from dljob.operator.jobs.entries import Specs, name_of
from dljob.operator.jobs.epochs import Term
from dljob.operator.jobs.trusted_jobs import TrustedJobs
from dljob.operator.nodes.ownership import OwnershipRules
from dljob.operator.nodes.reserving import Reservations
from dljob.operator.pods.cleanup import Cleanup
from dljob.operator.pods.dry_runs import DryRuns
from dljob.operator.podspecs.podsettings import GpuAccess
from dljob.operator.reporting.configmap_writing import ConfigMapWriter, settings_text
from dljob.operator.reporting.expecting import Expectations
from dljob.operator.reporting.gpu_configmap import GpuConfigMap
from dljob.operator.reporting.learned_configmap import Learned, LearnedConfigMap
from dljob.operator.reporting.publishing import LossAnnotations, Publisher, Publishing
from dljob.store.notebook import Notebook, NotebookState
from dljob.store.opening import open_store
from dljob.store.sqlite.store import SqliteStore
from dljob.store.store import Bounds

log = logging.getLogger(__name__)

RENEWAL_S = 5.0
AGAIN_S = 1.0
STORE_LOOK_S = 1.0
STORE_AGAIN_S = 1800.0
"""The Event is repeated while the store is unavailable, because Kubernetes forgets Events after an hour."""
ROUNDS = 12
MOST_WAITING = 20
"""Every ``ROUNDS`` rounds the leader writes the certificates of this many waiting jobs again, in case they are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The settings of the leader's work."""

    options: Options
    store: str = ""
    """The address of the store of profiles and history."""
    sample_seconds: float = 10.0
    cluster: ClusterSettings = ClusterSettings()
    dialing: DialSettings = DialSettings()
    publishing: Publishing = Publishing()
    shown_settings: tuple[Setting, ...] = ()
    """The settings of this operator, for users to see."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """The parts of an operator that exist whether it leads or not."""

    api: ApiServer
    mirrors: Mirrors
    election: Election
    metrics: Metrics
    identity: str
    namespace: str
    """The operator's own namespace."""
    specs: Specs
    """The specs that were parsed while another operator led."""
    installation: str = ""
    """The ID of this installation of DLJob; empty if it is unknown."""


class Leading:
    """All parts of a leader in one epoch."""

    def __init__(
        self,
        candidate: Candidate,
        work: Work,
        *,
        certificates: Certificates,
        folder: str,
        notebook: Notebook,
        clock: SteadyClock,
    ) -> None:
        self._api = api = candidate.api
        self._mirrors, self._home = candidate.mirrors, candidate.namespace
        self._shown_settings = work.shown_settings
        self._election = candidate.election
        self._certificates = certificates
        self._events = EventWriter(api, instance=candidate.identity)
        specs = candidate.specs
        self._clock = clock
        epoch = self._election.epoch
        term = Term(epoch, lambda: self._election.is_leading, self._election.is_overtaken, clock)
        jobs = TrustedJobs(self._mirrors, specs, term=term, warn=self._events.warn)
        self._dry_runs = DryRuns(api, specs, settings=work.cluster.pods, wake=self._wake_soon)
        self._changed = asyncio.Event()
        """Set after each change of the cluster; the cleanup waits for it."""
        reservations = _make_reservations(candidate, work.cluster, jobs=jobs, changed=self._changed)
        self._cleanup = Cleanup(
            api,
            self._mirrors,
            jobs=jobs,
            specs=specs,
            reservations=reservations,
            changed=self._changed,
            warn=self._events.warn,
        )
        lessons = SpeedSamples(sample_seconds=work.sample_seconds)
        self._memory = LearnedState(notebook, lessons, epoch=epoch)
        candidate.metrics.watch_store(notebook.state)
        dialing = replace(work.dialing, certificates=folder)
        surroundings = Surroundings(
            heard=self._hear,
            epoch=epoch,
            installation=candidate.installation,
            meter=candidate.metrics,
            clock=clock,
        )
        self._sidecars = SideCars(surroundings, dialing)
        self._cluster = Cluster(
            api,
            self._mirrors,
            jobs=jobs,
            certificates=certificates,
            events=self._events,
            dry_runs=self._dry_runs,
            settings=work.cluster,
            reservations=reservations,
        )
        self._controller = Controller(
            self._cluster,
            self._sidecars,
            learning=self._memory,
            metrics=candidate.metrics,
            options=work.options,
            epoch=epoch,
            clock=self._clock,
        )

        self._gpu_config_map = GpuConfigMap(api, candidate.namespace, controller=self._controller)
        self._learned_config_map = LearnedConfigMap(
            api,
            candidate.namespace,
            scene=lambda: self._controller.scene,
            snapshot=self._controller.scheduler.snapshot,
            policy=work.options.policy.name,
        )
        self._publisher = Publisher(
            self._cluster.figures,
            lambda: self._controller.scene,
            snapshot=self._controller.scheduler.snapshot,
            settings=work.publishing,
        )
        self._losses = LossAnnotations(api, self._mirrors, scene=lambda: self._controller.scene)
        self._expectations = Expectations(
            self._cluster, self._controller, policy=work.options.policy
        )

    async def run(self) -> None:
        """Control until something fails."""
        await self._cluster.begin()
        # Before the first decision, which could give away a GPU that the former leader has withdrawn.
        await self._recall()
        if self._shown_settings:
            failure = "dljob config show cannot show the settings of this operator"
            data = {names.SETTINGS_KEY: settings_text(self._shown_settings)}
            writer = ConfigMapWriter(self._api, self._home, failure=failure)
            await writer.write(names.SETTINGS, {"data": data})
        # No news is lost before this: mirrors collect all changes since the Cluster was made,
        # and the first cycle of the loop reads it without being woken.
        self._mirrors.listen(self)
        await together(
            self._controller.run(),
            self._stamp(),
            self._events.run(),
            self._cleanup.run(),
            self._publisher.run(),
            self._expectations.run(),
            self._losses.run(),
            self._gpu_config_map.run(),
            self._learned_config_map.run(),
            report_store(
                self._api, self._events, namespace=self._home, state=self._memory.notebook.state
            ),
            self._renew(),
            self._tell_kueue(),
            report_steps(self._clock, log.warning),
            return_freed_memory(),
        )

    async def close(self) -> None:
        """Release everything. Trainings continue."""
        # The mirrors outlive this leader, and their watches must not wake a loop that has ended.
        self._mirrors.listen(None)
        await self._dry_runs.close()
        await self._sidecars.close()
        # Closed after the SideCars, whose answers are written into it.
        self._memory.close()

    def note_change(self) -> None:
        self._changed.set()
        if self._cluster.quotas is not None:
            self._cluster.quotas.note_change()

    def note_news(self, *, burst: bool) -> None:
        self._controller.wake(burst=burst)

    def note_job(self, name: Name) -> None:
        """Begin the dry run of a new or changed job at once, so that the next cycle has the result."""
        document = self._mirrors.jobs.get(name)
        if document is not None:
            self._dry_runs.begin(document)
        self._wake_soon()

    def _wake_soon(self) -> None:
        self._controller.wake(burst=True, urgent=True)

    async def _recall(self) -> None:
        """Read the former leader's state of GPUs, and retry until the API server answers."""
        while True:
            try:
                await self._gpu_config_map.recall()
                return
            except (Rejected, Unreachable) as error:
                if not self._election.is_leading:
                    raise Fenced(f"cannot take over: {error}") from error
                log.warning("cannot take over yet: %s", error)
            await asyncio.sleep(AGAIN_S)

    async def _stamp(self) -> None:
        """Write the epoch into all statuses; jobs whose status cannot be written are quarantined."""
        try:
            await self._cluster.stamp()
        except NotKeptAlone as error:
            await self._controller.effects.leave_alone(error)
        # together() ends all tasks when the first one ends.
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
                lacking = [
                    job
                    for job in jobs
                    for booking in self._cluster.entries[job].status.pods
                    if self._sidecars.contact(PodKey(job, booking.node)).outdated
                ]
                if number % ROUNDS == 0:
                    # They may wait for a Secret that was deleted.
                    waiting = (job for job in jobs if self._is_waiting(job))
                    lacking += itertools.islice(waiting, MOST_WAITING)
                await self._certificates.renew(jobs, lacking)
            except (Rejected, Unreachable) as error:
                log.warning("certificates are not renewed yet: %s", error)

    async def _tell_kueue(self) -> None:
        if self._cluster.quotas is None:
            # together() ends all tasks when the first one ends.
            await asyncio.Event().wait()
        else:
            await self._cluster.quotas.run(
                lambda: self._controller.scene, self._controller.scheduler.suppose
            )

    def _is_waiting(self, job: JobId) -> bool:
        """True if a pod of the job does not start and no reason is known."""
        said = self._cluster.entries[job].status.condition(ConditionType.INITIALIZED)
        return said is not None and said.reason == NOT_STARTED

    def _hear(self, key: PodKey, material: bool) -> None:  # noqa: FBT001 - as Surroundings has it
        entry = self._cluster.entries.get(key.job)
        state = self._sidecars.contact(key).state
        if entry is not None and state is not None:
            self._memory.hear(entry, key, state, self._clock())
        if material:
            self._controller.wake(urgent=True)


def _make_reservations(
    candidate: Candidate, settings: ClusterSettings, *, jobs: TrustedJobs, changed: asyncio.Event
) -> Reservations:
    return Reservations(
        candidate.api,
        candidate.mirrors,
        jobs=jobs,
        ask_for_cleanup=changed.set,
        namespace=candidate.namespace,
        pool=settings.pool,
        rules=OwnershipRules(
            settings.pods.taint,
            settings.pods.runtime_class,
            by_driver=settings.pods.gpu_access is GpuAccess.DRA_ADMIN,
        ),
    )


def open_memory(work: Work, learned: Learned) -> Notebook:
    """Open the notebook with the knowledge of the former leader; call it in a thread, because it may take seconds."""
    store = open_store(
        work.store, environment=os.environ, bounds=Bounds(days=work.options.record_days)
    )
    if isinstance(store, SqliteStore):
        # A server has it from the former leader itself.
        learned.complete(store)
    notebook = Notebook(store, defaults=work.options.costs).open()
    notebook.adopt(learned.profiles)
    return notebook


async def report_store(
    api: ApiServer, events: EventWriter, *, namespace: str, state: Callable[[], NotebookState]
) -> None:
    """
    Write an Event about the operator's own pod when its store becomes unavailable and available again.

    Jobs do not depend on the store, so their statuses do not mention it. An administrator who has installed DLJob with a
    wrong URL sees these Events in ``kubectl describe pod``. A process that is not in a pod writes none.
    """
    clock = asyncio.get_running_loop().time
    is_away, shown_at = False, clock()
    while True:
        await asyncio.sleep(STORE_LOOK_S)
        now = state()
        # Before the first request the store is neither connected nor has an error.
        away = not now.connected and bool(now.error)
        if away == is_away and not (away and clock() >= shown_at + STORE_AGAIN_S):
            continue
        try:
            pod = await api.get(PODS, socket.gethostname(), namespace)
        except NotFound:
            await asyncio.Event().wait()
            return
        except (Rejected, Unreachable):
            continue
        is_away, shown_at = away, clock()
        if away:
            effect = "jobs continue, and observations stay in memory until it is back"
            events.warn(pod, "StoreAway", f"the store is unavailable: {now.error}; {effect}")
        else:
            events.write(pod, "StoreIsBack", "the store is available again")
