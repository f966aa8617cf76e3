"""
Changes an existing job: read it, alter its document, write it, and try again after a conflict.

``suspend``, ``resume``, ``set``, ``apply`` and ``edit`` change jobs this way. Which fields may change is
decided where the job is kept, so that every way to change a job has the same answer.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from dljob.client.backend import Backend, BackendError, Conflict, Json, Keeping
from dljob.client.demands import COUNTS
from dljob.client.jobviews import JobView
from dljob.control.reporting.formatting import in_ranges

ATTEMPTS = 5
"""The number of attempts when other writers change the job meanwhile."""

LONGEST_VALUE = 60

T = TypeVar("T")


class Change(NamedTuple):
    """The document of a job before and after."""

    before: Json
    after: Json

    @property
    def is_change(self) -> bool:
        return self.before is not self.after


def change_job(
    backend: Backend, name: str, *, alter: Callable[[Json], Json], dry_run: bool = False
) -> Change:
    """
    Write what ``alter`` makes of the document of a job; where it returns it as it is, nothing is written.

    Raises :class:`~dljob.client.backend.BackendError` if the job has ended or does not take the change.
    """

    def attempt() -> Change:
        document = backend.get_job(name)
        insist_on_living(JobView.of(document), name)
        altered = alter(document)
        if altered is document:
            return Change(document, document)
        return Change(document, backend.replace_job(altered, dry_run=dry_run))

    return retry_overtaken(attempt)


def retry_overtaken(attempt: Callable[[], T]) -> T:
    """
    Return what ``attempt`` does, which reads a job and writes it, or only tries to.

    It is called again where another writer came between: the operator writes each job, above all a new one.
    """
    for _ in range(ATTEMPTS - 1):
        with suppress(Conflict):
            return attempt()
    return attempt()


def insist_on_living(job: JobView, name: str) -> None:
    """Refuse to change a job that has ended or belongs to another user."""
    if job.owner:
        raise BackendError(
            f"{name} belongs to {job.owner}; only {job.owner} and root may see more than dljob get"
            " shows, or change it"
        )
    if job.is_final:
        remedy = "submit it under another name to train it again"
        raise BackendError(f"{name} is {job.phase} already; {remedy}")


def suspend_job(backend: Backend, name: str, *, suspended: bool) -> Change:

    def alter(document: Json) -> Json:
        if JobView.of(document).is_suspended is suspended:
            return document
        return {**document, "spec": {**document["spec"], "suspend": suspended}}

    return change_job(backend, name, alter=alter)


def cancel_job(backend: Backend, name: str, *, keeping: Keeping = Keeping.USUAL) -> str:
    """Cancel a job; return the result as words, with the fate of its checkpoints if the place knows it."""
    fate = backend.delete_job(name, checkpoints=keeping).get("checkpoints")
    if not fate:
        return "cancelled"
    what = f"are kept in {fate['path']}" if fate["kept"] else "are removed"
    return f"cancelled; its checkpoints {what}"


def describe_changes(before: Json, after: Json) -> list[str]:
    """List the fields in which two documents of a job differ: ``spec.priority 0 -> 5``."""
    from dljob.core.documents import jobfile  # noqa: PLC0415 - takes longer to load than to suspend a job

    old, new = (jobfile.parse(each, require_template=True) for each in (before, after))
    told = [
        f"{each.path} {_shown(each.old)} -> {_shown(each.new)}"
        for each in jobfile.spec_differences(old, new)
        if each.path.removeprefix("spec.gpus.").partition("[")[0] not in COUNTS
    ]
    if old.gpus.options != new.gpus.options:
        counts = [in_ranges(each.gpus.options) for each in (old, new)]
        told.insert(0, f"spec.gpus {' -> '.join(counts)}")
    return [*told, "metadata.labels"] if old.labels != new.labels else told


def _shown(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"
