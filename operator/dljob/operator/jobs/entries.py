"""
Converts custom resources into entries of the controller, and statuses into documents.

An entry stays the same object until the job changes, because the controller only looks at the entries that have
changed among thousands.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from dljob.control.acting.sidecar_options import on_cluster
from dljob.control.situation.clocks import LEAST_STEP_S, latest_of, moved
from dljob.control.situation.ports import Entry
from dljob.control.situation.status import ConditionType, Status
from dljob.control.situation.status_documents import (
    read_status,
    read_time,
    write_status,
    write_time,
)
from dljob.core.documents import jobfile
from dljob.core.documents.rules.podrules import TRAINER
from dljob.core.model import GpuDemand, Job, JobId, Phase, Training
from dljob.core.predicting.predictor import Span
from dljob.kube import names
from dljob.kube.documents import Json
from dljob.kube.names import Name
from dljob.kube.watches.mirror import epoch_of, version_of
from dljob.operator.jobs import history
from dljob.operator.jobs.columns import with_columns

ORDERS_A_SECOND = 1_000_000
"""The number of jobs whose order within a second is kept; Kubernetes records creation times to the second."""
MOST_SECONDS = 10_000
MOST_ATTEMPTS = 8
"""The number of unanswered writes of a status that are remembered."""
TEMPLATE_VALID = ConditionType.TEMPLATE_VALID.value


def job_id(name: Name) -> JobId:
    return JobId(f"{name.namespace}/{name.name}")


def name_of(job: JobId) -> Name:
    namespace, _, name = job.rpartition("/")
    return Name(namespace, name)


def is_over(document: Json) -> bool:
    """True if no pod of a job will be created any more."""
    phase = (document.get("status") or {}).get("phase")
    return "deletionTimestamp" in document["metadata"] or phase in (Phase.COMPLETED, Phase.FAILED)


def status_document(
    status: Status,
    *,
    epoch: int,
    generation: int,
    remaining: Span | None = None,
    template: Json | None = None,
    queue: Json | None = None,
    before: Json | None = None,
    job_name: str = "",
) -> dict[str, Any]:
    """
    Write a status.

    ``epoch`` is that of the leader that decided about the ``generation`` of the spec, ``template`` the condition
    TemplateValid, ``before`` the status that the new one replaces, and ``job_name`` is in the labels of the job's pods.
    """
    document = write_status(status, remaining=remaining)
    if queue is not None:
        document["queue"] = dict(queue)
    conditions = document.get("conditions", [])
    if template is not None:
        others = [each for each in conditions if each["type"] != TEMPLATE_VALID]
        document["conditions"] = conditions = [*others, dict(template)]
    for condition in conditions:
        condition["observedGeneration"] = generation
    shown = with_columns(document) | {
        "epoch": epoch,
        "revision": (before or {}).get("revision", 0) + 1,
        "observedGeneration": generation,
        "selector": f"{names.JOB_LABEL}={job_name},{names.ROLE_LABEL}={TRAINER}",
    }
    past = history.continued(before or {}, shown)
    return shown | {"history": past} if past else shown


def template_condition(document: Json, refusal: str | None) -> Json | None:
    """Make the condition that says whether Kubernetes accepts the pods of a job."""
    before = next(
        (
            each
            for each in (document.get("status") or {}).get("conditions", ())
            if each["type"] == TEMPLATE_VALID
        ),
        None,
    )
    # A result from the creation of its pods stays valid, even if Kubernetes refuses pods now.
    if refusal is None or is_over(document):
        return before
    status = "False" if refusal else "True"
    since = before["lastTransitionTime"] if before and before["status"] == status else None
    return {
        "type": TEMPLATE_VALID,
        "status": status,
        "reason": "Refused" if refusal else "Accepted",
        "message": refusal or "Kubernetes takes its pods",
        "lastTransitionTime": since or write_time(time.time()),
    }


class Specs:
    """Parses each spec once for all callers, because that takes longer than everything else about a job."""

    def __init__(self) -> None:
        self._read: dict[Name, tuple[tuple[str, int], Job | jobfile.JobFileError]] = {}

    def parse(self, document: Json) -> Job:
        """Parse a spec; raises :class:`~dljob.core.documents.jobfile.JobFileError`."""
        name, metadata = Name.of(document), document["metadata"]
        # With the uid, because a job that is deleted and submitted again begins at generation 1, too.
        of = (metadata["uid"], metadata["generation"])
        known = self._read.get(name)
        if known is None or known[0] != of:
            try:
                job = on_cluster(jobfile.parse(document, require_template=True))
            except jobfile.JobFileError as error:
                known = self._read[name] = (of, error)
            else:
                known = self._read[name] = (of, job)
        if isinstance(known[1], jobfile.JobFileError):
            raise known[1]
        return known[1]

    async def read_ahead(self, documents: Iterable[Json]) -> None:
        """Parse all of these, yielding to other tasks: 10,000 jobs take seconds."""
        # A copy, because watches change the mirror during each sleep.
        for document in list(documents):
            # parse() raises the error again for the caller that needs the job.
            with contextlib.suppress(jobfile.JobFileError):
                self.parse(document)
            await asyncio.sleep(0)

    def keep_only(self, kept: Collection[Name]) -> None:
        """Forget all other jobs."""
        for name in self._read.keys() - kept:
            del self._read[name]

    def forget(self, name: Name) -> None:
        self._read.pop(name, None)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A write of a status that has no answer yet, and perhaps never gets one."""

    over: int
    """The version of the job that it replaces."""
    mark: tuple[object, ...]
    """Identifies its result."""


