"""Turns the reports of SideCars into observations for the profiles of types of jobs.

:meth:`SpeedSamples.hear` gets every state with the time of its arrival. SideCars report mere
progress late, but with the time since the latest iteration. So the time of the latest iteration is
known, and the begin of the first one follows from the speed. A speed is taken once for each sample
of an unchanged stretch, once the start has trained for as long as starts warm up: longer than any
warm-up that was seen lately. If a start warms up for longer still, what it showed before is
forgotten, and the time that the warm-up lost is a part of the cost of the start.
After a live change a speed is measured again, and no warm-up is expected. Its pause is a cost of its own.
A trial of the checkpoint, in which many trainings stand still, is no part of a sample.
The speed is the SideCar's own figure, because the SideCar times every step when it happens,
while reports arrive late on a busy machine or network. Each cost is measured once for each change,
and the time to save by the trial of the checkpoint too, before the first change.
Outliers do no harm: a profile is the median of the latest few observations
(:mod:`dljob.core.profiles`).
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from dljob.core.model import Job, JobId, NodeName, Placement
from dljob.core.profiles import (
    AccuracyPoint,
    AccuracySeen,
    CostSeen,
    CostTerm,
    JobType,
    Observation,
    SpeedSeen,
)
from dljob_wire.messages import Phase, Saving, State
from dljob_wire.speed_window import CLEARLY_FASTER

SAMPLE_S = 10.0
"""The shortest time over which a speed is measured."""

FEWEST_STEPS = 4
"""The fewest iterations over which a speed is measured."""

USUAL_SAMPLES = 3
"""A start is expected to warm up for this many samples, until warm-ups were seen."""

MOST_WARM_UPS = 9
"""The number of warm-ups that are remembered; a start is expected to warm up as long as the longest."""

LONGEST_WARM_UP_S = 300.0
"""A start that becomes faster later does so for another reason."""

FIRST_STEP_S = 120.0
"""A start without news counts as training after this time, because some trainings report rarely."""

MOST_POINTS = 512
"""The number of points that are kept of a job's own learning curve."""

MOST_CHANGES = 1000
"""The most changes of a job that are remembered."""


class Allocation(Protocol):
    """The part of a job's record that says which reports are about its present start."""

    @property
    def placement(self) -> Placement | None: ...
    @property
    def generation(self) -> int:
        """The number of the decision that gave it its GPUs."""

    @property
    def run_generation(self) -> int:
        """The number by which its SideCars know the start of its processes."""

    @property
    def batch_size(self) -> int | None: ...


class Allocated(Protocol):
    """A job with its record, as controllers and the simulator keep them."""

    @property
    def job(self) -> Job: ...
    @property
    def status(self) -> Allocation: ...


class Resumption(NamedTuple):
    """A job has taken its first step after a start of its processes."""

    generation: int
    """The generation of the status: which decision has taken effect."""
    lost_seconds: float
    """How long the job did not train: saving, stopping, starting, and the first step. In a new pod,
    the time before its start is left out."""
    at: float
    """When the step was taken."""


class LiveChange(NamedTuple):
    """A change of GPUs through which processes of a job lived, as the SideCar of its first node reports it."""

    generation: int
    """The number by which SideCars know the members to which it has led."""
    pause_seconds: float
    """From the last step before to the first step after."""
    joins: bool
    """True if newcomers joined the processes that stayed."""


class _Sample(NamedTuple):
    """The number of iterations done at one time."""

    at: float
    iteration: int


@dataclass(slots=True)
class _Stretch:
    """The time from a start of a job's processes, or from a live change, to the next of these."""

    generation: int
    ordered_at: float
    """When the controller sent the command to start."""
    found_iteration: int
    """The number of iterations known to be done before this start."""
    first: _Sample | None = None
    """The first report of this start."""
    is_timed: bool = False
    """The duration of the start is known, or will never be."""
    sample: _Sample = _Sample(0.0, 0)
    speed: float = 0.0
    """The speed of the latest sample."""
    told: int = 0
    """The number of speeds that were learnt from this start."""
    took: float | None = None
    """How long it took to its first iteration, or at first to the end of that, once that is known."""
    tried: int = 0
    """The latest trial of its checkpoint after which it has gone on."""
    paused: float = 0.0
    """How long it has stood still in such trials."""
    live: LiveChange | None = None
    """The live change with which it began; ``None``: its processes started then."""

    def began_at(self, latest: _Sample) -> float | None:
        """Return when the first iteration began, once the speed is known."""
        if self.first is None or latest.iteration <= self.first.iteration:
            return None
        seconds_each = self.trained(latest) / (latest.iteration - self.first.iteration)
        # After a crash the training may continue from further back, so count only the first
        # reported one.
        before = max(1, self.first.iteration - self.found_iteration)
        if before * seconds_each > 2.0 * (self.first.at - self.ordered_at):
            # The time was too short for these iterations: the start found a checkpoint unknown to
            # us.
            before = 1
        return max(self.ordered_at, self.first.at - before * seconds_each)

    def trained(self, latest: _Sample) -> float:
        """Return how long it has trained since its first report; a trial is no part of that."""
        since = self.first.at if self.first is not None else latest.at
        return max(0.0, latest.at - since - self.paused)

    def follow_trial(self, state: State, latest: _Sample) -> bool:
        """Return True from a trial to the first iteration after it; the next sample begins there."""
        trial = state.trial
        if trial is None or trial.number <= self.tried:
            return False
        if trial.went_on:
            self.tried, self.sample = trial.number, latest
            self.paused += trial.seconds
        return True


