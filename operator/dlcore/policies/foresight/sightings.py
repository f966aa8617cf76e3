"""
The measured speeds of jobs, where they differ from the expected ones.

A profile may be wrong, and the policy sees how fast each job trains only in the shape that it has. It keeps each
measured speed for the type of job, so that a disappointing shape is not tried again by
each job, and by the same job again and again. A shape that was never seen is expected to be wrong in
the same direction as those that were, but by less.

The speed that a job shows right after a start is not noted, because a few steps hold its warming up: for a
second it may be a quarter too high, and what is noted stays.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from dlcore.contract import View
from dlcore.model import Job, JobId, JobState
from dlcore.profiles import JobType
from dlwire.messages import Shape

NOTICED = 0.02
"""A deviation below this share is taken for noise, because nothing would be gained by heeding it."""

SETTLING_S = 30.0
"""The time for which a job has to train in a shape before its speed is noted."""

COMMON_PART = 0.5
"""The exponent with which the mean deviation of the shapes seen is expected of the others."""

MOST_TYPES = 256
"""The number of types of job, the latest ones, whose speeds are kept."""

Speeds = Mapping[Shape, float]

_NONE: Speeds = {}


class Sighting(NamedTuple):
    """In which shape a job was seen last, and how many times slower than its type it trained."""

    shape: Shape
    slowness: float
    since: float | None = None
    """Since when it trains in this shape without a pause; ``None`` when its speed there is noted."""


class Sightings(NamedTuple):
    """All that was seen."""

    by_type: Mapping[JobType, Speeds] = {}
    by_job: Mapping[JobId, Sighting] = {}

    def speeds_of(self, kind: JobType) -> Speeds:
        """The measured speeds of a type: the same object for as long as nothing is new."""
        return self.by_type.get(kind, _NONE)

    def slowness_of(self, state: JobState) -> float:
        """Return how many times slower than its type the job trains, also while it is being changed."""
        seen = self.by_job.get(state.id)
        return seen.slowness if seen is not None else 1.0


def expect(view: View, job: Job, *, shape: Shape, seen: Speeds) -> float:
    """The speed of a job in a shape, by its profile and by what was seen of its type."""
    known = seen.get(shape)
    if known is not None:
        return known
    speed = view.predictor.speed(job, shape)
    if not seen or speed <= 0.0:
        return speed
    logs = [
        math.log(value / believed)
        for other, value in seen.items()
        if (believed := view.predictor.speed(job, other)) > 0.0
    ]
    return speed * math.exp(COMMON_PART * sum(logs) / len(logs)) if logs else speed


def update(sightings: Sightings, view: View) -> Sightings:
    """Add what is seen now. Of each shape in which a job trains its speed is noted once."""
    by_type = dict(sightings.by_type)
    by_job: dict[JobId, Sighting] = {}
    for state in view.running:
        before = sightings.by_job.get(state.id)
        shape = state.placement.shape if state.placement is not None else None
        if shape is None or state.speed <= 0.0 or state.adjusting:
            if before is not None:
                by_job[state.id] = _pause(before, view.now)
        elif before is None or before.shape != shape:
            slowness = before.slowness if before is not None else 1.0
            by_job[state.id] = Sighting(shape, slowness, view.now)
        elif before.since is None or view.now - before.since < SETTLING_S:
            by_job[state.id] = before
        else:
            by_job[state.id] = _note(by_type, state, shape=shape, view=view)
    return Sightings(_keep_latest(by_type.items()), by_job)


def _pause(before: Sighting, now: float) -> Sighting:
    """The sighting of a job that does not train now; it has to settle again."""
    return before if before.since is None else before._replace(since=now)


def _note(by_type: dict[JobType, Speeds], state: JobState, *, shape: Shape, view: View) -> Sighting:
    kind = state.job.type
    seen = by_type.get(kind, _NONE)
    expected = expect(view, state.job, shape=shape, seen=seen)
    if expected <= 0.0:
        return Sighting(shape, 1.0)
    if abs(state.speed / expected - 1.0) <= NOTICED:
        return Sighting(shape, expected / state.speed)
    # Of two jobs of a type that differ, neither alone speaks for it.
    speed = math.sqrt(expected * state.speed) if shape in seen else state.speed
    by_type.pop(kind, None)
    by_type[kind] = {**seen, shape: speed}
    return Sighting(shape, speed / state.speed)


def _keep_latest(entries: Iterable[tuple[JobType, Speeds]]) -> Mapping[JobType, Speeds]:
    return dict(list(entries)[-MOST_TYPES:])
