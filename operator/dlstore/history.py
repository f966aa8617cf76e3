"""
The history: the decisions about jobs with their reasons, and their outcomes. No decision depends on it.

Each entry is a row that :mod:`dlstore.tables` turns into a record, and that a store keeps
(:mod:`dlstore.sqlite.store`, :mod:`dlstore.mongo.store`).
"""

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
    Something that was decided about a job, or happened to it.

    An entry that is recorded again under its ``id`` takes the place of the former one: so what a
    reshape has cost is added when it is known.
    """

    job: JobId
    at: float
    """In seconds since the epoch."""
    kind: str
    """Of a decision ``start``, ``reshape``, ``move``, ``stop`` or ``wait``; else what happened."""
    sentence: str = ""
    """Why, for people."""
    cause: str = ""
    """Why, for programs: a :class:`~dlcore.model.CauseCode` for a decision."""
    for_job: JobId | None = None
    """The other job that the cause names."""
    old: Placement | None = None
    new: Placement | None = None
    epoch: int = 0
    generation: int = 0
    place: int = 0
    """Its place among the entries of the same instant."""
    cost_seconds: float | None = None
    """For how long the job did not train because of it, when that is known."""
    warning: bool = False
    """Whether people were warned of it."""
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
        """By what entries are ordered: by time, then as they were decided."""
        return self.at, self.place, self.id


def _new_placement(step: Step) -> Placement | None:
    if isinstance(step, Wait | Stop):
        return None
    return step.placement if isinstance(step, Start) else step.new