@dataclass(slots=True)
class _Pupil:
    """The state kept about a job between two reports."""

    stretch: _Stretch | None = None
    iteration: int = 0
    """The latest report."""
    points: list[AccuracyPoint] = field(default_factory=list)
    tried: int = 0
    """The latest trial of its checkpoint that was seen to be confirmed."""
    changes_seen: set[tuple[str, int]] = field(default_factory=set)


class Findings(NamedTuple):
    """The results from one state."""

    observations: tuple[Observation, ...] = ()
    resumed: Resumption | None = None
    """Set once a start: the job trains again."""


class SpeedSamples:
    """Measures speeds and costs; one for the life of a controller."""

    def __init__(self, *, sample_seconds: float = SAMPLE_S) -> None:
        self._sample_seconds = sample_seconds
        self._warm_ups: deque[float] = deque(maxlen=MOST_WARM_UPS)
        """After which time the latest warm-ups were seen to be over."""
        self._pupils: dict[JobId, _Pupil] = {}

    def points(self, job: JobId) -> tuple[AccuracyPoint, ...]:
        """The job's own learning curve, so far."""
        pupil = self._pupils.get(job)
        return tuple(pupil.points) if pupil is not None else ()

    def forget(self, job: JobId) -> None:
        """Forget a job that is over."""
        self._pupils.pop(job, None)

    def hear(
        self,
        entry: Allocated,
        node: NodeName,
        state: State,
        now: float,
        *,
        live: LiveChange | None = None,
    ) -> Findings:
        """Learn from a state of one of the job's SideCars; ``live`` is its latest live change."""
        pupil = self._pupils.setdefault(entry.job.id, _Pupil())
        observations = [*_costs(pupil, entry, state=state)]
        resumed = None
        status = entry.status
        # The SideCar of the first node speaks for all.
        is_first = status.placement is not None and node == status.placement.nodes[0]
        stretch = None
        if is_first and state.held_generation == status.run_generation:
            observations += _accuracy(pupil, entry, state=state)
            before = pupil.stretch
            stretch = _stretch_of(pupil, state, now=now, live=live)
            change = stretch.live if stretch is not before else None
            # Processes that only go back to what they were do not pause.
            if change is not None and change.pause_seconds > 0.0:
                gpus = status.placement.gpus if status.placement is not None else 0
                term = CostTerm.LIVE_GROW if change.joins else CostTerm.LIVE_SHRINK
                observations.append(CostSeen(term, change.pause_seconds, gpus))
        if stretch is not None and state.phase is Phase.RUNNING:
            is_news = stretch.first is None and (stretch.live is not None or not stretch.is_timed)
            observations += self._progress(stretch, entry, state=state, now=now)
            if is_news and stretch.first is not None:
                # A start that is first heard of after a step seems to be later than the step.
                lost, cost = max(0.0, stretch.first.at - stretch.ordered_at), state.change
                if stretch.live is not None:
                    lost = stretch.live.pause_seconds
                elif cost is not None and cost.generation == state.held_generation:
                    lost += cost.checkpoint_seconds + cost.stop_seconds
                resumed = Resumption(status.generation, lost, stretch.first.at)
        pupil.iteration = max(pupil.iteration, state.progress.iteration)
        return Findings(tuple(observations), resumed)

    def _progress(
        self, stretch: _Stretch, entry: Allocated, *, state: State, now: float
    ) -> Iterator[Observation]:
        placement = entry.status.placement
        assert placement is not None
        latest = _Sample(now - state.progress.idle_seconds, state.progress.iteration)
        if stretch.first is None:
            if state.progress.begun:
                stretch.first = stretch.sample = latest
                if not stretch.is_timed and latest.at > stretch.ordered_at:
                    # With its first step, until the speed says how long that took: a change may come before.
                    stretch.took = latest.at - stretch.ordered_at
                    yield CostSeen(CostTerm.PROCESS_INITIALIZATION, stretch.took, placement.gpus)
            return
        is_in_trial = stretch.follow_trial(state, latest)
        began_at = stretch.began_at(latest)
        if not stretch.is_timed and began_at is not None:
            stretch.is_timed = True
            replaces = 0 if stretch.took is None else 1
            stretch.took = began_at - stretch.ordered_at
            start = CostTerm.PROCESS_INITIALIZATION
            yield CostSeen(start, stretch.took, placement.gpus, replaces=replaces)
        elapsed, done = latest.at - stretch.sample.at, latest.iteration - stretch.sample.iteration
        if is_in_trial or elapsed < self._sample_seconds or done < FEWEST_STEPS:
            return
        speed = state.progress.iterations_per_second or done / elapsed
        trained, was_warming_up = stretch.trained(latest), False
        is_first = not stretch.speed
        # A warm-up that was over within the first sample shows in its mean.
        if CLEARLY_FASTER * (done / elapsed if is_first else stretch.speed) < speed:
            was_warming_up = True
            self._warm_ups.append(min(trained, LONGEST_WARM_UP_S))
            if stretch.took is not None:
                lost = trained - (latest.iteration - stretch.first.iteration) / speed
                start = CostTerm.PROCESS_INITIALIZATION
                yield CostSeen(start, stretch.took + max(0.0, lost), placement.gpus, replaces=1)
        stretch.sample, stretch.speed = latest, speed
        if is_first and was_warming_up:
            return  # Its speed may be that of the warm-up in part.
        warms_up = max(self._warm_ups, default=USUAL_SAMPLES * self._sample_seconds)
        if stretch.live is not None or trained >= warms_up:
            replaces = stretch.told if was_warming_up else 0
            stretch.told = 1 if was_warming_up else stretch.told + 1
            yield SpeedSeen(placement.shape, speed, elapsed, now, replaces=replaces)


