"""Whether the API server refuses every status at present, or only that of one job."""

from collections.abc import Iterable
from typing import Final

from dlcontrol.situation.ports import Fenced, NotKept, NotKeptAlone
from dlcore.model import JobId
from dlkube.client import (
    FIRST_OWN_ERROR,
    TOO_MANY,
    UNAUTHORIZED,
    Rejected,
    Unreachable,
)

OF_ONE: Final = ("request is too large", "failed calling webhook")
"""Failures that the API server reports as its own although one object alone causes them."""


def not_kept(job: JobId, error: Rejected | Unreachable) -> NotKept | NotKeptAlone:
    """Tell a server that can keep nothing at present from one that does not want to keep this."""
    if isinstance(error, Rejected) and _concerns_one(error):
        return NotKeptAlone({job: f"its status cannot be written: {error}"})
    return NotKept(f"the status of job {job} cannot be written: {error}")


def _concerns_one(error: Rejected) -> bool:
    if error.status >= FIRST_OWN_ERROR:
        return any(words in str(error) for words in OF_ONE)
    return error.status not in (UNAUTHORIZED, TOO_MANY)


def raise_worst(outcomes: Iterable[BaseException | None]) -> None:
    """
    Raise of several failures what counts most.

    That is that we no longer lead; and least what concerns some jobs alone, of all of which it tells.
    """
    errors = [each for each in outcomes if each is not None]
    alone: dict[JobId, str] = {}
    for error in sorted(errors, key=lambda error: not isinstance(error, Fenced)):
        if not isinstance(error, NotKeptAlone):
            raise error
        alone |= error.jobs
    if alone:
        raise NotKeptAlone(alone)
