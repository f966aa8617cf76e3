"""
The rows of the list of jobs, and the entries that they hold.

An unreadable status or owner ends the start of a controller with a :class:`~dljob.local.folders.StateError`, because GPUs
and rights depend on them. An unreadable document only quarantines its job.
"""

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from dljob.control.situation.ports import Entry
from dljob.control.situation.status import Status
from dljob.control.situation.status_documents import read_status, write_status
from dljob.core.documents import jobfile
from dljob.core.model import GpuDemand, Job, JobId, Training
from dljob.local.environments import Origin
from dljob.local.folders import StateError
from dljob.local.jobs.unlisted import LOST


class Row(NamedTuple):
    """A row of the table ``jobs``."""

    name: str
    order: int
    document: str
    status: str
    cancelled: int
    spec_generation: int
    origin: str
    """The submitter of the job; empty in lists of older versions."""


def read_rows(db: sqlite3.Connection) -> list[Row]:
    """Return the rows of all jobs, in order of arrival."""
    return [Row(*row) for row in db.execute('SELECT * FROM jobs ORDER BY "order"')]


def row_of(entry: Entry, origin: Origin) -> Row:
    return Row(
        name=entry.job.id,
        order=entry.order,
        document=json.dumps(entry.document),
        status=write_status_text(entry.status),
        cancelled=0,
        spec_generation=entry.spec_generation,
        origin=json.dumps(origin.written()),
    )


def lost_entry(job: JobId, status: Status, *, order: int) -> Entry:
    """Make the entry of a job whose pods live and whose document is lost."""
    return Entry(
        job=replace(_unread(job), submitted_at=status.submitted_at),
        order=order,
        status=status,
        document={"metadata": _metadata_of(job), "lost": LOST},
        problem=LOST,
        spec_generation=1,
    )


def is_lost(entry: Entry) -> bool:
    """Return whether the list had lost this job and found it again by its pods."""
    return bool(entry.document.get("lost"))


def read_origin(row: Row, *, path: Path) -> Origin:
    try:
        return Origin.read(json.loads(row.origin))
    except Exception as error:
        # Without its owner the job could run as another user.
        raise StateError(
            f"{path}: the owner of job {row.name} cannot be read ({error}); use the dljob that has"
            " written it, or name another folder with --state"
        ) from error


def read_entry(row: Row, *, path: Path) -> Entry:
    try:
        status = read_status(json.loads(row.status))
    except Exception as error:
        # Without the status the GPUs that the job may hold are unknown.
        raise StateError(
            f"{path}: the recorded status of job {row.name} cannot be read ({error}); use the dljob"
            " that has written it, or name another folder with --state"
        ) from error
    job, document, problem = _read_document(JobId(row.name), row.document)
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
    """Read a user's document. An unreadable document quarantines only its job."""
    try:
        document = json.loads(text)
        if isinstance(document, dict) and document.get("lost"):
            return _unread(name), document, LOST
        return jobfile.parse(document, require_template=True), document, ""
    except jobfile.JobFileError as error:
        why = error.lines()[0]
    except ValueError as error:
        why = str(error)
    problem = f"its spec can no longer be read ({why}); cancel it, and submit it again"
    return _unread(name), {"metadata": _metadata_of(name), "spec": {}}, problem


def _unread(name: JobId) -> Job:
    return Job(id=name, gpus=GpuDemand(options=(1,), requested=1), training=Training())


def _metadata_of(job: JobId) -> dict[str, str]:
    namespace, _, own = job.rpartition("/")
    return {"name": own, **({"namespace": namespace} if namespace else {})}


def write_status_text(status: Status) -> str:
    return json.dumps(write_status(status))
