"""
The future of a job in a shape: its speed, its times, the cost of changing it.

Policies ask, through :attr:`dljob.core.contract.View.predictor`; a :class:`Predictor` is made for each
decision from the snapshot. Speeds come from the profiles of a job's type and of others; the terms of the times
are those of the SideCar paper, section III.C. All times are seconds from now.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from dljob.core.model import Cluster, Job, JobState, Mechanism, Placement, Snapshot
from dljob.core.predicting.conclusions import Kept
from dljob.core.predicting.growths import usual_growth
from dljob.core.predicting.relating import Atlas
from dljob.core.predicting.speed_curves import Estimate
from dljob.core.profiles import Costs, CostTerm, JobType, Profile
from dljob_wire.messages import Shape

__all__ = ["Estimate", "Predictor", "Span"]

SUPPOSED_S = 3600.0
"""The assumed training time of a job of unknown length that has trained for less."""


class Span(NamedTuple):
    """A duration: the expected value, and its likely bounds."""

    expected: float
    low: float
    high: float


class _Usual:
    """
    The usual costs of one collection of profiles, for types of jobs without measured ones.

    A job that has never been stopped would seem to be free to stop, if its costs were none until then.
    """

    def __init__(self, profiles: Mapping[JobType, Profile]) -> None:
        self.profiles = profiles
        samples = [each.cost_samples for each in profiles.values() if each.cost_samples]
        seen = {
            term.value: [median(each[term]) for each in samples if each.get(term)]
            for term in CostTerm
        }
        self.terms = {term: median(values) for term, values in seen.items() if values}


_kept_costs: Kept[_Usual] = Kept(most=4)
_kept_atlases: Kept[Atlas] = Kept(most=4)


class Predictor:
    """
    Predictions for one decision. Cheap to make: conclusions stay with their profile.

    Speeds of a *type* come from its profile alone (``speed``). Times of a *job* that trains also
    use its observed speed: the ratio of that speed to the prediction for the present shape corrects
    the predictions for other shapes.
    """

    __slots__ = ("_atlas", "_cluster", "_costs", "_recreates", "_shapes", "profiles")

    def __init__(
        self,
        *,
        profiles: Mapping[JobType, Profile],
        costs: Costs,
        mechanism: Mechanism,
        cluster: Cluster,
    ) -> None:
        self.profiles = profiles
        """The profiles behind the conclusions: the same object until something is learnt."""
        self._costs = costs
        self._recreates = mechanism is Mechanism.RECREATE
        self._atlas = _kept_atlases.recall(
            lambda atlas: atlas.profiles is profiles, lambda: Atlas(profiles)
        )
        self._cluster = cluster
        self._shapes: dict[tuple[int, str], Shape] = {}

    @classmethod
    def of(cls, snapshot: Snapshot) -> "Predictor":
        """Make a predictor from the knowledge of one instant."""
        return cls(
            profiles=snapshot.profiles,
            costs=snapshot.costs,
            mechanism=snapshot.mechanism,
            cluster=snapshot.cluster,
        )

    # --- speeds of types of jobs, and shapes of this cluster

    def speed(self, job: Job, shape: Shape) -> float:
        """Iterations per second; 0 if nothing is known about it."""
        # This repeats estimate(), because policies ask it ten thousand times a decision.
        profile = self.profiles.get(job.type)
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
        """The speed with its confidence."""
        profile = self.profiles.get(job.type)
        if profile is not None:
            known: Estimate | None = profile.memo.get(shape)
            if known is not None:
                return known
        return self._atlas.estimate(job.type, shape)

    def shape(self, gpus: int, gpu_type: str) -> Shape:
        """Return the best shape of ``gpus`` GPUs of a type: on the fewest nodes of this cluster."""
        known = self._shapes.get((gpus, gpu_type))
        if known is None:
            nodes = _fewest_nodes(self._cluster, gpus, types=gpu_type.split("+"))
            known = self._shapes[gpus, gpu_type] = Shape(gpus, nodes, gpu_type)
        return known

    def best_type(self, job: Job, gpus: int) -> str:
        """
        Return the acceptable type of this cluster on which the job is fastest with ``gpus`` GPUs.

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
        # max() keeps the first of equals, which is the user's order.
        return max(
            enough or types or wanted or ("",),
            key=lambda kind: self.speed(job, self.shape(gpus, kind)),
        )

    # --- times of a job, in seconds from now

    def is_measured(self, state: JobState) -> bool:
        """Return whether a profile says how fast the job is; the first steps of a start include its warm-up."""
        least, held = state.least, state.placement
        shape = held.shape if held else self.shape(least, self.best_type(state.job, least))
        return self.speed(state.job, shape) > 0.0

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
        # Only the present speed is known: assume that it scales like the usual job.
        return observed * usual_growth(present.gpus, shape.gpus)

    def costs_of(self, job: Job) -> Costs:
        """Return the costs of starting and stopping this job: as measured, as usual, or as set for all."""
        return find_costs(self.profiles, self.profiles.get(job.type), defaults=self._costs)

    def training_time(self, state: JobState, shape: Shape, *, now: float) -> float:
        """The time of the remaining iterations in that shape; infinite where it does not train."""
        # The same as JobState.remaining_at(), without two more calls.
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
        Assume a length for a job whose length is unknown.

        As much again as it has done, and at least what its fewest GPUs do in an hour. It says
        nothing of the job, but its shapes can be compared, and it is not ranked behind all others
        for ever. Code that shows it to a person must ask ``iterations_total`` whether it is known.
        """
        shape = self.shape(state.least, self.best_type(state.job, state.least))
        return max(done, SUPPOSED_S * self.speed(state.job, shape))

    def completion(self, state: JobState, shape: Shape, now: float) -> float:
        """Until a job that starts now in that shape is done and gone: all six terms."""
        costs = self.costs_of(state.job)
        gpus = shape.gpus
        starts = costs.pod_start(gpus) + costs.process_start(gpus)
        return starts + self.training_time(state, shape, now=now) + costs.end

    def remaining(self, state: JobState, now: float) -> float:
        """Until a job with GPUs is done and gone if it is left as it is."""
        if state.placement is None:
            return math.inf
        shape = state.placement.shape
        costs = self.costs_of(state.job)
        ahead = 0.0
        if state.adjusting:
            # A change under way still has its process to start; in a live one the job trains meanwhile.
            ahead = costs.live_grow if state.is_live else costs.process_start(shape.gpus)
        return ahead + self.training_time(state, shape, now=now) + costs.end

    def remaining_after(
        self,
        state: JobState,
        shape: Shape,
        *,
        now: float,
        moves: bool = False,
        stays: bool = True,
    ) -> float:
        """
        Until a job with GPUs is done and gone if it is changed to that shape now.

        ``moves`` says that it needs nodes on which it has no pod yet. In place it trains on where
        it is while these are made ready; the paper, whose pods cannot be, pays for a restart.
        ``stays`` is false if it keeps none of its GPUs, so that its processes cannot stay either.
        """
        costs = self.costs_of(state.job)
        lead = costs.pod_start(shape.gpus) if moves and not self._recreates else 0.0
        if stays and _is_live_to(state, shape):
            joins = moves or _takes_more(state, shape)
            # It trains on where it is while newcomers start.
            lead += costs.process_start(shape.gpus) if joins else 0.0
            change = lead + costs.live_change(joins=joins)
        else:
            lost = self._lost_time(state, shape, now=now + lead)
            change = lead + self._restart(costs, shape.gpus) + lost
        return change + self.training_time(state, shape, now=now + lead) + costs.end

    def remaining_on(self, state: JobState, placement: Placement, now: float) -> float:
        """Until a job with GPUs is done and gone if it is changed to these GPUs now."""
        held = state.placement
        moves = held is None or not set(placement.nodes) <= set(held.nodes)
        stays = state.changes_live(placement)
        return self.remaining_after(state, placement.shape, now=now, moves=moves, stays=stays)

    def _lost_time(self, state: JobState, shape: Shape, *, now: float) -> float:
        """The time to repeat the work that a change now may lose; zero where a checkpoint has
        it."""
        lost = state.unsaved_at(now)
        if lost <= 0.0:
            return 0.0
        speed = self._speed_of(state, shape)
        return lost / speed if speed > 0.0 else math.inf

    def change_cost(self, state: JobState, shape: Shape, *, stays: bool = True) -> float:
        """
        The time for which a change to that shape keeps the job from training.

        ``stays`` is false if it keeps none of its GPUs.
        """
        if stays and _is_live_to(state, shape):
            return self.costs_of(state.job).live_change(joins=_takes_more(state, shape))
        return self.restart_cost(state.job, shape.gpus)

    def restart_cost(self, job: Job, gpus: int) -> float:
        """The same if its processes end and start again, on ``gpus`` GPUs."""
        return self._restart(self.costs_of(job), gpus)

    def _restart(self, costs: Costs, gpus: int) -> float:
        if self._recreates:
            return costs.pod_restart(gpus)
        return costs.process_restart(gpus)


def _is_live_to(state: JobState, shape: Shape) -> bool:
    """Return whether the job's processes live through a change to that shape, if it keeps some of its GPUs."""
    return (
        state.is_live and state.placement is not None and state.placement.gpu_type == shape.gpu_type
    )


def _takes_more(state: JobState, shape: Shape) -> bool:
    """Return whether others join its processes; with an equal number of GPUs some of them are others."""
    return state.placement is not None and shape.gpus >= state.placement.shape.gpus


def _fewest_nodes(cluster: Cluster, gpus: int, *, types: Sequence[str]) -> int:
    """Count the largest nodes that together hold ``gpus`` GPUs; where all do not suffice, return
    their number."""
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


def find_costs(
    profiles: Mapping[JobType, Profile], profile: Profile | None, *, defaults: Costs
) -> Costs:
    """Return the costs of a type of job; ``defaults`` hold where no type was measured."""
    if profile is not None and profile.costs is not None and not profile.cost_samples:
        return profile.costs  # They were measured offline, all of them.
    usual = _kept_costs.recall(
        lambda each: each.profiles is profiles, lambda: _Usual(profiles)
    ).terms
    measured = profile.cost_samples if profile is not None else {}
    costs = profile.costs if profile is not None and profile.costs is not None else defaults
    missing = {term: seconds for term, seconds in usual.items() if term not in measured}
    return replace(costs, **missing) if missing else costs
