"""
What the store keeps of the record of what happened (:mod:`dlcore.recording`), besides the history.

The history has the decisions and what became of them; a timeline has the rest: submissions, GPUs that jobs
were given, phases of changes, progress, and GPUs in and out of service. Each row is one line of a record,
which a store does not look into.
"""

from dataclasses import dataclass

SAMPLE = "progress"
"""Rows of this kind come as long as a job trains, and have a bound of their own."""

PRUNE_EVERY = 500
"""A store may hold so many rows more than it keeps, because looking for the oldest ones takes time."""


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """One line of a record. A row that is added again under its id takes the place of the former one."""

    id: str
    at: float
    kind: str
    line: str


def prune_every(most: int) -> int:
    """Return after how many new rows of a kind that has this bound the oldest are removed."""
    return max(1, min(PRUNE_EVERY, most // 10))