def sort_by_type(
    entry: Allocated, observations: Sequence[Observation]
) -> Mapping[JobType, Sequence[Observation]]:
    """Return the observations by type of job.

    A job that trains with another batch size than its own (ONES) counts its progress in iterations
    of its own size. The speed belongs to the type with the current size, in iterations of that
    size.
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


def _stretch_of(pupil: _Pupil, state: State, *, now: float, live: LiveChange | None) -> _Stretch:
    """Return the present start of the processes, or live change; create it at its first report."""
    known = pupil.stretch
    if known is not None and known.generation == state.held_generation:
        return known
    if known is not None and live is not None and live.generation == state.held_generation:
        pupil.stretch = _Stretch(
            live.generation,
            ordered_at=now - live.pause_seconds,
            found_iteration=max(pupil.iteration, state.progress.iteration),
            is_timed=True,
            live=live,
        )
        return pupil.stretch
    has_started = state.phase is Phase.RUNNING
    took = state.change.start_seconds if has_started and state.change is not None else 0.0
    pupil.stretch = stretch = _Stretch(
        state.held_generation,
        ordered_at=now - took,
        found_iteration=max(pupil.iteration, state.progress.iteration),
        # A former controller has seen the start of a job that trains when this one first hears of it. A later start
        # is this controller's, also if the reports of its first seconds were missed.
        is_timed=known is None and has_started and state.progress.iterations_per_second > 0,
    )
    return stretch


def _accuracy(pupil: _Pupil, entry: Allocated, *, state: State) -> Iterator[Observation]:
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


def _costs(pupil: _Pupil, entry: Allocated, *, state: State) -> Iterator[Observation]:
    trial, placement = state.trial, entry.status.placement
    gpus = placement.gpus if placement is not None else 0
    if trial is not None and trial.number > pupil.tried and trial.saving is Saving.CONFIRMED:
        pupil.tried = trial.number
        yield CostSeen(CostTerm.CHECKPOINT, trial.seconds, gpus)
    change = state.change
    if change is None or (state.incarnation, change.generation) in pupil.changes_seen:
        return
    if state.phase not in (Phase.RUNNING, Phase.STOPPED):
        return  # It is under way yet.
    if len(pupil.changes_seen) >= MOST_CHANGES:
        pupil.changes_seen.clear()
    pupil.changes_seen.add((state.incarnation, change.generation))
    if change.saving is Saving.CONFIRMED:
        yield CostSeen(CostTerm.CHECKPOINT, change.checkpoint_seconds, gpus)
    if change.stop_seconds > 0:
        yield CostSeen(CostTerm.PROCESS_TERMINATION, change.stop_seconds, gpus)
