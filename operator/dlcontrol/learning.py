"""
What the words of SideCars teach about types of jobs: observations for profiles.

Fed with every state that is heard, at the time it is heard. A speed is measured over a stretch in
which nothing changed, from its second sample on, because caches and clocks are cold after a start.
A cost is measured once for each change. Everything is robust further on: a profile is the median
of the latest few observations (:mod:`dlcore.profiles`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from dlcontrol.platforms import Entry, PodKey
from dlcore.model import JobId
from dlcore.profiles import (
    AccuracyPoint,
    AccuracySeen,
    CostSeen,
    CostTerm,
    Observation,
    SpeedSeen,
)
from dlwire.messages import Change, Phase, Saving, State

SAMPLE_S = 10.0
"""A speed is measured over so long at least."""

FEWEST_STEPS = 10
"""And over so many iterations."""

MOST_POINTS = 512
"""So many points of a job's own learning curve are kept."""


class Resumption(NamedTuple):
    """A job has taken its first step after a start of its processes."""

    generation: int
    """Of its status: which decision has come true."""
    lost_seconds: float
    """For how long it did not train: saving, stopping, starting, and the first step."""


@dataclass(slots=True)
class _Stretch:
    """One start of a job's processes."""

    generation: int
    ordered_at: float
    """When it was heard that they were being started."""
    found_iteration: int
    """What was reported last of the start before."""
    first_at: float | None = None
    """When the first iteration of this start was reported."""
    sample_at: float = 0.0
    sample_iteration: int = 0
    samples: int = 0


@dataclass(slots=True)
class _Pupil:
    """What is remembered of a job between two states."""

    stretch: _Stretch | None = None
    points: list[AccuracyPoint] = field(default_factory=list)
    changes_seen: set[tuple[str, int]] = field(default_factory=set)


class Lesson(NamedTuple):
    """What one state has taught."""

    observations: tuple[Observation, ...] = ()
    resumed: Resumption | None = None
    """Set once a start: the job trains again."""


class Lessons:
    """One for the life of a controller."""

    def __init__(self, *, sample_seconds: float = SAMPLE_S) -> None:
        self._sample_seconds = sample_seconds
        self._pupils: dict[JobId, _Pupil] = {}

    def points(self, job: JobId) -> tuple[AccuracyPoint, ...]:
        """The job's own learning curve, so far."""
        pupil = self._pupils.get(job)
        return tuple(pupil.points) if pupil is not None else ()

    def forget(self, job: JobId) -> None:
        """The job is over."""
        self._pupils.pop(job, None)

    def hear(self, entry: Entry, key: PodKey, state: State, now: float) -> Lesson:
        """Learn from a state of one of the job's SideCars."""
        pupil = self._pupils.setdefault(key.job, _Pupil())
        had_stepped = pupil.stretch is not None and pupil.stretch.first_at is not None
        before = pupil.stretch
        observations = (
            *_costs(pupil, entry, state),
            *self._progress(pupil, entry, key, state, now),
        )
        stretch = pupil.stretch
        if stretch is None or stretch.first_at is None or (had_stepped and stretch is before):
            return Lesson(observations)
        lost = stretch.first_at - stretch.ordered_at + _stopping_seconds(state)
        return Lesson(observations, Resumption(entry.status.generation, lost))

    def _progress(
        self, pupil: _Pupil, entry: Entry, key: PodKey, state: State, now: float
    ) -> Iterator[Observation]:
        placement = entry.status.placement
        if placement is None or key.node != placement.nodes[0]:
            return  # The leader speaks for all.
        if state.held_generation != entry.status.run_generation:
            return
        yield from _accuracy(pupil, entry, state)
        stretch = pupil.stretch
        if stretch is None or stretch.generation != state.held_generation:
            found = state.progress.iteration if state.phase is not Phase.RUNNING else 0
            stretch = pupil.stretch = _Stretch(state.held_generation, now, found)
        if state.phase is not Phase.RUNNING:
            return
        yield from self._speed(stretch, entry, state.progress.iteration, now)

    def _speed(
        self, stretch: _Stretch, entry: Entry, iteration: int, now: float
    ) -> Iterator[Observation]:
        placement = entry.status.placement
        assert placement is not None
        if stretch.first_at is None:
            if iteration != stretch.found_iteration:
                stretch.first_at = stretch.sample_at = now
                stretch.sample_iteration = iteration
                seconds = now - stretch.ordered_at
                yield CostSeen(CostTerm.PROCESS_INITIALIZATION, seconds, placement.gpus)
            return
        elapsed, done = now - stretch.sample_at, iteration - stretch.sample_iteration
        if elapsed < self._sample_seconds or done < FEWEST_STEPS:
            return
        yield SpeedSeen(
            placement.shape, done / elapsed, elapsed, now, warming_up=stretch.samples == 0
        )
        stretch.samples += 1
        stretch.sample_at, stretch.sample_iteration = now, iteration


def _accuracy(pupil: _Pupil, entry: Entry, state: State) -> Iterator[Observation]:
    target = entry.job.training.target
    metric = state.progress.metrics.get(target.metric) if target is not None else None
    iteration = float(state.progress.iteration)
    if metric is None or (pupil.points and pupil.points[-1].iteration >= iteration):
        return
    if pupil.points and pupil.points[-1].value == metric:
        return  # It is evaluated now and then, and repeated in between.
    pupil.points.append(AccuracyPoint(iteration, metric))
    if len(pupil.points) > MOST_POINTS:
        del pupil.points[1::2]
    yield AccuracySeen(iteration, metric)


def _costs(pupil: _Pupil, entry: Entry, state: State) -> Iterator[Observation]:
    change = state.change
    if change is None or (state.incarnation, change.generation) in pupil.changes_seen:
        return
    if state.phase not in (Phase.RUNNING, Phase.STOPPED):
        return  # It is under way yet.
    pupil.changes_seen.add((state.incarnation, change.generation))
    yield from _costs_of(change, entry)


def _stopping_seconds(state: State) -> float:
    """How long it took to end the start before this one, where there was one."""
    change = state.change
    if change is None or change.generation != state.held_generation:
        return 0.0
    return change.checkpoint_seconds + change.stop_seconds


def _costs_of(change: Change, entry: Entry) -> Iterator[Observation]:
    gpus = entry.status.placement.gpus if entry.status.placement is not None else 0
    if change.saving is Saving.CONFIRMED:
        yield CostSeen(CostTerm.CHECKPOINT, change.checkpoint_seconds, gpus)
    if change.stop_seconds > 0:
        yield CostSeen(CostTerm.PROCESS_TERMINATION, change.stop_seconds, gpus)
