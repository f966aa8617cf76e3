"""
The platform of Kubernetes: jobs are custom resources, and what was decided stands in their status.

Implements :class:`dlcontrol.situation.ports.Platform`. Everything is read from mirrors of what the watches
show; nothing is asked for again and again. Every write of a status has a precondition on the version
it was made from, says under which epoch it was decided, and comes before what follows from it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from dlcontrol.situation.ports import (
    Behind,
    Entry,
    Fenced,
    Machine,
    NotKept,
    NotKeptAlone,
    Observation,
    PodKey,
    PodOrder,
)
from dlcontrol.situation.status import Status
from dlcore.model import JobId, Node, NodeName, Phase
from dlcore.predicting.predictor import Span
from dlkube import names
from dlkube.certificates import Certificates
from dlkube.client import (
    ApiServer,
    Conflict,
    NotFound,
    Rejected,
    Unreachable,
)
from dlkube.events import Teller
from dlkube.mirror import Mirrors, epoch_of
from dlkube.names import Name
from dlkube.resources import DLJOBS
from dloperator.jobs import write_errors
from dloperator.jobs.definition_check import REMEDY
from dloperator.jobs.entries import (
    Circumstances,
    Jobs,
    job_id,
    name_of,
    status_document,
    template_condition,
)
from dloperator.jobs.epochs import Epochs
from dloperator.nodes.nodes import (
    Pool,
    awaits_proof,
    finalizers_of,
    is_bound,
    is_in_pool,
    read_machine,
    read_node,
)
from dloperator.nodes.notices import Notices
from dloperator.nodes.reserving import Reservations
from dloperator.nodes.room import Lodging
from dloperator.pods.booked_pods import BookedPods
from dloperator.pods.dry_runs import Templates
from dloperator.pods.launching import Trainers
from dloperator.pods.orphans import Strays
from dloperator.podspecs.podsettings import PodSettings

log = logging.getLogger(__name__)

Json = Mapping[str, Any]

AT_ONCE: Final = 16
"""So many writes are under way at the same time."""
STAMPS_AT_ONCE: Final = 8
"""So many of them are stamps of a new leader."""
AGAIN_S: Final = 1.0
ATTEMPTS: Final = 6
"""To write a status, one of them for our finalizer."""
FIRST_PORT, PORTS, PORTS_A_START = 20_000, 10_000, 64
"""Where processes of a job meet; every pod has an address of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """What a cluster is like."""

    pods: PodSettings = PodSettings()
    pool: Pool = Pool()


class Term(NamedTuple):
    """The time in which we lead."""

    epoch: int
    holds: Callable[[], bool]
    """Whether it is sure that nobody else leads yet."""
    is_over: Callable[[], Awaitable[bool]]
    """Whether another one leads by the Lease, as the API server has it now."""


class _ReadNode(NamedTuple):
    """A node, with what it was read from."""

    document: Json
    not_ours: str
    """Why none of its GPUs may be given to anybody."""
    node: Node | None
    machine: Machine


