"""
The jobs of one machine and the decisions about them: the role that Kubernetes' API server has on a cluster.

Every change is on the disk when its method returns. Profiles are in another file, which may be lost without harm.
"""

import asyncio
import json
import logging
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from dljob.control.situation.clocks import (
    Reading,
    find_step,
    latest_of,
    moved,
)
from dljob.control.situation.ports import Entry
from dljob.control.situation.status import Status
from dljob.core.documents import jobfile
from dljob.core.model import Job, JobId, Phase
from dljob.local.environments import Origin, Submitter
from dljob.local.folders import StateError
from dljob.local.jobs.jobs_file import LOCKED_S, JobsFile
from dljob.local.jobs.rows import (
    lost_entry,
    read_entry,
    read_origin,
    read_rows,
    row_of,
    write_status_text,
)

log = logging.getLogger(__name__)

CANCELLED, CANCELLED_KEEPING = 1, 2
"""The values of the column ``cancelled``: the job's own checkpoints are removed, or kept. A job that is not cancelled has 0."""

COPY_S = 30.0

MOST_REMOVED = 1000
"""The number of remembered removals. A watcher that missed more gets all jobs again."""

_ADD = "INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?)"


class Registry:
    """The jobs of one controller. Not thread-safe."""

    def __init__(self, file: JobsFile) -> None:
        self._file = file
        rows = read_rows(file.db)
        entries = [read_entry(row, path=file.path) for row in rows]
        self.entries: Mapping[JobId, Entry] = {entry.job.id: entry for entry in entries}
        """All jobs in order of arrival; replaced by a new mapping after each change."""
        self._origins = {
            JobId(row.name): read_origin(row, path=file.path) for row in rows if row.origin
        }
        self._cancelled = {JobId(row.name): row.cancelled for row in rows}
        self._next_order = 1 + max((row.order for row in rows), default=-1)
        self._cordons: dict[tuple[str, int], str] = {
            (node, gpu): reason for node, gpu, reason in file.db.execute("SELECT * FROM cordons")
        }
        self._holds: dict[str, str] = dict(file.db.execute("SELECT * FROM holds").fetchall())
        self.changes = Changes(self.entries)

    @classmethod
    def open(
        cls, path: Path, *, clock: Callable[[], float] = time.time, least_epoch: int = 0
    ) -> "Registry":
        """Begin a new epoch, in which no earlier controller can write."""
        reading = Reading.now(clock)
        file = JobsFile.open(path, reading, least_epoch=least_epoch)
        try:
            registry = cls(file)
            _follow_clock(registry, file.former_reading, now=reading)
            # Another program may lock the file at any time, and the first reads wait for it like the first write.
            file.db.execute(f"PRAGMA busy_timeout = {LOCKED_S * 1000:.0f}")
        except BaseException as error:
            file.db.close()
            if isinstance(error, sqlite3.Error):
                raise StateError(f"{path}: {why_not_written(error)}") from error
            raise
        return registry

    def close(self) -> None:
        self._file.close()

    async def keep_copy(self) -> None:
        """Renew the copy of the list soon after changes."""
        while True:
            begun = time.monotonic()
            self._file.back_up()
            # A long list takes at most a hundredth of the time.
            await asyncio.sleep(max(COPY_S, 100 * (time.monotonic() - begun)))

    @property
    def epoch(self) -> int:
        return self._file.epoch

    @property
    def was_there(self) -> bool:
        """True if a list existed before this controller."""
        return bool(self._file.former_epoch)

    @property
    def is_restored(self) -> bool:
        """True if the list is a copy to which nothing was added that has happened since."""
        return self._file.is_restored

    def note_addition(self) -> None:
        """Note that everything is added that has happened since the copy."""
        self._file.commit("UPDATE leader SET restored = ?", (0,))
        self._file.is_restored = False

    def origin(self, job: JobId) -> Origin:
        """Return the origin of a job; for a job of an older version, the server's user with the environment of a login."""
        return self._origins.get(job) or Origin.of(Submitter.of_this_process(), None)

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
        self._file.insist_on_room()
        entries = tuple(
            Entry(
                job=replace(job, submitted_at=now),
                order=self._next_order + place,
                status=Status(submitted_at=now),
                document=document,
                spec_generation=1,
            )
            for place, (job, document) in enumerate(jobs)
        )
        self._add(*entries, origin=origin or Origin.here())
        return entries

    def change(self, entry: Entry, *, job: Job, document: Mapping[str, Any]) -> Entry:
        """Replace the spec of a job by a valid change of it, with its document."""
        # Include the decisions made since the caller read the entry.
        entry = self.entries[entry.job.id]
        generation = entry.spec_generation + 1
        job = replace(job, submitted_at=entry.job.submitted_at)
        changed = replace(entry, job=job, document=document, spec_generation=generation)
        statement = "UPDATE jobs SET document = ?, spec_generation = ? WHERE name = ?"
        self._file.commit(statement, (json.dumps(document), generation, job.id))
        self._put(changed)
        return changed

    def cancel(self, job: JobId, *, keep_checkpoints: bool = False) -> None:
        """Remove a job as soon as none of its processes run.

        A later call can still keep the checkpoints, but no later call can drop them.
        """
        if self.entries[job].cancelled and (self.keeps_checkpoints(job) or not keep_checkpoints):
            return
        how = CANCELLED_KEEPING if keep_checkpoints else CANCELLED
        self._file.commit("UPDATE jobs SET cancelled = ? WHERE name = ?", (how, job))
        self._cancelled[job] = how
        self._put(replace(self.entries[job], cancelled=True))

    def keeps_checkpoints(self, job: JobId) -> bool:
        """Return whether the checkpoints of a job outlive the job."""
        return self._cancelled.get(job, CANCELLED) != CANCELLED

    # --- written by the loop

    def record(self, statuses: Mapping[JobId, Status]) -> None:
        known = {job: status for job, status in statuses.items() if job in self.entries}
        self._file.commit(
            "UPDATE jobs SET status = ? WHERE name = ?",
            *((write_status_text(status), job) for job, status in known.items()),
        )
        self._put(*(replace(self.entries[job], status=status) for job, status in known.items()))

    def adopt(self, job: JobId, status: Status, *, origin: Origin) -> None:
        """Add a lost job whose pods live, or add such pods to a listed job."""
        if job in self.entries:
            self.record({job: status})
            return
        self._add(lost_entry(job, status, order=self._next_order), origin=origin)

    def forget(self, job: JobId) -> None:
        self._file.commit("DELETE FROM jobs WHERE name = ?", (job,))
        self._origins.pop(job, None)
        self._cancelled.pop(job, None)
        self.entries = {name: entry for name, entry in self.entries.items() if name != job}
        self.changes.note_removed(job)

    # --- cordoned GPUs

    def cordons(self) -> dict[tuple[str, int], str]:
        """Return the cordoned GPUs with the reasons."""
        return dict(self._cordons)

    def cordon(self, node: str, gpu: int, reason: str) -> None:
        """Cordon a GPU; an empty reason uncordons it."""
        if reason:
            self._file.commit(
                "INSERT OR REPLACE INTO cordons VALUES (?, ?, ?)", (node, gpu, reason)
            )
            self._cordons[node, gpu] = reason
        else:
            self._file.commit("DELETE FROM cordons WHERE node = ? AND gpu = ?", (node, gpu))
            self._cordons.pop((node, gpu), None)

    # --- jobs on hold

    @property
    def holds(self) -> Mapping[str, str]:
        """The namespaces whose jobs are on hold, with the reasons; ``*``: all."""
        return self._holds

    def hold(self, namespace: str, reason: str | None) -> None:
        """Hold the jobs of a namespace, or of all (``*``); ``None`` releases them."""
        # A new mapping, because scenes hold the former one.
        others = {name: why for name, why in self._holds.items() if name != namespace}
        if reason is None:
            self._file.commit("DELETE FROM holds WHERE namespace = ?", (namespace,))
            self._holds = others
        else:
            self._file.commit("INSERT OR REPLACE INTO holds VALUES (?, ?)", (namespace, reason))
            self._holds = {**others, namespace: reason}

    # --- leadership

    def leading(self) -> AbstractContextManager[None]:
        """Act while no other controller can begin; raise :class:`Fenced` if one has begun."""
        return self._file.leading()

    def still_leads(self) -> bool:
        """Return whether no other controller has begun, as far as the file can be read."""
        return self._file.still_leads()

    # --- memory, after the file

    def _add(self, *entries: Entry, origin: Origin) -> None:
        self._file.commit(_ADD, *(row_of(entry, origin) for entry in entries))
        self._next_order += len(entries)
        names = [entry.job.id for entry in entries]
        self._origins.update(dict.fromkeys(names, origin))
        self._cancelled.update(dict.fromkeys(names, 0))
        self._put(*entries)

    def _put(self, *entries: Entry) -> None:
        self.entries = {**self.entries, **{entry.job.id: entry for entry in entries}}
        self.changes.note([entry.job.id for entry in entries])


