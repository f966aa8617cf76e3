"""The history: decisions about jobs, their reasons and outcomes. No decision depends on it."""

from dataclasses import dataclass, field
from typing import Self
from uuid import uuid4

from dlcore.model import Cause, JobId, Placement
from dlcore.planning import Start, Step, Stop, Wait
from dlcore.recording.record import Expected


def _new_id() -> str:
    return uuid4().hex


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """
    A decision about a job, or something that happened to it.

    An entry replaces a recorded one with its ``id``: the cost of a reshape is added when it is known.
    """

    job: JobId
    at: float
    """In seconds since the epoch."""
    kind: str
    """For a decision ``start``, ``reshape``, ``move``, ``stop`` or ``wait``; otherwise what happened."""
    sentence: str = ""
    """The reason for people."""
    cause: str = ""
    """The reason for programs: a :class:`~dlcore.model.CauseCode` for a decision."""
    for_job: JobId | None = None
    """The other job in the cause."""
    old: Placement | None = None
    new: Placement | None = None
    epoch: int = 0
    generation: int = 0
    place: int = 0
    """The order of entries with the same time."""
    cost_seconds: float | None = None
    """How long the job did not train because of the change, if known."""
    warning: bool = False
    expected: Expected | None = None
    """The expectation of the decision for the job with its new GPUs."""
    id: str = field(default_factory=_new_id)

    @classmethod
    def of_step(
        cls,
        step: Step,
        *,
        at: float,
        sentence: str,
        epoch: int,
        generation: int,
        place: int,
        expected: Expected | None = None,
    ) -> Self:
        """Make the entry of a step of a plan."""
        cause: Cause = step.cause
        return cls(
            job=step.job,
            at=at,
            kind=type(step).__name__.lower(),
            sentence=sentence,
            cause=cause.code.value,
            for_job=cause.job,
            old=None if isinstance(step, Start | Wait) else step.old,
            new=_new_placement(step),
            epoch=epoch,
            generation=generation,
            place=place,
            expected=expected,
        )

    @property
    def when(self) -> tuple[float, int, str]:
        """The sort key of entries."""
        return self.at, self.place, self.id


def _new_placement(step: Step) -> Placement | None:
    if isinstance(step, Wait | Stop):
        return None
    return step.placement if isinstance(step, Start) else step.new
