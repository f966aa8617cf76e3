"""
The jobs of one machine and what was decided about them: the truth of this platform, in one file.

What Kubernetes' API server is on a cluster. A record is on the disk when :meth:`Registry.record`
returns. The profile store is another file, because that may be lost or away without any harm.
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

from dlcontrol.situation.clocks import (
    Reading,
    describe_step_between,
    find_step,
    latest_of,
    moved,
)
from dlcontrol.situation.ports import Entry, Fenced
from dlcontrol.situation.status import Status
from dlcontrol.situation.status_documents import read_status, write_status
from dlcore.documents import jobfile
from dlcore.model import GpuDemand, Job, JobId, Phase, Training
from dllocal.environments import Origin, Submitter
from dllocal.folders import StateError
from dllocal.jobs.changes import Changes
from dllocal.jobs.jobs_file import JobsFile
from dllocal.jobs.journal import (
    Kept,
    Row,
    change_of,
    cordon,
)
from dllocal.jobs.unlisted import LOST

log = logging.getLogger(__name__)

_CANCELLED, _CANCELLED_KEEPING = 1, 2
"""In the column of that name: with the job's own folder of checkpoints, or without it; else 0."""


class Registry:
    """One for the life of a controller. Not for several threads."""

    def __init__(self, file: JobsFile, kept: Kept) -> None:
        self._file = file
        self._entries: dict[JobId, Entry] = {
            JobId(name): _entry(JobId(name), row, file.path) for name, row in kept.rows.items()
        }
        self._origins = {
            JobId(name): _origin(name, row.origin, file.path)
            for name, row in kept.rows.items()
            if row.origin
        }
        self._cancelled = {JobId(name): row.cancelled for name, row in kept.rows.items()}
        self._cordons = dict(kept.cordons)
        self.was_there = kept.epoch > 0
        """Whether there was a list before this controller."""
        self._next_order = 1 + max((e.order for e in self._entries.values()), default=-1)
        self.changes = Changes(self._entries)
        """For whoever watches."""

    @classmethod
    def open(
        cls, path: Path, *, clock: Callable[[], float] = time.time, least_epoch: int = 0
    ) -> "Registry":
        """Begin a new epoch: a controller that wrote here before can do so no longer."""
        reading = Reading.now(clock)
        opened = JobsFile.open(path, reading, least_epoch=least_epoch)
        if opened.mended:
            log.warning("%s", opened.mended)
        try:
            registry = cls(opened.file, opened.kept)
            registry._follow_clock(opened.kept.reading, reading)
        except BaseException:
            opened.file.close()
            raise
        return registry

    def close(self) -> None:
        self._file.close()

    @property
    def epoch(self) -> int:
        """Under which this controller leads."""
        return self._file.epoch

    def _follow_clock(self, before: Reading, now: Reading) -> None:
        """Move what is recorded by as much as the clock of the machine was set between two controllers."""
        if not before.at:
            return
        latest = max((latest_of(each.status) for each in self._entries.values()), default=0.0)
        step = find_step(before, now, latest)
        if step and self._entries:
            log.warning("%s", describe_step_between(step))
            self.record({job: moved(each.status, step) for job, each in self._entries.items()})

    @property
    def entries(self) -> Mapping[JobId, Entry]:
        """All jobs, in order of arrival. A new mapping whenever one has changed."""
        return self._entries

    def origin(self, job: JobId) -> Origin:
        """Whose job it is, and its environment. Of a job of before: its server's user, and a login's."""
        return self._origins.get(job) or Origin.of(Submitter.of_this_process(), None)

    # --- written by users

    def submit(
        self, document: Mapping[str, Any], now: float, *, origin: Origin | None = None
    ) -> Entry:
        """Take a job in whose document was checked before."""
        return self.submit_all([document], now, origin=origin)[0]

    def submit_all(
        self,
        documents: Sequence[Mapping[str, Any]],
        now: float,
        *,
        origin: Origin | None = None,
    ) -> tuple[Entry, ...]:
        """Take several jobs in, all or none. Those without an origin are this process's own."""
        kept = origin or Origin.here()
        text = json.dumps(kept.written())
        entries = tuple(
            Entry(
                job=replace(jobfile.parse(document, require_template=True), submitted_at=now),
                order=self._next_order + place,
                status=Status(submitted_at=now),
                document=document,
                spec_generation=1,
            )
            for place, document in enumerate(documents)
        )
        self._file.commit(
            {
                "what": "job",
                "name": each.job.id,
                "row": [
                    *(each.order, json.dumps(each.document), _status_text(each.status)),
                    *(0, each.spec_generation, text),
                ],
            }
            for each in entries
        )
        self._next_order += len(entries)
        self._origins.update(dict.fromkeys([entry.job.id for entry in entries], kept))
        self._cancelled.update(dict.fromkeys([entry.job.id for entry in entries], 0))
        self._set(*entries)
        return entries

    def change(self, entry: Entry, document: Mapping[str, Any]) -> Entry:
        """Give a job another spec, which was checked to be a possible change of what it is now."""
        # What was decided since the entry was read stays decided.
        entry = self._entries[entry.job.id]
        job = jobfile.parse(document, require_template=True)
        changed = replace(
            entry,
            job=replace(job, submitted_at=entry.job.submitted_at),
            document=document,
            spec_generation=entry.spec_generation + 1,
        )
        generation = changed.spec_generation
        self._file.commit(
            [change_of(job.id, document=json.dumps(document), spec_generation=generation)]
        )
        self._set(changed)
        return changed

    def cancel(self, job: JobId, *, keep_checkpoints: bool = False) -> None:
        """
        Let a job be removed as soon as nothing of it is left but, if so wished, its checkpoints.

        A later request can still save the checkpoints, and no later one can give them up again.
        """
        if self._entries[job].cancelled and (self.keeps_checkpoints(job) or not keep_checkpoints):
            return
        how = _CANCELLED_KEEPING if keep_checkpoints else _CANCELLED
        self._file.insist([change_of(job, cancelled=how)])
        self._cancelled[job] = how
        self._set(replace(self._entries[job], cancelled=True))

    def keeps_checkpoints(self, job: JobId) -> bool:
        """Whether the checkpoints of a job outlive it: unless its user cancelled it without that wish."""
        return self._cancelled.get(job, _CANCELLED) != _CANCELLED

    # --- written by the loop

    def record(self, statuses: Mapping[JobId, Status]) -> None:
        """Keep what was decided; on the disk when this returns."""
        self._file.commit(
            change_of(job, status=_status_text(status))
            for job, status in statuses.items()
            if job in self._entries
        )
        entries = dict(self._entries)
        for job, status in statuses.items():
            if job in entries:
                entries[job] = replace(entries[job], status=status)
        self._entries = entries
        self.changes.note(statuses.keys() & entries.keys())

    def adopt(self, job: JobId, status: Status, origin: Origin) -> None:
        """Take in a job whose pods live and which the list has lost, or pods that it has lost of a job."""
        if job in self._entries:
            self.record({job: status})
            return
        namespace, _, own = job.rpartition("/")
        metadata = {"name": own, **({"namespace": namespace} if namespace else {})}
        row = Row(
            order=self._next_order,
            document=json.dumps({"metadata": metadata, "lost": LOST}),
            status=_status_text(status),
            origin=json.dumps(origin.written()),
        )
        self._file.commit([{"what": "job", "name": job, "row": list(row)}])
        self._next_order += 1
        self._origins[job], self._cancelled[job] = origin, row.cancelled
        self._set(_entry(job, row, self._file.path))

    def forget(self, job: JobId) -> None:
        """Remove a job of which nothing is left."""
        self._file.insist([{"what": "gone", "name": job}])
        self._file.reserve.make()
        self._origins.pop(job, None)
        self._cancelled.pop(job, None)
        self._entries = {name: entry for name, entry in self._entries.items() if name != job}
        self.changes.note_removed(job)

    # --- GPUs that were taken out by hand

    def cordons(self) -> dict[tuple[str, int], str]:
        """Which GPUs are not to be given away, and why."""
        return dict(self._cordons)

    def cordon(self, node: str, gpu: int, reason: str) -> None:
        """Give this GPU to no job from now on; an empty reason takes that back."""
        self._file.commit([cordon(node, gpu, reason)])
        self._cordons.pop((node, gpu), None)
        if reason:
            self._cordons[node, gpu] = reason

    # --- who leads

    def leading(self) -> AbstractContextManager[None]:
        """Act as the one that leads: raises :class:`Fenced` if another one does, and lets none begin meanwhile."""
        return self._file.leading()

    def still_leads(self) -> bool:
        """Look into the file whether no other controller has begun; one that cannot be read says nothing."""
        try:
            self._file.insist_on_leading()
        except Fenced:
            return False
        except sqlite3.Error:
            return True  # Each write looks once more, so that nothing is decided against another.
        return True

    def _set(self, *entries: Entry) -> None:
        self._entries = {**self._entries, **{entry.job.id: entry for entry in entries}}
        self.changes.note([entry.job.id for entry in entries])


