"""
How long each phase of a change of GPUs took, from the lines of a record.

Where a job has several nodes, a phase is reached when the last of them reaches it; a job stands still
from the moment at which the first of them saves.
"""

from collections.abc import Iterator
from typing import NamedTuple

from dljob.core.recording.record import Ended, Given, Phase, Record, Stage


class Stretch(NamedTuple):
    """The time of a job in one phase of a change."""

    job: str
    stage: Stage
    begin: float
    end: float
    generation: int


def list_stretches(record: Record) -> tuple[Stretch, ...]:
    """List the phases of all changes, job by job in the order of time."""
    marks: dict[str, list[tuple[float, Stage | None, int]]] = {}
    for (job, generation, stage), at in _find_times(record).items():
        marks.setdefault(job, []).append((at, stage, generation))
    for line in record.lines:
        # A job that has no GPUs waits; that is no part of a change.
        if isinstance(line, Ended) or (isinstance(line, Given) and line.placement is None):
            marks.setdefault(line.job, []).append((line.at, None, 0))
    return tuple(
        stretch
        for job, found in marks.items()
        for stretch in _iter_stretches(job, found, record.header.until)
    )


def _find_times(record: Record) -> dict[tuple[str, int, Stage], float]:
    times: dict[tuple[str, int, Stage], float] = {}
    for line in record.lines:
        if isinstance(line, Phase):
            key = line.job, line.generation, line.phase
            # The first node that saves makes all of them stand still; else the last one counts.
            if line.phase is not Stage.SAVING or key not in times:
                times[key] = line.at
    return times


def _iter_stretches(
    job: str, marks: list[tuple[float, Stage | None, int]], until: float
) -> Iterator[Stretch]:
    order = [None, *Stage]
    marks.sort(key=lambda mark: (mark[0], order.index(mark[1])))
    ends = [at for at, _, _ in marks[1:]] + [until]
    has_gpus = True
    for (begin, stage, generation), end in zip(marks, ends, strict=True):
        if stage in (None, Stage.ASKED):
            has_gpus = stage is not None
        is_change = has_gpus or stage in (Stage.SAVING, Stage.SAVED)
        if stage is not None and stage is not Stage.FIRST_STEP and is_change and end > begin:
            yield Stretch(job, stage, begin, end, generation)
