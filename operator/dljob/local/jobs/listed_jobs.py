"""The list of jobs in memory. :mod:`dljob.local.jobs.registry` changes it after the file."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from dljob.control.situation.ports import Entry
from dljob.control.situation.status import Status
from dljob.core.model import JobId
from dljob.local.environments import Origin, Submitter
from dljob.local.jobs.changes import Changes
from dljob.local.jobs.rows import Row, read_entry, read_origin

CANCELLED, CANCELLED_KEEPING = 1, 2
"""The values of the column ``cancelled``: the job's own checkpoints are removed, or kept. A job that is not cancelled has 0."""


class ListedJobs:
    def __init__(self, rows: Mapping[JobId, Row], path: Path) -> None:
        self.entries: Mapping[JobId, Entry] = {
            name: read_entry(name, row, path=path) for name, row in rows.items()
        }
        """In order of arrival; replaced by a new mapping after each change."""
        self._origins = {
            name: read_origin(name, row.origin, path=path)
            for name, row in rows.items()
            if row.origin
        }
        self._cancelled = {name: row.cancelled for name, row in rows.items()}
        self.next_order = 1 + max((each.order for each in self.entries.values()), default=-1)
        self.changes = Changes(self.entries)

    def origin(self, job: JobId) -> Origin:
        """Return the origin of a job; for a job of an older version, the server's user with the environment of a login."""
        return self._origins.get(job) or Origin.of(Submitter.of_this_process(), None)

    def add(self, *entries: Entry, origin: Origin) -> None:
        self.next_order += len(entries)
        names = [entry.job.id for entry in entries]
        self._origins.update(dict.fromkeys(names, origin))
        self._cancelled.update(dict.fromkeys(names, 0))
        self.put(*entries)

    def put(self, *entries: Entry) -> None:
        self.entries = {**self.entries, **{entry.job.id: entry for entry in entries}}
        self.changes.note([entry.job.id for entry in entries])

    def put_statuses(self, statuses: Mapping[JobId, Status]) -> None:
        entries = dict(self.entries)
        for job, status in statuses.items():
            if job in entries:
                entries[job] = replace(entries[job], status=status)
        self.entries = entries
        self.changes.note(statuses.keys() & entries.keys())

    def cancel(self, job: JobId, how: int) -> None:
        self._cancelled[job] = how
        self.put(replace(self.entries[job], cancelled=True))

    def keeps_checkpoints(self, job: JobId) -> bool:
        """Return whether the checkpoints of a job outlive the job."""
        return self._cancelled.get(job, CANCELLED) != CANCELLED

    def remove(self, job: JobId) -> None:
        self._origins.pop(job, None)
        self._cancelled.pop(job, None)
        self.entries = {name: entry for name, entry in self.entries.items() if name != job}
        self.changes.note_removed(job)
