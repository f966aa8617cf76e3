"""
The timeline: the part of the record (:mod:`dlcore.recording`) that the history does not have.

The history has the decisions and their outcomes; a timeline has the rest: submissions, GPUs that jobs
were given, phases of changes, progress, and GPUs in and out of service. Each row is one line of a record,
which a store does not look into.
"""

from dataclasses import dataclass

SAMPLE = "progress"
"""Rows of this kind come as long as a job trains, and have a bound of their own."""

PRUNE_EVERY = 500
"""A store may exceed its bounds by this number of rows, because looking for the oldest ones takes time."""


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