def _origin(name: str, text: str, path: Path) -> Origin:
    try:
        return Origin.read(json.loads(text))
    except Exception as error:
        # Without it the job could run as another user than its own.
        raise StateError(
            f"{path}: the owner of job {name} cannot be read ({error}); use the dljob that has"
            " written it, or name another folder with --state"
        ) from error


def _entry(name: JobId, row: Row, path: Path) -> Entry:
    try:
        status = read_status(json.loads(row.status))
    except Exception as error:
        # Without it nobody knows what the job may hold.
        raise StateError(
            f"{path}: the recorded status of job {name} cannot be read ({error}); use the dljob"
            " that has written it, or name another folder with --state"
        ) from error
    job, document, problem = _read_document(name, row.document)
    return Entry(
        job=replace(job, submitted_at=status.submitted_at),
        order=row.order,
        status=status,
        document=document,
        cancelled=bool(row.cancelled),
        problem=problem,
        spec_generation=row.spec_generation,
    )


def _read_document(name: JobId, text: str) -> tuple[Job, Mapping[str, Any], str]:
    """Read what a user has written; what cannot be read any more keeps nobody else from training."""
    try:
        document = json.loads(text)
        if isinstance(document, dict) and document.get("lost"):
            return _unread(name), {**document, "spec": {}}, str(document["lost"])
        return jobfile.parse(document, require_template=True), document, ""
    except jobfile.JobFileError as error:
        why = error.lines()[0]
    except ValueError as error:
        why = str(error)
    namespace, _, own = name.rpartition("/")
    metadata = {"name": own, **({"namespace": namespace} if namespace else {})}
    problem = f"its spec can no longer be read ({why}); cancel it, and submit it again"
    return _unread(name), {"metadata": metadata, "spec": {}}, problem


def _unread(name: JobId) -> Job:
    return Job(id=name, gpus=GpuDemand(options=(1,), requested=1), training=Training())


def _status_text(status: Status) -> str:
    return json.dumps(write_status(status))


def is_over(entry: Entry) -> bool:
    """Whether a job has ended, and all that it had is proven to be gone."""
    ended = entry.status.phase in (Phase.COMPLETED, Phase.FAILED) or entry.cancelled
    return ended and not entry.status.pods


def why_not_written(error: sqlite3.Error) -> str:
    """Say why the list of jobs cannot be written, and what to do."""
    if is_locked(error):
        return f"cannot be written ({error}); end the other process that uses it"
    return f"cannot be written ({error}); make room on its disk"


def is_locked(error: sqlite3.Error) -> bool:
    """Whether somebody else has the file at the moment, and it may be tried again."""
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY
