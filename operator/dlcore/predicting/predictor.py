"""
What the future looks like for a job in a shape: its speed, its times, the cost of changing it.

Policies ask, through :attr:`dlcore.contract.View.predictor`; a :class:`Predictor` is
made for each decision from the snapshot. Speeds come from :mod:`dlcore.predicting.relating`; the terms
of the times are those of the SideCar paper, section III.C. All times are seconds from now.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from dlcore.model import Cluster, Job, JobState, Mechanism, Snapshot
from dlcore.predicting.interpolating import Estimate
from dlcore.predicting.relating import atlas_of, usual_growth
from dlcore.profiles import Costs, CostTerm, JobType, Profile
from dlwire.messages import Shape

__all__ = ["Estimate", "Predictor", "Span"]


SUPPOSED_S = 3600.0
"""How long a job of unknown length is supposed to train, as long as it has not done more."""


NOT_SEEN = 0.3
"""By what share a speed may be another one than was predicted, as long as it was never seen. Each
time that it is seen counts."""

SPREAD_FACTOR = 1.645 * 1.4826
"""From the median distance between observations and their median to what nine of ten are within."""

MOST_DOUBT = 0.9


class Span(NamedTuple):
    """How long something takes: what is expected, and between which bounds it will most likely be."""

    expected: float
    low: float
    high: float


class Predictor:
    """
    Predictions for one decision. Cheap to make: what was concluded from a profile stays with it.

    Speeds of a *type* come from its profile alone (:meth:`speed`). Times of a *job* that trains
    also heed the speed observed of it now: what it makes of its present shape, compared with what
    was predicted for it, corrects the prediction for its other shapes by the same factor.
    """

    __slots__ = ("_atlas", "_cluster", "_costs", "_profiles", "_recreates", "_shapes")

    def __init__(
        self,
        *,
        profiles: Mapping[JobType, Profile],
        costs: Costs,
        mechanism: Mechanism,
        cluster: Cluster,
    ) -> None:
        self._profiles = profiles
        self._atlas = atlas_of(profiles)
        self._costs = costs
        self._recreates = mechanism is Mechanism.RECREATE
        self._cluster = cluster
        self._shapes: dict[tuple[int, str], Shape] = {}

    @classmethod
    def of(cls, snapshot: Snapshot) -> "Predictor":
        """What can be predicted from what is known at one instant."""
        return cls(
            profiles=snapshot.profiles,
            costs=snapshot.costs,
            mechanism=snapshot.mechanism,
            cluster=snapshot.cluster,
        )

    @property
    def profiles(self) -> Mapping[JobType, Profile]:
        """What it concludes from: the same object for as long as nothing was learnt."""
        return self._profiles

    # --- speeds

    def speed(self, job: Job, shape: Shape) -> float:
        """Iterations per second; 0 if nothing at all is known that could tell."""
        # What estimate() does, once more, because policies ask this ten thousand times a decision.
        profile = self._profiles.get(job.type)
        if profile is not None:
            known: Estimate | None = profile.memo.get(shape)
            if known is not None:
                return known[0]
        return self._atlas.estimate(job.type, shape)[0]

    def speed_with(self, job: Job, shape: Shape, *, batch_size: int | None) -> float:
        """
        The speed with another global batch, in iterations a second of the job's own batch.

        An iteration with twice the batch is two of the job's own: it is as many samples.
        """
        own = job.type.batch_size or job.training.batch_size
        if not batch_size or not own or batch_size == own:
            return self.speed(job, shape)
        kind = job.type._replace(batch_size=batch_size)
        return self._atlas.estimate(kind, shape)[0] * (batch_size / own)

    def estimate(self, job: Job, shape: Shape) -> Estimate:
        """The speed, and how far it can be trusted."""
        profile = self._profiles.get(job.type)
        if profile is not None:
            known: Estimate | None = profile.memo.get(shape)
            if known is not None:
                return known
        return self._atlas.estimate(job.type, shape)

    def shape(self, gpus: int, gpu_type: str) -> Shape:
        """So many GPUs of a type at best: on the fewest nodes of this cluster."""
        known = self._shapes.get((gpus, gpu_type))
        if known is None:
            nodes = _fewest_nodes(self._cluster, gpus, gpu_type.split("+"))
            known = self._shapes[gpus, gpu_type] = Shape(gpus, nodes, gpu_type)
        return known

    def best_type(self, job: Job, gpus: int) -> str:
        """
        The acceptable type of this cluster on which the job is fastest with so many GPUs.

        A type with fewer GPUs than that counts only if none has enough; ties go to what the user
        named first.
        """
        there = self._cluster.types
        wanted = job.gpus.types
        types = [kind for kind in wanted if kind in there] if wanted else there
        if len(types) == 1:
            return types[0]
        totals = self._cluster.totals
        enough = [kind for kind in types if totals[kind] >= gpus]
        if not enough and job.gpus.mixed and types:
            return "+".join(sorted(types))
        # max() keeps the first of equals, which is the order of the user's liking.
        return max(
            enough or types or wanted or ("",),
            key=lambda kind: self.speed(job, self.shape(gpus, kind)),
        )

    def _speed_of(self, state: JobState, shape: Shape) -> float:
        job, observed, placement = state.job, state.speed, state.placement
        if observed <= 0.0 or state.adjusting or placement is None:
            return self.speed(job, shape)
        present = placement.shape
        if present == shape:
            return observed
        here = self.speed(job, present)
        if here > 0.0:
            return self.speed(job, shape) * (observed / here)
        # Nothing is known but what is seen: take it to scale like the usual job.
        return observed * usual_growth(present.gpus, shape.gpus)

    # --- times, in seconds from now

    def costs_of(self, job: Job) -> Costs:
        """What starting and stopping costs this job: as measured, or as set for all."""
        profile = self._profiles.get(job.type)
        if profile is None or profile.costs is None:
            return self._costs
        return profile.costs

    def training_time(self, state: JobState, shape: Shape, now: float) -> float:
        """For the iterations that are left, in that shape; infinite where it does not train."""
        # As JobState.remaining_at() reckons, without two calls more.
        done = state.iterations_done + state.speed * (now - state.observed_at)
        left = state.iterations_total - done
        if left <= 0.0:
            return 0.0
        if left == math.inf:
            left = self._suppose_left(state, done)
        speed = self._speed_of(state, shape)
        return left / speed if speed > 0.0 else math.inf

    def _suppose_left(self, state: JobState, done: float) -> float:
        """
        Suppose something of a job of which nobody knows how long it trains.

        As much again as it has done, and at least what its fewest GPUs do in an hour. It says
        nothing of the job, but its shapes can be compared, and it is not ranked behind all others
        for ever. Whoever tells a person must ask ``iterations_total`` whether it is known.
        """
        shape = self.shape(state.least, self.best_type(state.job, state.least))
        return max(done, SUPPOSED_S * self.speed(state.job, shape))

    def completion(self, state: JobState, shape: Shape, now: float) -> float:
        """Until a job that starts now in that shape is done and gone: all six terms."""
        costs = self.costs_of(state.job)
        gpus = shape.gpus
        starts = costs.pod_start(gpus) + costs.process_start(gpus)
        return starts + self.training_time(state, shape, now) + costs.end

    def remaining(self, state: JobState, now: float) -> float:
        """Until a job with GPUs is done and gone if it is left as it is."""
        if state.placement is None:
            return math.inf
        shape = state.placement.shape
        costs = self.costs_of(state.job)
        # A change under way still has its process to start.
        ahead = costs.process_start(shape.gpus) if state.adjusting else 0.0
        return ahead + self.training_time(state, shape, now) + costs.end

    def remaining_span(self, state: JobState, now: float) -> Span:
        """
        The same with its bounds, for people.

        They follow from how much the latest observations of its speed differ, from how many there
        are, from how far a speed never seen can be trusted, and from the bounds of its length.
        """
        expected = self.remaining(state, now)
        if state.placement is None or expected == math.inf:
            return Span(expected, expected, expected)
        shape = state.placement.shape
        training = self.training_time(state, shape, now)
        done, total = state.iterations_at(now), state.iterations_total
        low, high = state.iterations_between or (total, total)
        doubt = self._doubt(state, shape)
        pace = training / max(total - done, 1e-9)
        ahead = expected - training
        return Span(
            expected,
            min(expected, ahead + max(0.0, low - done) * pace / (1.0 + doubt)),
            max(expected, ahead + max(0.0, high - done) * pace / (1.0 - doubt)),
        )

    def _doubt(self, state: JobState, shape: Shape) -> float:
        """By what share the speed of a job in its present shape may be another one."""
        profile = self._profiles.get(state.job.type)
        seen = profile.speeds.get(shape) if profile is not None else None
        count, recent = (seen.weight, seen.recent) if seen is not None else (0.0, ())
        doubt = _spread(recent)
        if state.speed > 0.0 and not state.adjusting:
            count += 1
        else:
            doubt += (1.0 - self.estimate(state.job, shape).confidence) / 2.0
        return min(MOST_DOUBT, doubt + NOT_SEEN / (1.0 + count))

    def remaining_after(
        self, state: JobState, shape: Shape, now: float, *, moves: bool = False
    ) -> float:
        """
        Until a job with GPUs is done and gone if it is changed to that shape now.

        ``moves`` says that it needs nodes on which it has no pod yet. In place it trains on where
        it is while these are made ready; the paper, whose pods cannot be, pays for a restart.
        """
        costs = self.costs_of(state.job)
        lead = costs.pod_start(shape.gpus) if moves and not self._recreates else 0.0
        change = lead + self._change(costs, shape.gpus) + self._lost_time(state, shape, now + lead)
        return change + self.training_time(state, shape, now + lead) + costs.end

    def _lost_time(self, state: JobState, shape: Shape, now: float) -> float:
        """How long it takes to do once more what a change now may lose; nothing where it is saved."""
        lost = state.unsaved_at(now)
        if lost <= 0.0:
            return 0.0
        speed = self._speed_of(state, shape)
        return lost / speed if speed > 0.0 else math.inf

    def change_cost(self, job: Job, shape: Shape) -> float:
        """How long a change to that shape keeps the job from training."""
        return self._change(self.costs_of(job), shape.gpus)

    def untimed(self, job: Job) -> tuple[CostTerm, ...]:
        """Name the parts of a change in place that are neither measured nor set: they count as nothing."""
        profile, costs = self._profiles.get(job.type), self.costs_of(job)
        measured = profile.cost_samples if profile is not None else {}
        saves = bool(job.checkpoint.signal or job.checkpoint.command or job.checkpoint.http)
        known = {
            CostTerm.PROCESS_INITIALIZATION: costs.process_start(1),
            CostTerm.CHECKPOINT: costs.checkpoint if saves else math.inf,
        }
        return tuple(
            term for term, seconds in known.items() if seconds <= 0 and term not in measured
        )

    def _change(self, costs: Costs, gpus: int) -> float:
        if self._recreates:
            return costs.pod_restart(gpus)
        return costs.process_restart(gpus)


def _spread(recent: Sequence[float]) -> float:
    """By what share of their median observations lie around it."""
    if len(recent) < 2:
        return 0.0
    middle = median(recent)
    return SPREAD_FACTOR * median(abs(each - middle) for each in recent) / middle


def _fewest_nodes(cluster: Cluster, gpus: int, types: Sequence[str]) -> int:
    """How many of the largest nodes hold so many; where all are too few, all of them."""
    sizes = (
        cluster.sizes.get(types[0], ())
        if len(types) == 1
        else sorted((n for kind in types for n in cluster.sizes.get(kind, ())), reverse=True)
    )
    for count, size in enumerate(sizes, start=1):
        gpus -= size
        if gpus <= 0:
            # Types that are mixed are on a node each.
            return max(count, len(types))
    return max(len(sizes), len(types))