@dataclass(slots=True)
class _Known:
    uid: str
    generation: int
    written: Json
    entry: Entry
    unreadable: str = ""
    """The reason why the spec cannot be read."""
    is_untimely: bool = False
    """True if the spec may become readable once the job holds nothing."""
    odd: str = ""
    """The reason why the status cannot be read."""
    is_ours: bool = False
    """True once this leader has written the status."""
    version: int = -1
    """The version that our last noted write made."""
    attempts: deque[_Attempt] = field(default_factory=lambda: deque(maxlen=MOST_ATTEMPTS))


class Jobs:
    """Remembers the entries of all jobs, and the records of this leader."""

    def __init__(self, specs: Specs, clock: Callable[[], float] = time.time) -> None:
        self._specs = specs
        self._clock = clock
        self._known: dict[Name, _Known] = {}
        self._arrivals: dict[int, int] = {}
        """The number of jobs by the second of their creation."""

    def forget(self, name: Name) -> None:
        self._known.pop(name, None)
        self._specs.forget(name)

    def status(self, name: Name) -> Status | None:
        """Return the recorded status of a job."""
        known = self._known.get(name)
        return known.entry.status if known is not None else None

    def is_known(self, document: Json) -> bool:
        """True unless this is a later job of the same name."""
        return self._get_known(document) is not None

    def is_recorded(self, document: Json) -> bool:
        """
        True if a job has exactly the status that was recorded last.

        A watch may show the result of a write before the answer arrives.
        """
        known = self._get_known(document)
        return known is not None and (document.get("status") or {}) == known.written

    def as_recorded(self, document: Json) -> Json:
        """Return a job with the status that was recorded last, if one is known."""
        known = self._get_known(document)
        return document if known is None else {**document, "status": known.written}

    def is_as_decided(self, document: Json) -> bool:
        """True if the decision in a status is the one that was recorded last."""
        return _decision(document) == _decision(self.as_recorded(document))

    def is_foreign(self, document: Json) -> bool:
        """
        True if another program has written the status of a job since this leader wrote it.

        The first status of a job in a term may be the former leader's last write, which counts. After that only
        this leader writes it, because each write has the version before it as its precondition.
        """
        known = self._get_known(document)
        if known is None or not known.is_ours:
            return False
        written = document.get("status") or {}
        if written is known.written or written == known.written:
            return False
        # The watch may show our own write whose answer was lost; its mark identifies it.
        return _mark(document) not in [attempt.mark for attempt in known.attempts]

    def note_attempt(self, document: Json, wanted: Json) -> None:
        """Remember a status before it is written, because the answer may be lost."""
        known = self._get_known(document)
        if known is not None:
            mark = _mark({**document, "status": wanted})
            known.attempts.append(_Attempt(version_of(document), mark))

    def note_written(self, document: Json, status: Status) -> None:
        """Remember the value that was written, because a document may hold less of it."""
        known = self._get_known(document)
        # Answers overtake each other: an earlier write must not replace the record of a later one.
        if known is not None and version_of(document) > known.version:
            known.version = version_of(document)
            known.written = document.get("status") or {}
            known.entry = replace(known.entry, status=status)
            known.is_ours = True
            # Writes over an older version can no longer succeed.
            later = [each for each in known.attempts if each.over >= version_of(document)]
            known.attempts = deque(later, maxlen=MOST_ATTEMPTS)

    def _get_known(self, document: Json) -> "_Known | None":
        known = self._known.get(Name.of(document))
        return known if known is not None and known.uid == document["metadata"]["uid"] else None

    def read(self, document: Json, *, problem: str = "") -> Entry:
        """Read a job; ``problem`` is a known reason why it cannot run."""
        name, metadata = Name.of(document), document["metadata"]
        known = self._known.get(name)
        if known is None or known.uid != metadata["uid"]:
            known = _Known(metadata["uid"], -1, {}, self._new_entry(name, metadata))
            self._known[name] = known
        written = document.get("status") or {}
        if written != known.written:
            known.written = written
            known.entry, known.odd = _with_status(known.entry, written, now=self._clock())
        is_held = known.entry.status.has_anything
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
            # Nothing but the name is known yet.
            job=Job(
                id=job_id(name),
                gpus=GpuDemand(options=(1,), requested=1),
                training=Training(iterations=1),
                submitted_at=created,
            ),
            order=second * ORDERS_A_SECOND + place,
            status=Status(submitted_at=created),
        )

    def _with_spec(self, entry: Entry, document: Json) -> Entry:
        """
        Read a new spec. If it is unreadable, the entry keeps the former one and names the problem.

        The API server checks the schema, so an unreadable spec was accepted under an older definition, or differs
        in fields that the server does not check.
        """
        job, problem = entry.job, ""
        try:
            parsed = replace(self._specs.parse(document), submitted_at=entry.job.submitted_at)
        except jobfile.JobFileError as error:
            problem = "; ".join(str(each) for each in error.problems)
        else:
            # Some fields may change only while the job holds nothing.
            if entry.document and entry.status.has_anything:
                problem = "; ".join(map(str, jobfile.change_problems(entry.job, parsed)))
            job = job if problem else parsed
        return replace(
            entry,
            job=job,
            problem=problem,
            document=document,
            spec_generation=document["metadata"]["generation"],
        )


def _decision(document: Json) -> tuple[object, object]:
    """Return two numbers that differ between any two decisions about a job."""
    status = document.get("status") or {}
    return (status.get("allocation") or {}).get("generation"), status.get("podsBooked")


def _mark(document: Json) -> tuple[object, ...]:
    """Return a mark that is unique to each write of a status by one leader."""
    revision = (document.get("status") or {}).get("revision")
    return epoch_of(document), revision, *_decision(document)


def _with_status(entry: Entry, written: Json, *, now: float) -> tuple[Entry, str]:
    """
    Read a status; one that cannot be read leaves the entry as it was, and is reported.

    Recorded times lie in the past. If some lie in the future, the clock was set back since then, so all of them are
    moved back, and nothing waits until then.
    """
    try:
        status = read_status(written)
        early = latest_of(status) - now
        status = moved(status, -early) if early >= LEAST_STEP_S else status
    except Exception as error:  # noqa: BLE001 - one job's status never stops the others
        return entry, (
            f"its status cannot be read ({type(error).__name__}: {error}), because another program"
            " than DLJob has written it; cancel the job and submit it again"
        )
    submitted_at = status.submitted_at or entry.job.submitted_at
    return replace(entry, status=replace(status, submitted_at=submitted_at)), ""