class Cluster:
    """The jobs, nodes and pods of one cluster, for as long as we lead."""

    def __init__(
        self,
        api: ApiServer,
        mirrors: Mirrors,
        certificates: Certificates,
        teller: Teller,
        *,
        term: Term,
        templates: Templates,
        settings: ClusterSettings,
        reservations: Reservations,
    ) -> None:
        self._api = api
        self._mirrors = mirrors
        self._teller = teller
        self._epoch = term.epoch
        self._term = term
        self._epochs = Epochs(term.epoch, term.is_over, teller.warn)
        self._settings = settings
        self._templates = templates
        self._reservations = reservations
        self._jobs = Jobs(templates.specs)
        self._lodging = Lodging(mirrors, templates.asks)
        self._entries: dict[JobId, Entry] = {}
        self._remaining: dict[JobId, Span | None] = {}
        """In what time jobs are expected to end, as it was told last."""
        self._queues: dict[JobId, Json | None] = {}
        """Where jobs that wait are in the queue, as far as this operator has said it."""
        self._nodes: dict[Name, _ReadNode] = {}
        self._pods = BookedPods(mirrors)
        self._trainers = Trainers(api, mirrors, certificates, self._pods, settings.pods)
        self._strays = Strays(mirrors)
        self._notices = Notices(settings.pool.leave_taints, settings.pool.cordon_seconds)
        self._unsettled: set[Name] = set()
        """Jobs that have changed since what their pods ask was counted."""
        self._doubted: set[Name] = set()
        """Jobs that told of a later leader when they were read last."""
        self._held_at_look: frozenset[str] | None = None
        """By uid; unknown until somebody asks."""
        self._turns = asyncio.Semaphore(AT_ONCE)
        mirrors.attend()

    @property
    def entries(self) -> Mapping[JobId, Entry]:
        """All jobs, as they were seen last."""
        return self._entries

    # --- what is

    async def observe(self) -> Observation:
        """Tell everything there is."""
        self._insist_on_leading()
        await self._settle_epochs()
        self._held_at_look = None
        changed = self._read_jobs() | self._unsettled
        self._unsettled = set()
        there = [(self._mirrors.nodes.objects[Name("", n.name)], n) for n in self._read_nodes()]
        settled = self._lodging.settle(self._entries, changed, there)
        nodes = tuple(self._strays.mark(settled, self._entries))
        self._reservations.note({name.name: read.not_ours for name, read in self._nodes.items()})
        return Observation(
            self._entries,
            nodes,
            self._pods.read(self._entries),
            self._lodging.needs,
            {NodeName(name.name): read.machine for name, read in self._nodes.items()},
        )

    def meet(self, name: Name) -> None:
        """Begin to find out whether Kubernetes takes its pods, so that the next look knows."""
        document = self._mirrors.jobs.get(name)
        if document is not None:
            self._templates.verdict(document)

    def _insist_on_leading(self) -> None:
        if not self._term.holds():
            raise Fenced("the Lease could not be renewed in time, so another operator may lead")

    async def _settle_epochs(self) -> None:
        """
        Write over epochs that the Lease does not confirm.

        Raises :class:`Fenced` if the Lease confirms one, and :class:`Behind` if another program than the
        operator has decided about a job: then everything is read again, as a new leader does.
        """
        jobs = self._mirrors.jobs
        found = (jobs.get(name) for name in self._mirrors.changed_jobs | self._doubted)
        doubted = [each for each in found if each is not None and self._epochs.is_later(each)]
        self._doubted = set(map(Name.of, doubted))
        for document in doubted:
            if not self._jobs.is_as_decided(document):
                await self._epochs.insist(document)
                why = (
                    f"another program has decided about job {Name.of(document)}, and no other leads"
                )
                raise Behind(self._epoch + 1, why)
        try:
            await self._write_all({job_id(name): None for name in self._doubted})
        except NotKeptAlone as error:
            log.warning("a status is not written over yet: %s", error)

    def _read_jobs(self) -> set[Name]:
        """Take in what became of jobs, and return of which ones anything did."""
        changed = set(self._mirrors.changed_jobs) | self._templates.news()
        self._mirrors.changed_jobs.clear()
        if not changed:
            return changed
        entries = dict(self._entries)
        for name in changed:
            document = self._mirrors.jobs.get(name)
            if document is None:
                if entries.pop(job_id(name), None) is not None:
                    self._strays.note_end(name)
                self._jobs.forget(name)
                self._remaining.pop(job_id(name), None)
                self._queues.pop(job_id(name), None)
                self._templates.forget(name)
                self._epochs.forget(name)
                continue
            if self._is_another(entries.get(job_id(name)), document):
                # Whoever remembers the former one of this name shall see first that it is gone.
                del entries[job_id(name)]
                self._strays.note_end(name)
                self._jobs.forget(name)
                self._mirrors.changed_jobs.add(name)
                self._mirrors.wake(True)  # noqa: FBT003 - one news follows the other
                continue
            if self._epochs.is_later(document):
                self._doubted.add(name)
            document = self._believed(document)
            verdict = self._templates.verdict(document)
            # One that was decided about before is never out of sight: it may hold GPUs.
            was_seen = job_id(name) in entries or bool(document.get("status"))
            if verdict is not None or was_seen:
                entries[job_id(name)] = self._jobs.read(document, problem=verdict or "")
        self._entries = entries
        return changed

    @staticmethod
    def _is_another(known: Entry | None, document: Json) -> bool:
        uid = document["metadata"]["uid"]
        return known is not None and known.document["metadata"]["uid"] != uid

    def _read_nodes(self) -> Iterable[Node]:
        there = self._mirrors.nodes.objects
        for name in self._nodes.keys() - there.keys():
            del self._nodes[name]
            self._strays.note_gone(name.name)
        for name, document in there.items():
            if not is_in_pool(document, self._settings.pool):
                self._nodes.pop(name, None)
                continue
            why = self._reservations.why_not(document) or self._notices.why_leave(document)
            known = self._nodes.get(name)
            if known is None or known.document is not document or known.not_ours != why:
                node = read_node(document, self._settings.pool, not_ours=why)
                known = _ReadNode(document, why, node, read_machine(document))
                self._nodes[name] = known
            # A job leaves what is not there.
            if known.node is not None and not self._must_leave(name.name, document, why):
                yield known.node

    def _must_leave(self, node: str, document: Json, not_ours: str) -> bool:
        """Whether no job may stay on a node: others have GPUs there, or its pods will be evicted."""
        is_left = self._notices.why_leave(document) or self._reservations.is_taken(document)
        return bool(not_ours and is_left) and self._is_booked(node)

    def _is_booked(self, node: str) -> bool:
        return any(
            pod.node == node for entry in self._entries.values() for pod in entry.status.pods
        )

    # --- what is kept

    async def begin(self) -> None:
        """Know all jobs, before anything is asked about them."""
        await self._templates.specs.read_ahead(self._mirrors.jobs.objects.values())
        self._unsettled |= self._read_jobs()

    async def stamp(self) -> None:
        """
        Put our epoch on every allocation, first on those that are being changed.

        It goes on beside the loop, which stamps what it writes itself. A former leader that wakes up has at
        most the requests that it was about to send: what they command was recorded before we began, and a
        record that comes late is seen, is not ours, and ends us.
        """
        held = [job for job, entry in self._entries.items() if entry.status.has_anything]
        held.sort(key=lambda job: self._entries[job].status.phase is Phase.RUNNING)
        alone: dict[JobId, str] = {}
        while held:
            # Few at a time, so that what the loop records need not wait for all of them.
            due = [job for job in held[:STAMPS_AT_ONCE] if self._lacks_epoch(job)]
            try:
                await self._write_all(dict.fromkeys(due))
            except NotKeptAlone as error:
                alone |= error.jobs
            except NotKept as error:
                log.warning("the epoch is not yet written to every allocation: %s", error)
                await asyncio.sleep(AGAIN_S)
                continue
            del held[:STAMPS_AT_ONCE]
        if alone:
            raise NotKeptAlone(alone)

    def _lacks_epoch(self, job: JobId) -> bool:
        document = self._mirrors.jobs.get(name_of(job))
        return document is not None and epoch_of(document) != self._epoch

    async def record(self, statuses: Mapping[JobId, Status]) -> None:
        """
        Keep these, first of all of those that gain nothing.

        Within each part they do not depend on each other, so they are written at the same time.
        """
        self._insist_on_leading()
        gaining = {job for job, status in statuses.items() if self._gains(job, status)}
        for part in (statuses.keys() - gaining, gaining):
            await self._write_all({job: statuses[job] for job in statuses if job in part})

    async def publish(self, job: JobId, status: Status, remaining: Span | None) -> None:
        """
        Show how far a job is, unless anything else has changed by now.

        Nothing is decided by it. From the look at what is recorded to the sending nobody else has a
        turn, so that what is written over is what was looked at.
        """
        self._insist_on_leading()
        document = self._mirrors.jobs.get(name_of(job))
        recorded = self._jobs.status(name_of(job))
        if document is None or recorded is None or not status.says_the_same_as(recorded):
            return
        self._remaining[job] = remaining
        await self._show(job, document, status)

    def shown_queue(self, job: JobId) -> Json | None:
        """Where a job is in the queue, as its status says it now."""
        document = self._mirrors.jobs.get(name_of(job))
        queue: Json | None = (document or {}).get("status", {}).get("queue")
        return queue

    async def show_queue(self, job: JobId, queue: Json | None) -> None:
        """Show where a job that waits is in the queue, or no longer that it is in it; as :meth:`publish`."""
        self._insist_on_leading()
        document = self._mirrors.jobs.get(name_of(job))
        recorded = self._jobs.status(name_of(job))
        if document is None or recorded is None or (queue is not None and not _waits(recorded)):
            return
        self._queues[job] = queue
        await self._show(job, document, recorded)

    async def _show(self, job: JobId, document: Json, status: Status) -> None:
        if self._epochs.is_later(document):
            await self._epochs.insist(document)
            return  # The next look writes over it.
        try:
            await self._write_once(document, status)
        except (Conflict, NotFound):
            return  # What it is now will be seen.
        except (Rejected, Unreachable) as error:
            raise write_errors.not_kept(job, error) from error

    def _gains(self, job: JobId, status: Status) -> bool:
        before = self._entries[job].status if job in self._entries else None
        held = before.placement.refs() if before is not None and before.placement else ()
        wanted = status.placement.refs() if status.placement is not None else ()
        return not set(wanted) <= set(held)

    async def _write_all(self, statuses: Mapping[JobId, Status | None]) -> None:
        writes = [self._write(job, status) for job, status in statuses.items()]
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
        write_errors.raise_worst(outcomes)

    async def _write(self, job: JobId, wanted: Status | None) -> None:
        """
        Write this, or under our epoch what is recorded, were it by a former leader's last word.

        Between its writes others have their turn: an API server that is asked to change an object
        again before its own watch has shown it the last change does everything twice.
        """
        for _ in range(ATTEMPTS):
            async with self._turns:
                # With thousands of them it may be long ago that anybody asked.
                self._insist_on_leading()
                if await self._take_step(job, wanted):
                    return
        raise NotKeptAlone(
            {job: "its status cannot be written, because other writers change it at every attempt"}
        )

    async def _take_step(self, job: JobId, wanted: Status | None) -> bool:
        """Do what comes next in writing it; tell whether that was the last."""
        name = name_of(job)
        document = self._mirrors.jobs.get(name)
        if document is None:
            return True  # It was deleted, and had nothing.
        # Read after this version was written, and the write has that version as its precondition.
        await self._epochs.insist(document)
        if self._epochs.is_later(document) and not self._jobs.is_as_decided(document):
            raise NotKeptAlone({job: f"another program has decided about job {name}"})
        status = wanted if wanted is not None else self._jobs.read(self._believed(document)).status
        try:
            if status.pods and _may_be_held(document):
                await self._hold(document)
                return False
            await self._write_once(document, status)
        except NotFound:
            self._mirrors.jobs.show_end(document)
        except Conflict:
            await self._see_who_wrote(name, document)
            return False
        except (Rejected, Unreachable) as error:
            raise write_errors.not_kept(job, error) from error
        return True

    async def _hold(self, document: Json) -> None:
        """Keep the job there until its pods are proven to have ended."""
        finalizers = [*finalizers_of(document), names.FINALIZER]
        held = await self._api.hold_by(DLJOBS, document, finalizers)
        self._mirrors.jobs.show(held, is_ours=True)

    async def _write_once(self, document: Json, status: Status) -> None:
        """
        Write what differs, if nobody has written since.

        Not by a server-side apply, which costs the API server half as much again, and says no more
        where a status has one writer; the field manager is ours either way.
        """
        metadata = document["metadata"]
        wanted = self._status_document(self._believed(document), status)
        changes = differences(document.get("status") or {}, wanted)
        written = await self._api.merge(
            DLJOBS,
            metadata["name"],
            {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": changes},
            metadata["namespace"],
            sub="status",
        )
        kept = written.get("status") or {}
        if lost := [
            name for name, value in changes.items() if value is not None and name not in kept
        ]:
            # Somebody has installed an older definition of DLJobs meanwhile.
            raise NotKept(f"the API server does not keep status.{lost[0]}; {REMEDY}")
        self._jobs.note_written(written, status)
        self._mirrors.jobs.show(written, is_ours=True)

    def _believed(self, document: Json) -> Json:
        """Return a job as this leader recorded it last, where its status tells of a later leader."""
        return self._jobs.as_recorded(document) if self._epochs.is_later(document) else document

    def _status_document(self, document: Json, status: Status) -> Json:
        job = job_id(Name.of(document))
        return status_document(
            status,
            Circumstances(
                epoch=self._epoch,
                generation=document["metadata"]["generation"],
                remaining=self._remaining.get(job),
                template=template_condition(document, self._templates.verdict(document)),
                queue=self._queue_of(job, status, document),
                before=document.get("status") or {},
            ),
        )

    def _queue_of(self, job: JobId, status: Status, document: Json) -> Json | None:
        """Where it is in the queue; what a former leader said of it counts until this one has said more."""
        if not _waits(status):
            self._queues.pop(job, None)
            return None
        return self._queues.get(job, (document.get("status") or {}).get("queue"))

    async def _see_who_wrote(self, name: Name, known: Json) -> None:
        """Nobody but a leader writes a status; anybody may write anything else."""
        metadata = known["metadata"]
        try:
            newer = await self._api.get(DLJOBS, metadata["name"], metadata["namespace"])
        except NotFound:
            self._mirrors.jobs.show_end(known)
            return
        except (Rejected, Unreachable) as error:
            raise write_errors.not_kept(job_id(name), error) from error
        await self._epochs.insist(newer)
        self._mirrors.jobs.show(newer)

    async def is_overtaken(self) -> bool:
        """Ask the Lease, past all that is remembered, whether another operator leads."""
        return await self._epochs.is_over()

    # --- pods

    async def launch(self, order: PodOrder) -> None:
        """Let there be this pod."""
        self._insist_on_leading()
        await self._trainers.launch(order, self._turns)

    async def remove(self, key: PodKey, *, because: str) -> None:
        """Have this pod end."""
        self._insist_on_leading()
        entry = self._entries[key.job]
        recorded = self._jobs.status(name_of(key.job))
        for booking in entry.status.pods:
            if booking.node == key.node:
                message = f"the pod on {key.node} is removed: {because}"
                await self.tell(key.job, "PodRemoved", message, warning=True)
                was_used = recorded is None or booking.serial in recorded.used
                await self._trainers.end(entry, booking, was_used=was_used)

    async def forget(self, job: JobId) -> None:
        """
        Delete a job that has ended and whose pods have, and keep it no longer.

        It goes after its pods: whoever sees that it is gone may uninstall us, and nobody would let go
        of them any more.
        """
        self._insist_on_leading()
        name = name_of(job)
        entry = self._entries.get(job)
        while entry is not None and (document := self._mirrors.jobs.get(name)) is not None:
            metadata = document["metadata"]
            if metadata["uid"] != entry.document["metadata"]["uid"]:
                return  # It is gone, and there is another one of its name by now.
            if "deletionTimestamp" not in metadata:
                await self._api.delete(DLJOBS, name.name, name.namespace, uid=metadata["uid"])
            if metadata["uid"] in self._held_pods():
                return  # This is asked for again, and they are let go of meanwhile.
            try:
                await self._let_go(document)
                return
            except NotFound:
                self._mirrors.jobs.show_end(document)
            except Conflict:
                await self._see_who_wrote(name, document)

    def _held_pods(self) -> frozenset[str]:
        """Of which jobs there are pods that we keep until their end is proven, as of this look."""
        if self._held_at_look is None:
            self._held_at_look = frozenset(
                owner.get("uid", "")
                for pod in self._mirrors.pods.objects.values()
                # One on a Node that was deleted is kept in case that returns, and its job need not be.
                if awaits_proof(pod) and not (is_bound(pod) and self._node_of(pod) is None)
                for owner in pod["metadata"].get("ownerReferences") or ()
            )
        return self._held_at_look

    def _node_of(self, pod: Json) -> Json | None:
        return self._mirrors.nodes.get(Name("", pod["spec"].get("nodeName", "")))

    async def _let_go(self, document: Json) -> None:
        finalizers = [each for each in finalizers_of(document) if each != names.FINALIZER]
        if finalizers != finalizers_of(document):
            await self._api.hold_by(DLJOBS, document, finalizers)

    def host_of(self, key: PodKey) -> str:
        """Every pod has an address of its own, by which the others reach it."""
        address = self._pods.address(key)
        if address is None:
            raise LookupError(f"the pod of {key} has no address")
        return address.host

    def rendezvous_port(self, _job: JobId, generation: int, processes: int) -> int:
        """Take other ports for each start, since a process of the last one may still hold its own."""
        step = max(PORTS_A_START, processes)
        return FIRST_PORT + generation * step % (PORTS - step)

    async def tell(self, job: JobId, reason: str, message: str, *, warning: bool = False) -> None:
        """Write an Event, when there is time for it."""
        document = self._mirrors.jobs.get(name_of(job))
        if document is not None:
            self._teller.tell(document, reason, message, warning=warning)


def _waits(status: Status) -> bool:
    """Whether it is a job for which the queue has a place."""
    return status.placement is None and not status.is_final and status.phase is not Phase.SUSPENDED


def _may_be_held(document: Json) -> bool:
    """Whether it lacks our finalizer; to one that is about to go none can be added."""
    is_held = names.FINALIZER in finalizers_of(document)
    return not is_held and "deletionTimestamp" not in document["metadata"]


def differences(old: Json, new: Json) -> dict[str, Any]:
    """Say in a merge patch what turns one document into another."""
    changes: dict[str, Any] = dict.fromkeys(old.keys() - new.keys())
    for name, value in new.items():
        before = old.get(name)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            if inner := differences(before, value):
                changes[name] = inner
        elif value != before:
            changes[name] = value
    return changes
