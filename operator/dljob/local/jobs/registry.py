"""
The jobs of one machine and the decisions about them: the role that Kubernetes' API server has on a cluster.

Every change is on the disk when its method returns. Profiles are in another file, which may be lost without harm.
"""

import json
import logging
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from dljob.control.situation.clocks import (
    Reading,
    describe_step_between,
    find_step,
    latest_of,
    moved,
)
from dljob.control.situation.ports import Entry
from dljob.control.situation.status import Status
from dljob.core.documents import jobfile
from dljob.core.model import Job, JobId, Phase
from dljob.local.environments import Origin
from dljob.local.folders import StateError
from dljob.local.jobs.cells import HOLD, Content, Key, Value, cordon, job_cells
from dljob.local.jobs.jobs_file import JobsFile
from dljob.local.jobs.listed_jobs import CANCELLED, CANCELLED_KEEPING, ListedJobs
from dljob.local.jobs.rows import lost_entry, read_rows, remove_row, write_row, write_status_text

log = logging.getLogger(__name__)


class Registry:
    """The jobs of one controller. Not thread-safe."""

    def __init__(self, file: JobsFile, content: Content) -> None:
        self._file = file
        self._jobs = ListedJobs(read_rows(content.cells), file.path)
        self._cordons = content.cordons()
        self._holds = content.holds()
        self.was_there = content.epoch > 0
        """True if a list existed before this controller."""
        self.changes = self._jobs.changes

    @classmethod
    def open(
        cls, path: Path, *, clock: Callable[[], float] = time.time, least_epoch: int = 0
    ) -> "Registry":
        """Begin a new epoch, in which no earlier controller can write."""
        reading = Reading.now(clock)
        opened = JobsFile.open(path, reading, least_epoch=least_epoch)
        if opened.mended:
            log.warning("%s", opened.mended)
        try:
            registry = cls(opened.file, opened.content)
            _follow_clock(registry, opened.content.reading, now=reading)
        except BaseException as error:
            opened.file.close()
            if isinstance(error, sqlite3.Error):
                raise StateError(f"{path}: {why_not_written(error)}") from error
            raise
        return registry

    def close(self) -> None:
        self._file.close()

    @property
    def epoch(self) -> int:
        return self._file.epoch

    @property
    def entries(self) -> Mapping[JobId, Entry]:
        """All jobs in order of arrival; replaced by a new mapping after each change."""
        return self._jobs.entries

    def origin(self, job: JobId) -> Origin:
        return self._jobs.origin(job)

    # --- written by users

    def submit(
        self, document: Mapping[str, Any], now: float, *, origin: Origin | None = None
    ) -> Entry:
        """Add a job with a valid document."""
        job = jobfile.parse(document, require_template=True)
        return self.submit_all([(job, document)], now, origin=origin)[0]

    def submit_all(
        self,
        jobs: Sequence[tuple[Job, Mapping[str, Any]]],
        now: float,
        *,
        origin: Origin | None = None,
    ) -> tuple[Entry, ...]:
        """Add several jobs with their documents, all or none. Without an origin, this process is their submitter."""
        kept = origin or Origin.here()
        entries = tuple(
            Entry(
                job=replace(job, submitted_at=now),
                order=self._jobs.next_order + place,
                status=Status(submitted_at=now),
                document=document,
                spec_generation=1,
            )
            for place, (job, document) in enumerate(jobs)
        )
        change: dict[Key, Value | None] = {}
        for entry in entries:
            change.update(write_row(entry, kept))
        self._file.commit(change)
        self._jobs.add(*entries, origin=kept)
        return entries

    def change(self, entry: Entry, *, job: Job, document: Mapping[str, Any]) -> Entry:
        """Replace the spec of a job by a valid change of it, with its document."""
        # Include the decisions made since the caller read the entry.
        entry = self._jobs.entries[entry.job.id]
        generation = entry.spec_generation + 1
        job = replace(job, submitted_at=entry.job.submitted_at)
        changed = replace(entry, job=job, document=document, spec_generation=generation)
        text = json.dumps(document)
        self._file.commit(job_cells(job.id, document=text, spec_generation=generation))
        self._jobs.put(changed)
        return changed

    def cancel(self, job: JobId, *, keep_checkpoints: bool = False) -> None:
        """Remove a job as soon as none of its processes run.

        A later call can still keep the checkpoints, but no later call can drop them.
        """
        if self.entries[job].cancelled and (self.keeps_checkpoints(job) or not keep_checkpoints):
            return
        how = CANCELLED_KEEPING if keep_checkpoints else CANCELLED
        self._file.insist(job_cells(job, cancelled=how))
        self._jobs.cancel(job, how)

    def keeps_checkpoints(self, job: JobId) -> bool:
        """Return whether the checkpoints of a job outlive the job."""
        return self._jobs.keeps_checkpoints(job)

    # --- written by the loop

    def record(self, statuses: Mapping[JobId, Status]) -> None:
        self._file.commit(
            {
                (job, "status"): write_status_text(status)
                for job, status in statuses.items()
                if job in self.entries
            }
        )
        self._jobs.put_statuses(statuses)

    def adopt(self, job: JobId, status: Status, *, origin: Origin) -> None:
        """Add a lost job whose pods live, or add such pods to a listed job."""
        if job in self.entries:
            self.record({job: status})
            return
        entry = lost_entry(job, status, order=self._jobs.next_order)
        self._file.commit(write_row(entry, origin))
        self._jobs.add(entry, origin=origin)

    def forget(self, job: JobId) -> None:
        self._file.insist(remove_row(job))
        self._file.reserve.make()
        self._jobs.remove(job)

    # --- cordoned GPUs

    def cordons(self) -> dict[tuple[str, int], str]:
        """Return the cordoned GPUs with the reasons."""
        return dict(self._cordons)

    def cordon(self, node: str, gpu: int, reason: str) -> None:
        """Cordon a GPU; an empty reason uncordons it."""
        self._file.commit(cordon(node, gpu, reason))
        self._cordons.pop((node, gpu), None)
        if reason:
            self._cordons[node, gpu] = reason

    # --- jobs on hold

    @property
    def holds(self) -> Mapping[str, str]:
        """The namespaces whose jobs are on hold, with the reasons; ``*``: all."""
        return self._holds

    def hold(self, namespace: str, reason: str | None) -> None:
        """Hold the jobs of a namespace, or of all (``*``); ``None`` releases them."""
        self._file.commit({("", HOLD + namespace): reason})
        others = {name: why for name, why in self._holds.items() if name != namespace}
        self._holds = others if reason is None else {**others, namespace: reason}

    # --- leadership

    def leading(self) -> AbstractContextManager[None]:
        """Act while no other controller can begin; raise :class:`Fenced` if one has begun."""
        return self._file.leading()

    def still_leads(self) -> bool:
        """Return whether no other controller has begun, as far as the file can be read."""
        return self._file.still_leads()


def _follow_clock(registry: Registry, before: Reading, *, now: Reading) -> None:
    """Move recorded times by the change of the machine's clock since the previous controller."""
    if not before.at:
        return
    latest = max((latest_of(each.status) for each in registry.entries.values()), default=0.0)
    step = find_step(before, now, latest=latest)
    if step and registry.entries:
        log.warning("%s", describe_step_between(step))
        registry.record({job: moved(each.status, step) for job, each in registry.entries.items()})


def is_over(entry: Entry) -> bool:
    """Return whether a job has ended, and its pods are proven gone."""
    ended = entry.status.phase in (Phase.COMPLETED, Phase.FAILED) or entry.cancelled
    return ended and not entry.status.pods


def why_not_written(error: sqlite3.Error) -> str:
    if is_locked(error):
        return f"cannot be written ({error}); end the other process that uses it"
    return f"cannot be written ({error}); make room on its disk"


def is_locked(error: sqlite3.Error) -> bool:
    """Return whether another process has locked the file, so that a retry can succeed."""
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY
