"""
Turns the reports of SideCars into observations for the profiles of types of jobs.

It gets every state, at the time when the controller hears it. SideCars report mere progress late, but with
the time since the latest iteration. So the time of the latest iteration is known, and the start of the first
one follows from their speed. A speed is taken once for each sample of a stretch in
which nothing changed, from its second one on, because caches and clocks are cold after a start. It
is the SideCar's own figure: that has seen every step when it came, where here words come late when
the machine or the network is busy. A cost is measured once for each change. Everything is robust
further on: a profile is the median of the latest few observations (:mod:`dlcore.profiles`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dlcontrol.situation.ports import Entry, PodKey
from dlcontrol.situation.rules import Resumption
from dlcore.model import JobId
from dlcore.profiles import (
    AccuracyPoint,
    AccuracySeen,
    CostSeen,
    CostTerm,
    JobType,
    Observation,
    SpeedSeen,
)
from dlwire.messages import Change, Phase, Saving, State

SAMPLE_S = 10.0
"""The shortest time over which a speed is measured."""

FEWEST_STEPS = 10
"""The fewest iterations over which a speed is measured."""

MOST_POINTS = 512
"""The number of points that are kept of a job's own learning curve."""


MOST_CHANGES = 1000
"""How many changes of a job are remembered at most."""


class _Sample(NamedTuple):
    """The number of iterations that were done at a time."""

    at: float
    iteration: int


@dataclass(slots=True)
class _Stretch:
    """One start of a job's processes."""

    generation: int
    ordered_at: float
    """When the controller sent the command to start."""
    found_iteration: int
    """How many iterations were done before, as far as is known."""
    first: _Sample | None = None
    """The first report of this start."""
    is_timed: bool = False
    """The duration of the start is known, or will never be."""
    sample: _Sample = _Sample(0.0, 0)
    samples: int = 0

    def began_at(self, latest: _Sample) -> float | None:
        """When its first iteration began, once it is known how fast they come."""
        if self.first is None or latest.iteration <= self.first.iteration:
            return None
        seconds_each = (latest.at - self.first.at) / (latest.iteration - self.first.iteration)
        # After a crash it may go on from further back: then the first reported iteration was the first one.
        before = max(1, self.first.iteration - self.found_iteration)
        if before * seconds_each > 2.0 * (self.first.at - self.ordered_at):
            # The time was too short for them: it has found a checkpoint that we did not know of.
            before = 1
        return max(self.ordered_at, self.first.at - before * seconds_each)


@dataclass(slots=True)
class _Pupil:
    """The memory about a job between two states."""

    stretch: _Stretch | None = None
    iteration: int = 0
    """The latest report."""
    points: list[AccuracyPoint] = field(default_factory=list)
    changes_seen: set[tuple[str, int]] = field(default_factory=set)


class Findings(NamedTuple):
    """The results from one state."""

    observations: tuple[Observation, ...] = ()
    resumed: Resumption | None = None
    """Set once a start: the job trains again."""


class SpeedSamples:
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

    def hear(self, entry: Entry, key: PodKey, state: State, now: float) -> Findings:
        """Learn from a state of one of the job's SideCars."""
        pupil = self._pupils.setdefault(key.job, _Pupil())
        observations = [*_costs(pupil, entry, state=state)]
        resumed = None
        if _speaks_for_all(entry, key, state=state):
            observations += _accuracy(pupil, entry, state=state)
            stretch = _stretch_of(pupil, state, now=now)
            if state.phase is Phase.RUNNING:
                is_news = stretch.first is None and not stretch.is_timed
                observations += self._progress(stretch, entry, state=state, now=now)
                if is_news and stretch.first is not None:
                    lost = stretch.first.at - stretch.ordered_at + _stopping_seconds(state)
                    resumed = Resumption(entry.status.generation, lost, stretch.first.at)
        pupil.iteration = max(pupil.iteration, state.progress.iteration)
        return Findings(tuple(observations), resumed)

    def _progress(
        self, stretch: _Stretch, entry: Entry, *, state: State, now: float
    ) -> Iterator[Observation]:
        placement = entry.status.placement
        assert placement is not None
        latest = _Sample(now - state.progress.idle_seconds, state.progress.iteration)
        if stretch.first is None:
            if state.progress.begun:
                stretch.first = stretch.sample = latest
            return
        began_at = stretch.began_at(latest)
        if not stretch.is_timed and began_at is not None:
            stretch.is_timed = True
            seconds = began_at - stretch.ordered_at
            yield CostSeen(CostTerm.PROCESS_INITIALIZATION, seconds, placement.gpus)
        elapsed, done = latest.at - stretch.sample.at, latest.iteration - stretch.sample.iteration
        if elapsed < self._sample_seconds or done < FEWEST_STEPS:
            return
        speed = state.progress.iterations_per_second or done / elapsed
        yield SpeedSeen(placement.shape, speed, elapsed, now, warming_up=stretch.samples == 0)
        stretch.samples += 1
        stretch.sample = latest


def sort_by_type(
    entry: Entry, observations: Sequence[Observation]
) -> Mapping[JobType, Sequence[Observation]]:
    """
    Say about which type of job each observation is.

    A job that trains another batch than its own (ONES) counts its progress in iterations of its
    own batch. The speed is one of the type with the batch that it has, in iterations of that.
    """
    kind, own = entry.job.type, entry.job.training.batch_size
    batch = entry.status.batch_size or own
    if batch == own or not own:
        return {kind: observations}
    ratio = own / batch
    speeds = [
        each._replace(iterations_per_s=each.iterations_per_s * ratio)
        for each in observations
        if isinstance(each, SpeedSeen)
    ]
    others = [each for each in observations if not isinstance(each, SpeedSeen)]
    return {kind._replace(batch_size=batch): speeds, kind: others}


def _speaks_for_all(entry: Entry, key: PodKey, *, state: State) -> bool:
    placement = entry.status.placement
    if placement is None or key.node != placement.nodes[0]:
        return False
    return state.held_generation == entry.status.run_generation


def _stretch_of(pupil: _Pupil, state: State, *, now: float) -> _Stretch:
    """The present start of the processes; a new one when it is first heard of."""
    stretch = pupil.stretch
    if stretch is None or stretch.generation != state.held_generation:
        has_started = state.phase is Phase.RUNNING
        took = state.change.start_seconds if has_started and state.change is not None else 0.0
        stretch = pupil.stretch = _Stretch(
            state.held_generation,
            ordered_at=now - took,
            found_iteration=max(pupil.iteration, state.progress.iteration),
            # The job trains already, and the former controller has seen its start.
            is_timed=has_started and state.progress.iterations_per_second > 0,
        )
    return stretch


def _accuracy(pupil: _Pupil, entry: Entry, *, state: State) -> Iterator[Observation]:
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


def _costs(pupil: _Pupil, entry: Entry, *, state: State) -> Iterator[Observation]:
    change = state.change
    if change is None or (state.incarnation, change.generation) in pupil.changes_seen:
        return
    if state.phase not in (Phase.RUNNING, Phase.STOPPED):
        return  # It is under way yet.
    if len(pupil.changes_seen) >= MOST_CHANGES:
        pupil.changes_seen.clear()
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
