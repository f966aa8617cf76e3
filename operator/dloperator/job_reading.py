"""
The jobs as the controller sees them: their entries, and what the status of each may be believed to say.

Called by :mod:`dloperator.cluster` in each cycle, with the jobs that have changed since the last one.
"""

import logging
from collections.abc import Mapping
from typing import Any

from dlcontrol.situation.ports import Behind, Entry, NotKeptAlone
from dlcore.model import JobId
from dlkube.names import Name
from dlkube.watches.mirror import Mirrors
from dloperator.jobs.entries import Jobs, job_id
from dloperator.jobs.epochs import Epochs
from dloperator.jobs.status_writing import StatusDocuments, StatusWriter
from dloperator.pods.dry_runs import DryRuns
from dloperator.pods.orphans import Orphans

log = logging.getLogger(__name__)

Json = Mapping[str, Any]


class JobReader:
    """Keeps the entries of all jobs."""

    def __init__(
        self,
        mirrors: Mirrors,
        jobs: Jobs,
        *,
        epoch: int,
        epochs: Epochs,
        dry_runs: DryRuns,
        orphans: Orphans,
        writer: StatusWriter,
        documents: StatusDocuments,
    ) -> None:
        self._mirrors = mirrors
        self._jobs = jobs
        self._epoch = epoch
        self._epochs = epochs
        self._dry_runs = dry_runs
        self._orphans = orphans
        self._writer = writer
        self._documents = documents
        self.entries: dict[JobId, Entry] = {}
        """All jobs, as they were seen last; another object whenever one has changed."""
        self._doubted: set[Name] = set()
        """Jobs that told of a later leader when they were read last."""

    async def settle_epochs(self) -> None:
        """
        Write over epochs that the Lease does not confirm, and over statuses of other programs.

        Raises :class:`Fenced` if the Lease confirms one, and :class:`Behind` if another program than the
        operator has decided about a job: then everything is read again, as a new leader does.
        """
        jobs = self._mirrors.jobs
        found = (jobs.get(name) for name in self._mirrors.changed_jobs | self._doubted)
        doubted = [each for each in found if each is not None and self._writer.is_doubted(each)]
        # Kept for the next cycle, too: a status that is not written over yet need not change again.
        self._doubted = set(map(Name.of, doubted))
        for document in doubted:
            if not self._epochs.is_later(document):
                self._epochs.report_foreign(document)
            elif not self._jobs.is_as_decided(document):
                await self._epochs.insist(document)
                why = (
                    f"another program has decided about job {Name.of(document)}, and no other leads"
                )
                raise Behind(self._epoch + 1, why)
        try:
            await self._writer.write_all({job_id(name): None for name in self._doubted})
        except NotKeptAlone as error:
            log.warning("a status is not written over yet: %s", error)

    def read(self) -> set[Name]:
        """Take in what became of jobs, and return of which ones anything did."""
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
                self._jobs.forget(name)
                self._documents.forget(job_id(name))
                self._dry_runs.forget(name)
                self._epochs.forget(name)
                continue
            if self._is_another(entries.get(job_id(name)), document):
                # Readers that remember the former one of this name shall first see that it is gone.
                del entries[job_id(name)]
                self._orphans.note_end(name)
                self._jobs.forget(name)
                # Its figures, such as its place in the queue, are not those of the next one.
                self._documents.forget(job_id(name))
                self._mirrors.changed_jobs.add(name)
                self._mirrors.wake(True)  # noqa: FBT003 - one news follows the other
                continue
            # The next cycle asks the Lease; until then the status as recorded counts.
            if self._writer.is_doubted(document):
                self._doubted.add(name)
            document = self._writer.believed(document)
            self._dry_runs.begin(document)
            refusal = self._dry_runs.result(document)
            # One that was decided about before is never out of sight: it may hold GPUs.
            was_seen = job_id(name) in entries or bool(document.get("status"))
            if refusal is not None or was_seen:
                entries[job_id(name)] = self._jobs.read(document, problem=refusal or "")
        self.entries = entries
        return changed

    @staticmethod
    def _is_another(known: Entry | None, document: Json) -> bool:
        uid = document["metadata"]["uid"]
        return known is not None and known.document["metadata"]["uid"] != uid
