"""Distinguishes errors of the API server that concern one status from those that concern all."""

from collections.abc import Iterable
from typing import Final

from dljob.control.situation.ports import Fenced, NotKept, NotKeptAlone
from dljob.core.model import JobId
from dljob.kube.client import FIRST_OWN_ERROR, TOO_MANY, UNAUTHORIZED, Rejected, Unreachable

OF_ONE: Final = ("request is too large", "failed calling webhook")
"""Words of server errors that one object alone causes."""


def not_kept(job: JobId, error: Rejected | Unreachable) -> NotKept | NotKeptAlone:
    """Convert an error about the status of a job: NotKeptAlone if it concerns that job only, else NotKept."""
    if isinstance(error, Rejected) and _concerns_one(error):
        return NotKeptAlone({job: f"its status cannot be written: {error}"})
    return NotKept(f"the status of job {job} cannot be written: {error}")


def _concerns_one(error: Rejected) -> bool:
    if error.status >= FIRST_OWN_ERROR:
        return any(words in str(error) for words in OF_ONE)
    return error.status not in (UNAUTHORIZED, TOO_MANY)


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
