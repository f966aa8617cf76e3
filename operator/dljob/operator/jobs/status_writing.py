"""
Writes the statuses of jobs, under the epoch of this leader and over the version that each was made from.

Part of :mod:`dljob.operator.cluster`. A write that another writer has overtaken is made again over the newer version;
the Lease has to confirm an epoch that is not ours (:mod:`dljob.operator.jobs.epochs`).
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from dljob.control.situation.ports import Entry, Fenced, NotKept, NotKeptAlone
from dljob.control.situation.status import Status
from dljob.core.model import JobId, Phase
from dljob.core.predicting.predictor import Span
from dljob.kube import names
from dljob.kube.client import (
    FIRST_OWN_ERROR,
    ApiServer,
    Conflict,
    NotFound,
    Rejected,
    Unreachable,
)
from dljob.kube.documents import Json
from dljob.kube.names import Name
from dljob.kube.resources import DLJOBS
from dljob.kube.watches.mirror import Mirrors, epoch_of
from dljob.operator.jobs.crd import REMEDY
from dljob.operator.jobs.entries import (
    job_id,
    name_of,
    status_document,
    template_condition,
)
from dljob.operator.jobs.trusted_jobs import TrustedJobs

log = logging.getLogger(__name__)

AT_ONCE: Final = 16
ATTEMPTS: Final = 6
"""The most attempts to write a status; one of them adds our finalizer."""
STAMPS_AT_ONCE: Final = 8
AGAIN_S: Final = 1.0
"""The pause after an epoch could not be written."""
OF_ONE: Final = ("request is too large", "failed calling webhook")
"""Words of server errors that one object alone causes."""


class StatusDocuments:
    """Makes the documents of statuses from decisions and figures."""

    def __init__(self, epoch: int, refusal: Callable[[Json], str | None]) -> None:
        """``refusal`` returns why Kubernetes refuses the pods of a job; ``None`` before that is known."""
        self._epoch = epoch
        self._refusal = refusal
        self.remaining: dict[JobId, Span | None] = {}
        """The expected remaining time of jobs, by the last report."""
        self.queues: dict[JobId, Json | None] = {}
        """The places of waiting jobs in the queue that this operator has shown."""

    def forget(self, job: JobId) -> None:
        """Forget a job that is gone."""
        self.remaining.pop(job, None)
        self.queues.pop(job, None)

    def write(self, document: Json, status: Status) -> Json:
        job, before = job_id(Name.of(document)), document.get("status") or {}
        if not waits(status):
            self.queues.pop(job, None)
        return status_document(
            status,
            epoch=self._epoch,
            generation=document["metadata"]["generation"],
            remaining=self.remaining.get(job) if status.placement is not None else None,
            template=template_condition(document, self._refusal(document)),
            # The place that a former leader has written counts until this one has a newer one.
            queue=self.queues.get(job, before.get("queue")) if waits(status) else None,
            before=before,
            job_name=document["metadata"]["name"],
        )


class StatusWriter:
    """The only writer of statuses, for the life of a leader."""

    def __init__(
        self, api: ApiServer, mirrors: Mirrors, *, trusted: TrustedJobs, documents: StatusDocuments
    ) -> None:
        self._api = api
        self._mirrors = mirrors
        self.term = trusted.term
        self.trusted = trusted
        self.documents = documents
        self._epochs = trusted.epochs
        self._jobs = trusted.records
        self.turns = asyncio.Semaphore(AT_ONCE)
        """Limits the writes under way, creations of pods included."""

    async def record(
        self, statuses: Mapping[JobId, Status], entries: Mapping[JobId, Entry]
    ) -> None:
        """
        Write decided statuses, those of jobs that gain no GPU first.

        Within each part they do not depend on each other, so they are written at the same time.
        """
        self.term.insist()
        gaining = {job for job, status in statuses.items() if _gains(entries.get(job), status)}
        # GPUs are recorded as free before another job is recorded to have them.
        for part in (statuses.keys() - gaining, gaining):
            # A failure in the first part keeps the second from being written, because GPUs that it
            # gives away may still be recorded as held.
            await self.write_all({job: statuses[job] for job in statuses if job in part})

    async def stamp(self, entries: Mapping[JobId, Entry]) -> None:
        """
        Write our epoch into every allocation, first into those that are being changed.

        After that, no former leader can change one any more. Raises :class:`NotKeptAlone` at the end if the API server
        refuses the statuses of some jobs.
        """
        held = [job for job, entry in entries.items() if entry.status.has_anything]
        held.sort(key=lambda job: entries[job].status.phase is Phase.RUNNING)
        alone: dict[JobId, str] = {}
        while held:
            # A few at a time, so that records of the loop need not wait for all of them. Read from the mirror each time,
            # because the loop writes statuses meanwhile.
            found = {job: self._mirrors.jobs.get(name_of(job)) for job in held[:STAMPS_AT_ONCE]}
            due = [job for job, each in found.items() if each and epoch_of(each) != self.term.epoch]
            try:
                await self.write_all(dict.fromkeys(due))
            except NotKeptAlone as error:
                alone |= error.jobs
            except NotKept as error:
                log.warning("the epoch is not yet written to every allocation: %s", error)
                # The same jobs again, because none may be left without the epoch.
                await asyncio.sleep(AGAIN_S)
                continue
            del held[:STAMPS_AT_ONCE]
        if alone:
            raise NotKeptAlone(alone)

    async def write_all(self, statuses: Mapping[JobId, Status | None]) -> None:
        """Write these at the same time; ``None`` writes the recorded status under our epoch."""
        writes = [self._write(job, status) for job, status in statuses.items()]
        # All of them end before one failure is raised, so that no write goes on unseen.
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
        raise_worst(outcomes)

    async def _write(self, job: JobId, wanted: Status | None) -> None:
        """
        Write this status, or the recorded one under our epoch.

        Its writes do not follow each other at once: an API server that is asked to change an object before its own
        watch has shown it the last change does everything twice.
        """
        for _ in range(ATTEMPTS):
            async with self.turns:
                # With thousands of writes the wait for a turn may be long.
                self.term.insist()
                if await self._take_step(job, wanted):
                    return
        raise NotKeptAlone(
            {job: "its status cannot be written, because other writers change it at every attempt"}
        )

    async def _take_step(self, job: JobId, wanted: Status | None) -> bool:
        """Make the next write; return true if it was the last."""
        name = name_of(job)
        # Read late, because the version from when the write was queued may be outdated.
        document = self._mirrors.jobs.get(name)
        if document is None:
            return True  # The job was deleted, and had nothing.
        if wanted is not None and not self._jobs.is_known(document):
            # This is another job of the same name, about which nothing is decided yet.
            return True
        # The Lease is read after this version was written, and the write has that version as its precondition.
        await self._epochs.insist(document)
        if self._epochs.is_later(document) and not self._jobs.is_as_decided(document):
            raise NotKeptAlone({job: f"another program has decided about job {name}"})
        status = (
            wanted if wanted is not None else self._jobs.read(self.trusted.trusted(document)).status
        )
        try:
            finalizers, metadata = names.finalizers_of(document), document["metadata"]
            is_held = names.FINALIZER in finalizers or "deletionTimestamp" in metadata
            if status.pods and not is_held:
                # The finalizer comes first: a job that is deleted in between would take the only record of
                # its pods' GPUs with it.
                finalizers.append(names.FINALIZER)
                held = await self._api.hold_by(DLJOBS, document, finalizers=finalizers)
                self._mirrors.jobs.show(held, is_ours=True)
                return False
            await self.write_once(document, status)
        except NotFound:
            self._mirrors.jobs.show_end(document)
        except Conflict:
            await self.see_other_write(name, document)
            return False
        except (Rejected, Unreachable) as error:
            raise not_kept(job, error) from error
        return True

    async def write_once(self, document: Json, status: Status) -> None:
        """
        Write the differences, unless another program has written since.

        A server-side apply would cost the API server half as much again, and is of no use for a status with one
        writer.
        """
        metadata = document["metadata"]
        wanted = self.documents.write(self.trusted.trusted(document), status)
        changes = differences(document.get("status") or {}, wanted)
        # Noted before the write, because the watch may show the result before the answer.
        self._jobs.note_attempt(document, wanted)
        written = await self._api.merge(
            DLJOBS,
            metadata["name"],
            changes={
                "metadata": {"resourceVersion": metadata["resourceVersion"]},
                "status": changes,
            },
            namespace=metadata["namespace"],
            sub="status",
        )
        kept = written.get("status") or {}
        if lost := [
            name for name, value in changes.items() if value is not None and name not in kept
        ]:
            # An older definition of DLJobs was installed meanwhile.
            raise NotKept(f"the API server does not keep status.{lost[0]}; {REMEDY}")
        self._jobs.note_written(written, status)
        self._mirrors.jobs.show(written, is_ours=True)

    async def see_other_write(self, name: Name, known: Json) -> None:
        """Read a job that another writer has changed; raises :class:`Fenced` if that was a later leader."""
        metadata = known["metadata"]
        try:
            newer = await self._api.get(DLJOBS, metadata["name"], metadata["namespace"])
        except NotFound:
            self._mirrors.jobs.show_end(known)
            return
        except (Rejected, Unreachable) as error:
            raise not_kept(job_id(name), error) from error
        await self._epochs.insist(newer)
        self._mirrors.jobs.show(newer)


class FigureWriter:
    """
    Writes figures for users into statuses. No decision depends on them, so another program's write is no fault.

    Between reading the record and sending the write no other task runs, so that the write replaces exactly
    the version that was read.
    """

    def __init__(self, mirrors: Mirrors, writer: StatusWriter) -> None:
        self._mirrors = mirrors
        self._writer = writer
        self._jobs = writer.trusted.records
        self._documents = writer.documents

    async def publish(self, job: JobId, status: Status, *, remaining: Span | None) -> None:
        """Show the progress of a job, unless anything else in its status has changed."""
        self._writer.term.insist()
        document = self._mirrors.jobs.get(name_of(job))
        recorded = self._jobs.status(name_of(job))
        if document is None or recorded is None or not status.says_the_same_as(recorded):
            return
        self._documents.remaining[job] = remaining
        await self._show(job, document, status=status)

    def shown_queue(self, job: JobId) -> Json | None:
        """Return the place in the queue that the status of a job shows."""
        document = self._mirrors.jobs.get(name_of(job))
        queue: Json | None = (document or {}).get("status", {}).get("queue")
        return queue

    async def show_queue(self, job: JobId, queue: Json | None) -> None:
        """Show the place of a waiting job in the queue; None removes it."""
        self._writer.term.insist()
        document = self._mirrors.jobs.get(name_of(job))
        recorded = self._jobs.status(name_of(job))
        if document is None or recorded is None or (queue is not None and not waits(recorded)):
            return
        self._documents.queues[job] = queue
        await self._show(job, document, status=recorded)

    async def _show(self, job: JobId, document: Json, *, status: Status) -> None:
        if self._writer.trusted.is_doubted(document):
            await self._writer.trusted.epochs.insist(document)
            return  # The next cycle writes over it.
        if not self._jobs.is_recorded(document):
            # It shows a decision whose answer is still on its way. Writing the record would take that
            # decision back.
            return
        try:
            # Without a turn, because each publisher writes one figure at a time and need not wait for a
            # batch of decisions.
            await self._writer.write_once(document, status)
        except (Conflict, NotFound):
            return
        except (Rejected, Unreachable) as error:
            raise not_kept(job, error) from error


def not_kept(job: JobId, error: Rejected | Unreachable) -> NotKept | NotKeptAlone:
    """Convert an error about the status of a job: NotKeptAlone if it concerns that job only, else NotKept."""
    if isinstance(error, Rejected) and (
        not error.is_passing
        or (error.status >= FIRST_OWN_ERROR and any(words in str(error) for words in OF_ONE))
    ):
        return NotKeptAlone({job: f"its status cannot be written: {error}"})
    return NotKept(f"the status of job {job} cannot be written: {error}")


def raise_worst(outcomes: Iterable[BaseException | None]) -> None:
    """
    Raise the most important of several errors.

    :class:`Fenced` comes first; errors that concern single jobs come last, and are raised together.
    """
    errors = [each for each in outcomes if each is not None]
    alone: dict[JobId, str] = {}
    for error in sorted(errors, key=lambda error: not isinstance(error, Fenced)):
        if not isinstance(error, NotKeptAlone):
            raise error
        alone |= error.jobs
    if alone:
        raise NotKeptAlone(alone)


def _gains(entry: Entry | None, status: Status) -> bool:
    """True if a job is to get a GPU that it does not have."""
    before = entry.status.placement if entry is not None else None
    held = before.refs() if before is not None else ()
    wanted = status.placement.refs() if status.placement is not None else ()
    return not set(wanted) <= set(held)


def waits(status: Status) -> bool:
    """True if a job with this status is in the queue."""
    return status.placement is None and not status.is_final and status.phase is not Phase.SUSPENDED


def differences(old: Json, new: Json) -> dict[str, Any]:
    """Return the merge patch that turns one document into another."""
    changes: dict[str, Any] = dict.fromkeys(old.keys() - new.keys())
    for name, value in new.items():
        before = old.get(name)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            if inner := differences(before, value):
                changes[name] = inner
        elif value != before:
            changes[name] = value
    return changes
