"""
The operator: it watches the cluster, waits until it leads, and then controls.

It watches everything before it leads, so that a new leader knows the cluster at once. It exits when it no longer
leads, because its memory would be out of date; Kubernetes restarts the container. Its exit stops no training.
"""

import asyncio
import logging
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from dljob.control.reporting.metrics import Metrics
from dljob.control.situation.clocks import LEAST_STEP_S, SteadyClock
from dljob.control.situation.ports import MOST_JUMP, Behind, Fenced
from dljob.core.primitives.once_per_change import OncePerChange
from dljob.kube import certificates, health_server
from dljob.kube.access import Access
from dljob.kube.certificates import (
    CA_SECRET,
    Authority,
    Certificates,
    WrongAuthority,
    authority_document,
)
from dljob.kube.client import ApiServer, Conflict, NotFound, Rejected, Unreachable
from dljob.kube.health_server import HealthServer, MetricsServer, MetricsSettings
from dljob.kube.leases import Election, LeaseSettings
from dljob.kube.programs import together
from dljob.kube.resources import SECRETS
from dljob.kube.shown_certificate import Shown
from dljob.kube.watches.mirror import Mirrors, epoch_of
from dljob.kube.watches.watching import NotInstalled, Watches, followed_by_operator
from dljob.operator.jobs import crd
from dljob.operator.jobs.entries import Specs
from dljob.operator.leading import Candidate, Leading, Work, open_memory
from dljob.operator.nodes.other_pods import OtherPods
from dljob.operator.reporting.learned_configmap import Learned
from dljob_wire.endpoints import read_endpoint

log = logging.getLogger(__name__)

AGAIN_S = 3.0
SOON_S = 0.5
READ_AHEAD_S = 5.0
GUARD_S = 5.0
"""The guard polls, because a watch would need the right to list Secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The namespaces and addresses of an operator."""

    namespace: str
    """The operator's own namespace, with its Lease and its CA."""
    identity: str
    """A name that is unique to this process."""
    watched: tuple[str, ...] = ()
    """The namespaces to watch; empty means all."""
    health: str = ":8080"
    """The address of /healthz, /readyz and /metrics, as [ADDRESS]:PORT."""
    metrics: MetricsSettings = MetricsSettings()
    """The access to metrics."""


class Operator:
    """All parts of one operator; made on its event loop."""

    def __init__(
        self, access: Access, place: Place, work: Work, lease: LeaseSettings | None = None
    ) -> None:
        self._place = place
        self._work = work
        self._api = ApiServer(access)
        self._mirrors = Mirrors()
        self._specs = Specs()
        self._watches = Watches(
            access,
            self._api,
            followed=followed_by_operator(
                self._mirrors, place.namespace, kueue=work.cluster.kueue.enabled
            ),
            namespaces=place.watched,
        )
        ours = (*place.watched, place.namespace) if place.watched else ()
        self._other_pods = OtherPods(self._api, self._mirrors, watched=ours)
        self._lease = lease or LeaseSettings()
        self._election = Election(
            self._api,
            place.namespace,
            identity=place.identity,
            settings=self._lease,
            # A session belongs to one event loop, and the Lease is renewed on another one.
            connect=lambda: ApiServer(access, connections=1),
        )
        self._installation = ""
        """The ID that commands carry; known once the definition of DLJobs is read."""
        self._metrics = Metrics(lambda: self._election.is_leading)
        self._complaint = "has not read the cluster yet"
        """The reason why the operator is not ready; a replica that waits to lead is ready."""
        plainly = None if place.metrics.protected else self._metrics.text
        self.health_server = HealthServer(
            read_endpoint(place.health), is_ready=lambda: self._complaint, metrics=plainly
        )

    async def run(self) -> None:
        """Operate until cancelled; raises :class:`~dljob.control.situation.ports.Fenced` once
        leadership is lost.
        """
        await self.health_server.open()
        try:
            await self._prepare()
            await together(
                self._watches.run(), self._other_pods.run(), self._lead(), self._show_metrics()
            )
        finally:
            # The Lease is released last: together() has waited for the end of its coroutines, so this
            # leader sends nothing once another one may lead.
            self._watches.ended.set()
            await self._election.leave()
            await self.health_server.close()
            await self._api.close()

    async def _show_metrics(self) -> None:
        """Serve protected metrics, for ever."""
        metrics, home = self._place.metrics, self._place.namespace
        if not metrics.protected:
            # together() ends the operator when the first coroutine ends.
            await asyncio.Event().wait()
        server = MetricsServer(
            read_endpoint(metrics.address), self._api, metrics=self._metrics.text
        )
        with tempfile.TemporaryDirectory(prefix="dljob-metrics-") as folder:
            await health_server.write_first_certificate(self._api, home, folder=Path(folder))
            await server.open(Shown(Path(folder)).context)
            try:
                await health_server.renew_certificate(self._api, home, folder=Path(folder))
            finally:
                await server.close()

    async def _prepare(self) -> None:
        """List everything and open the CA, and retry until both succeed."""
        while True:
            try:
                found = await crd.check(self._api)
                await self._see()
                await certificates.open_authority(self._api, self._place.namespace)
            except (NotInstalled, Rejected, Unreachable) as error:
                if self._complaint != str(error):
                    self._complaint = str(error)
                    log.error("cannot start: %s", error)  # noqa: TRY400 - its place says nothing
                await asyncio.sleep(AGAIN_S)
            else:
                self._complaint = ""
                self._installation = found.installation(self._place.namespace, self._lease.name)
                if found.remark:
                    log.warning("%s", found.remark)
                return

    async def _see(self) -> None:
        await self._watches.list_all()
        await self._other_pods.list_all()

    async def _see_again(self) -> None:
        """List everything again, and retry while we lead."""
        while True:
            try:
                await self._see()
                return
            except (NotInstalled, Rejected, Unreachable) as error:
                if not self._election.is_leading:
                    raise Fenced(f"cannot take over: {error}") from error
                log.warning("cannot take over yet: %s", error)
            await asyncio.sleep(SOON_S)

    async def _lead(self) -> None:
        reading = asyncio.create_task(self._read_ahead())
        try:
            await self._election.win(self._latest_epoch)
        finally:
            # Not awaited: between two sleeps it parses one spec, and changes nothing else.
            reading.cancel()
        # Renew the Lease from the start, because taking over may take long.
        await together(self._election.keep(), self._govern_on())

    async def _govern_on(self) -> None:
        """
        Govern, and begin again in a later epoch after :class:`Behind`.

        That is raised once at the beginning, if SideCars know a later leader than the Lease does, and whenever
        another program decides about a job.
        """
        work = self._work
        while True:
            try:
                await self._govern(work)
            except Behind as behind:
                log.warning("goes on in epoch %d: %s", behind.epoch, behind)
                await self._election.rise(behind.epoch, str(behind))
                # Only once: a lying SideCar could name ever later epochs and so block all
                # decisions. From now on such a SideCar is quarantined.
                work = replace(work, options=replace(work.options, may_rise=False))

    async def _read_ahead(self) -> None:
        """Parse specs before they are needed, while another operator leads."""
        while True:
            await self._specs.read_ahead(self._mirrors.jobs.objects.values())
            self._specs.keep_only(self._mirrors.jobs.objects.keys())
            await asyncio.sleep(READ_AHEAD_S)

    def _latest_epoch(self, most: int) -> int:
        """Return the latest epoch in the statuses of jobs, up to ``most``: a later one cannot be true."""
        epochs = map(epoch_of, self._mirrors.jobs.objects.values())
        return max((epoch for epoch in epochs if epoch <= most), default=0)

    async def _rise_above_jobs(self) -> None:
        """
        Go on in a later epoch if a job names this one already; raises :class:`Fenced` if another operator leads.

        That happens where the Lease was deleted under a leader that wrote until just now.
        """
        latest = self._latest_epoch(self._election.epoch + MOST_JUMP)
        if latest < self._election.epoch:
            return
        try:
            is_over = await self._election.is_overtaken()
        except (Rejected, Unreachable) as error:
            raise Fenced(f"cannot take over: {error}") from error
        if is_over:
            raise Fenced(
                f"epoch {latest} belongs to another leader; the next leader takes a higher one"
            )
        why = f"a job names epoch {latest}, and no other operator leads"
        log.warning("goes on in epoch %d: %s", latest + 1, why)
        await self._election.rise(latest + 1, why)

    async def _read_clock(self) -> SteadyClock:
        """
        Return the clock of this leader: that of the API server, and steady from now on.

        All leaders share that clock, so that recorded times are right for the next leader, even on a machine
        whose clock is wrong or was set meanwhile.
        """
        now = await self._api.read_clock()
        ahead = 0.0 if now is None else now - time.time()
        if abs(ahead) < LEAST_STEP_S:
            return SteadyClock()
        log.warning(
            "the clock of this machine is %.0f s %s that of the API server, by which this operator decides",
            abs(ahead),
            "behind" if ahead > 0 else "ahead of",
        )
        return SteadyClock(wall=lambda: time.time() + ahead)

    async def _govern(self, work: Work) -> None:
        # The former leader may have written until just now.
        await self._see_again()
        await self._rise_above_jobs()
        place = self._place
        try:
            # The CA may have been replaced since we began to wait.
            authority = await certificates.open_authority(self._api, place.namespace)
            clock = await self._read_clock()
            learned = await Learned.read(self._api, place.namespace)
        except (Rejected, Unreachable) as error:
            raise Fenced(f"cannot take over: {error}") from error
        candidate = Candidate(
            self._api,
            self._mirrors,
            self._election,
            self._metrics,
            place.identity,
            place.namespace,
            self._specs,
            self._installation,
        )
        with tempfile.TemporaryDirectory(prefix="dljob-") as folder:
            name = work.cluster.pods.controller_name
            certificates.write_own(authority, Path(folder), name=name)
            # In a thread, because opening a store may take long.
            notebook = await asyncio.to_thread(open_memory, work, learned)
            leading = Leading(
                candidate,
                work,
                certificates=Certificates(self._api, authority),
                folder=folder,
                notebook=notebook,
                clock=clock,
            )
            try:
                guard = Guard(self._api, authority, namespace=place.namespace)
                renewing = certificates.renew_own(authority, Path(folder), name=name)
                await together(leading.run(), guard.run(), renewing)
            finally:
                # Also where only the epoch rises: the next Leading of this process connects to the same
                # SideCars and opens the same store, and this folder of certificates is removed.
                await leading.close()


