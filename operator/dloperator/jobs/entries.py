"""
Custom resources as entries of the controller, and the status as it is written there.

An entry stays the same object as long as the job is as it was, because the controller looks at
thousands of them at every turn and at what changed among them only.
"""

import asyncio
import contextlib
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dlcontrol.situation.ports import Entry
from dlcontrol.situation.status import ConditionType, Status
from dlcontrol.situation.status_documents import (
    read_status,
    read_time,
    write_status,
    write_time,
)
from dlcore.documents import jobfile
from dlcore.model import GpuDemand, Job, JobId, Phase, Training
from dlcore.predicting.predictor import Span
from dlkube.names import Name
from dloperator.jobs import history
from dloperator.jobs.columns import with_columns

Json = Mapping[str, Any]

ORDERS_A_SECOND = 1_000_000
"""How many jobs may arrive in the one second to which Kubernetes tells when something was created."""
MOST_SECONDS = 10_000
TEMPLATE_VALID = ConditionType.TEMPLATE_VALID.value


def job_id(name: Name) -> JobId:
    """Name a job as the controller does."""
    return JobId(f"{name.namespace}/{name.name}")


def name_of(job: JobId) -> Name:
    namespace, _, name = job.rpartition("/")
    return Name(namespace, name)


def is_over(document: Json) -> bool:
    """Whether no pod of a job will be made any more."""
    phase = (document.get("status") or {}).get("phase")
    return "deletionTimestamp" in document["metadata"] or phase in (Phase.COMPLETED, Phase.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What stands in a status besides what the controller records."""

    epoch: int
    """Who decided."""
    generation: int
    """About which spec."""
    remaining: Span | None = None
    """In what time the job is expected to end."""
    template: Json | None = None
    """The condition that says whether Kubernetes takes the pods."""
    queue: Json | None = None
    """Where the job is among those that wait, and when it is expected to start."""
    before: Json = field(default_factory=dict)
    """The status that it is to replace."""


def status_document(status: Status, around: Circumstances) -> dict[str, Any]:
    """Write a status as the custom resource has it."""
    document = write_status(status, remaining=around.remaining)
    if around.queue is not None:
        document["queue"] = dict(around.queue)
    conditions = document.get("conditions", [])
    if around.template is not None:
        others = [each for each in conditions if each["type"] != TEMPLATE_VALID]
        document["conditions"] = conditions = [*others, dict(around.template)]
    for condition in conditions:
        condition["observedGeneration"] = around.generation
    shown = with_columns(document) | {
        "epoch": around.epoch,
        "revision": around.before.get("revision", 0) + 1,
        "observedGeneration": around.generation,
    }
    past = history.continued(around.before, shown)
    return shown | {"history": past} if past else shown


def template_condition(document: Json, verdict: str | None) -> Json | None:
    """Say whether Kubernetes takes the pods of a job; its time stays as long as the answer does."""
    before = next(
        (
            each
            for each in (document.get("status") or {}).get("conditions", ())
            if each["type"] == TEMPLATE_VALID
        ),
        None,
    )
    # What was found while pods of it were made stays true, whatever refuses pods by now.
    if verdict is None or is_over(document):
        return before
    status = "False" if verdict else "True"
    since = before["lastTransitionTime"] if before and before["status"] == status else None
    return {
        "type": TEMPLATE_VALID,
        "status": status,
        "reason": "Refused" if verdict else "Accepted",
        "message": verdict or "Kubernetes takes its pods",
        "lastTransitionTime": since or write_time(time.time()),
    }


class Specs:
    """Reads each spec once, whoever asks for it: that takes longer than all else about a job."""

    def __init__(self) -> None:
        self._read: dict[Name, tuple[tuple[str, int], Job | jobfile.JobFileError]] = {}

    def parse(self, document: Json) -> Job:
        """Read a job; raises :class:`~dlcore.documents.jobfile.JobFileError` if it cannot be read."""
        name, metadata = Name.of(document), document["metadata"]
        of = (metadata["uid"], metadata["generation"])
        known = self._read.get(name)
        if known is None or known[0] != of:
            known = self._read[name] = (of, _parse(document))
        if isinstance(known[1], jobfile.JobFileError):
            raise known[1]
        return known[1]

    async def read_ahead(self, documents: Iterable[Json]) -> None:
        """Read all of these, while others have their turn: of 10,000 jobs it takes seconds."""
        for document in list(documents):
            with contextlib.suppress(jobfile.JobFileError):  # Whoever asks for it is told.
                self.parse(document)
            await asyncio.sleep(0)

    def keep_only(self, names: Collection[Name]) -> None:
        """Forget what all other jobs say."""
        for name in self._read.keys() - names:
            del self._read[name]

    def forget(self, name: Name) -> None:
        self._read.pop(name, None)


def _parse(document: Json) -> Job | jobfile.JobFileError:
    try:
        return jobfile.parse(document, require_template=True)
    except jobfile.JobFileError as error:
        return error


@dataclass(slots=True)
class _Known:
    uid: str
    generation: int
    written: Json
    entry: Entry
    unreadable: str = ""
    """Why the spec cannot be read."""
    is_untimely: bool = False
    """Perhaps only because of what the job has yet."""
    odd: str = ""
    """Why its status cannot be read."""


class Jobs:
    """Remembers what the documents were read as."""

    def __init__(self, specs: Specs) -> None:
        self._specs = specs
        self._known: dict[Name, _Known] = {}
        self._arrivals: dict[int, int] = {}
        """How many jobs have arrived in a second."""

    def forget(self, name: Name) -> None:
        self._known.pop(name, None)
        self._specs.forget(name)

    def status(self, name: Name) -> Status | None:
        """What is recorded about a job, as far as is known."""
        known = self._known.get(name)
        return known.entry.status if known is not None else None

    def as_recorded(self, document: Json) -> Json:
        """Return a job with the status that was recorded last, as far as one is known."""
        known = self._known.get(Name.of(document))
        if known is None or known.uid != document["metadata"]["uid"]:
            return document
        return {**document, "status": known.written}

    def is_as_decided(self, document: Json) -> bool:
        """Whether a job was decided about as it was recorded last, as far as that is known."""
        return _decision(document) == _decision(self.as_recorded(document))

    def note_written(self, document: Json, status: Status) -> None:
        """Remember the very value that was written, because less may be read back."""
        known = self._known.get(Name.of(document))
        if known is not None and known.uid == document["metadata"]["uid"]:
            known.written = document.get("status") or {}
            known.entry = replace(known.entry, status=status)

    def read(self, document: Json, *, problem: str = "") -> Entry:
        """Read a job; ``problem`` is why it cannot be dealt with, if it is known already."""
        name, metadata = Name.of(document), document["metadata"]
        known = self._known.get(name)
        if known is None or known.uid != metadata["uid"]:
            known = _Known(metadata["uid"], -1, {}, self._new_entry(name, metadata))
            self._known[name] = known
        written = document.get("status") or {}
        if written != known.written:
            known.written = written
            known.entry, known.odd = _with_status(known.entry, written)
        is_held = known.entry.status.has_anything
        # What may not change while the job has anything may do so afterwards.
        if known.generation != metadata["generation"] or (known.is_untimely and not is_held):
            known.generation = metadata["generation"]
            known.entry = self._with_spec(known.entry, document)
            known.unreadable = known.entry.problem
            known.is_untimely = bool(known.unreadable) and is_held
        problem = known.odd or known.unreadable or problem
        if problem != known.entry.problem:
            known.entry = replace(known.entry, problem=problem)
        if "deletionTimestamp" in metadata and not known.entry.cancelled:
            known.entry = replace(known.entry, cancelled=True)
        return known.entry

    def _new_entry(self, name: Name, metadata: Json) -> Entry:
        created = read_time(metadata["creationTimestamp"]) or 0.0
        second = int(created)
        if second not in self._arrivals and len(self._arrivals) >= MOST_SECONDS:
            del self._arrivals[next(iter(self._arrivals))]
        place = self._arrivals.get(second, 0)
        self._arrivals[second] = place + 1
        return Entry(
            job=replace(_unreadable(job_id(name)), submitted_at=created),
            order=second * ORDERS_A_SECOND + place,
            status=Status(submitted_at=created),
        )

    def _with_spec(self, entry: Entry, document: Json) -> Entry:
        """
        Read a new spec. One that cannot be leaves the job as it was last, and is told.

        The API server checks all that a schema can say, so that one that cannot be read was let in by
        an older one; and it does not see every change of what it keeps without knowing it.
        """
        job, problem = entry.job, ""
        try:
            parsed = replace(self._specs.parse(document), submitted_at=entry.job.submitted_at)
        except jobfile.JobFileError as error:
            problem = "; ".join(str(each) for each in error.problems)
        else:
            problem = _why_not_now(entry, parsed)
            job = job if problem else parsed
        return replace(
            entry,
            job=job,
            problem=problem,
            document=document,
            spec_generation=document["metadata"]["generation"],
        )


def _why_not_now(entry: Entry, job: Job) -> str:
    """Say why a spec may not become this one now; empty if it may."""
    if not entry.document or not entry.status.has_anything:
        return ""
    return "; ".join(str(each) for each in jobfile.change_problems(entry.job, job))


def _decision(document: Json) -> tuple[object, object]:
    """Return by what decisions about a job differ."""
    status = document.get("status") or {}
    return (status.get("allocation") or {}).get("generation"), status.get("podsBooked")


def _with_status(entry: Entry, written: Json) -> tuple[Entry, str]:
    """Read a status; one that makes no sense leaves the job with what was known last, and is told."""
    try:
        status = read_status(written)
    except Exception as error:  # noqa: BLE001 - one job's status never stops the others
        return entry, (
            f"its status cannot be read ({type(error).__name__}: {error}), because another program"
            " than DLJob has written it; cancel the job and submit it again"
        )
    submitted_at = status.submitted_at or entry.job.submitted_at
    return replace(entry, status=replace(status, submitted_at=submitted_at)), ""


def _unreadable(job: JobId) -> Job:
    """Stand in for a job of which nothing can be read but its name."""
    return Job(id=job, gpus=GpuDemand(options=(1,), requested=1), training=Training(iterations=1))