class Changes:
    """The versions of jobs, so that a watch gets only the changed jobs.

    Versions count the changes of one epoch: after a restart of the controller, watchers get all jobs
    again.
    """

    def __init__(self, jobs: Iterable[JobId] = ()) -> None:
        self.version = 1
        self._changed = dict.fromkeys(jobs, self.version)
        self._removed: OrderedDict[JobId, int] = OrderedDict()
        self._forgotten = 0
        """The version of the latest removal that was dropped from memory."""
        self._news = asyncio.Event()

    def note(self, jobs: Iterable[JobId]) -> None:
        self.version += 1
        for job in jobs:
            self._changed[job] = self.version
            # A new job with the name of a removed one, which a watcher must not drop.
            self._removed.pop(job, None)
        self._wake()

    def note_removed(self, job: JobId) -> None:
        self.version += 1
        self._changed.pop(job, None)
        self._removed[job] = self.version
        if len(self._removed) > MOST_REMOVED:
            _, self._forgotten = self._removed.popitem(last=False)
        self._wake()

    def version_of(self, job: JobId) -> int:
        return self._changed.get(job, 0)

    def knows(self, version: int) -> bool:
        """Return whether all changes since this version are known."""
        return self._forgotten <= version <= self.version

    def since(self, version: int) -> tuple[list[JobId], list[JobId]]:
        """Return the jobs that have changed after this version, and those that were removed."""
        changed = [job for job, at in self._changed.items() if at > version]
        return changed, [job for job, at in self._removed.items() if at > version]

    async def wait(self, version: int, seconds: float) -> None:
        """Wait for a change, or until the time is over."""
        try:
            async with asyncio.timeout(seconds):
                while self.version <= version:
                    await self._news.wait()
        except TimeoutError:
            pass

    def _wake(self) -> None:
        # A new event for later waiters: one that stays set would not suspend the loop in `wait`.
        self._news.set()
        self._news = asyncio.Event()


def _follow_clock(registry: Registry, before: Reading, *, now: Reading) -> None:
    """Move recorded times by the change of the machine's clock since the previous controller."""
    if not before.at:
        return
    latest = max((latest_of(each.status) for each in registry.entries.values()), default=0.0)
    step = find_step(before, now, latest=latest)
    if step and registry.entries:
        log.warning(
            "the clock of this machine was set %s by %.0f s since the last controller; the recorded times were moved"
            " by as much",
            "forward" if step > 0 else "back",
            abs(step),
        )
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