class Guard:
    """
    Restores the Secret of the CA if it is deleted while an operator leads; :meth:`run` is its own task.

    Otherwise the next operator would make a new CA, which no running SideCar trusts: the operator could not reach any job
    until its pods are replaced. An administrator who wants a new CA (because the key may have leaked) deletes the Secret
    while no operator runs, or rotates it step by step while jobs train (:mod:`dljob.operator.authority_rotation`). A
    Secret that holds another CA is left alone and logged; the next start of an operator uses it.
    """

    def __init__(self, api: ApiServer, authority: Authority, *, namespace: str) -> None:
        self._api = api
        self._authority = authority
        self._namespace = namespace
        self._complaints: OncePerChange[str] = OncePerChange()

    async def run(self) -> None:
        """Check the Secret for ever."""
        while True:
            await asyncio.sleep(GUARD_S)
            try:
                await self.check()
            except (Rejected, Unreachable) as error:
                self._complain(f"cannot watch the Secret {CA_SECRET}: {error}")

    async def check(self) -> None:
        """Check once; raises :class:`~dljob.control.situation.ports.Fenced` during a rotation."""
        try:
            secret = await self._api.get(SECRETS, CA_SECRET, self._namespace)
        except NotFound:
            try:
                document = authority_document(self._authority, self._namespace)
                await self._api.create(SECRETS, document, self._namespace)
            except Conflict:
                return  # Another program was faster.
            log.warning(
                "the Secret %s was deleted and is restored, because no SideCar trusts a new CA; for"
                " a new CA, delete it while no operator runs",
                CA_SECRET,
            )
            return
        try:
            found = Authority.read(secret.get("data") or {})
        except WrongAuthority as error:
            self._complain(str(error))
            return
        ours = self._authority
        if (found.certificate, found.others) == (ours.certificate, ours.others):
            self._complaints.settle(CA_SECRET)
        elif found.believes(ours) or ours.believes(found):
            # A step of a rotation: the next leader reads it, and can still reach all jobs.
            raise Fenced(f"the Secret {CA_SECRET} holds another CA, which the next leader uses")
        else:
            self._complain(
                f"the Secret {CA_SECRET} holds another CA now; it is used after a restart of this"
                " operator, and running jobs are reached again once their pods are replaced"
            )

    def _complain(self, complaint: str) -> None:
        if self._complaints.note(CA_SECRET, complaint):
            log.error("%s", complaint)
