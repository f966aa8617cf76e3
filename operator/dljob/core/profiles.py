"""
The knowledge about a type of job: how fast it trains, how it learns, what a change costs it.

The paper's offline profile (Tables IV and V), which online observations go on refining through
:func:`fold`. :mod:`dljob.core.predicting.predictor` reads it, and :mod:`dljob.core.predicting.learning_curves` its
learning curve.

A profile keeps the latest few observations and their median. So a straggler or a hiccup changes
nothing, a machine that becomes slower for good is believed after half as many, and nothing grows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from dljob_wire.messages import Shape

OF_ONE_JOB = "\N{MIDDLE DOT}job/"
"""The prefix of the model of a job's own type; no model in a job file can begin so."""


class JobType(NamedTuple):
    """The properties that jobs must share to share a profile: the paper's "job type"."""

    model: str
    dataset: str = ""
    batch_size: int = 0

    @classmethod
    def of_one_job(cls, name: str, batch_size: int = 0) -> "JobType":
        """Make the type of a job without a stated type, so that it learns from itself."""
        return cls(OF_ONE_JOB + name, "", batch_size)

    @property
    def is_of_one_job(self) -> bool:
        """True if no other job will ever have this type, so that it is not worth keeping."""
        return self.model.startswith(OF_ONE_JOB)

    def __str__(self) -> str:
        return "/".join(str(part) for part in (self.model, self.dataset, self.batch_size) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """
    The costs of starting and stopping, in seconds: every term of the SideCar paper, section III.C, and of live changes.

    The parts "per GPU" exist because ranks, devices and communicators are set up one by one.
    """

    pod_initialization: float = 0.0
    """From the creation of a pod until its SideCar is ready."""
    pod_initialization_per_gpu: float = 0.0
    """The same, for each GPU of the pod."""
    process_initialization: float = 0.0
    """From the start of the processes to the first training step."""
    process_initialization_per_gpu: float = 0.0
    """The same, for each GPU of the job."""
    checkpoint: float = 0.0
    """The time in which a training saves itself."""
    process_termination: float = 0.0
    """From the saved checkpoint until the GPUs are released."""
    pod_termination: float = 0.0
    """From the end of the processes until the pod is gone."""
    live_shrink: float = 0.0
    """From the last step before a live change to fewer GPUs to the first step after it."""
    live_grow: float = 0.0
    """The same to more GPUs. Newcomers start while the others train, so their start is no part of it."""

    def pod_start(self, gpus: int) -> float:
        """From the decision to a pod whose SideCar is ready."""
        return self.pod_initialization + self.pod_initialization_per_gpu * gpus

    def process_start(self, gpus: int) -> float:
        """From "run" to the first training step."""
        return self.process_initialization + self.process_initialization_per_gpu * gpus

    @property
    def process_stop(self) -> float:
        """From "stop" to released GPUs, the pod staying alive."""
        return self.checkpoint + self.process_termination

    @property
    def end(self) -> float:
        """From the last iteration to a job that is gone."""
        return self.checkpoint + self.process_termination + self.pod_termination

    def pod_restart(self, gpus: int) -> float:
        """Return the cost of a change when pods are deleted and created again."""
        return (
            self.process_stop
            + self.pod_termination
            + self.pod_start(gpus)
            + self.process_start(gpus)
        )

    def process_restart(self, gpus: int) -> float:
        """Return the cost of a change when only the process is restarted, inside its pod."""
        return self.process_stop + self.process_start(gpus)

    def live_change(self, *, joins: bool) -> float:
        """
        Return the pause of a change through which processes live; ``joins``: others join them.

        A growth does all that a shrink does, and sends newcomers the state, so it takes at least as long.
        That counts before the first growth of a job: the trial of live changes measures the rest.
        """
        return max(self.live_shrink, self.live_grow) if joins else self.live_shrink

    def faster(self, factor: float) -> "Costs":
        """Return the costs where everything is ``factor`` times as fast."""
        return Costs(**{each.name: getattr(self, each.name) / factor for each in fields(self)})


class Speed(NamedTuple):
    """A measured speed and how much measuring stands behind it."""

    iterations_per_s: float
    weight: float = 1.0
    """The number of observations it stands for; interpolation trusts heavier points more."""
    recent: tuple[float, ...] = ()
    """The latest observations, of which it is the median; empty before the first."""
    seen_at: float = 0.0
    """When the latest was made."""


class AccuracyPoint(NamedTuple):
    """A point of a learning curve (Table V)."""

    iteration: float
    value: float

    @property
    def is_sound(self) -> bool:
        """True if the metric is usable: beyond these bounds it has diverged."""
        return 0.0 <= self.iteration < 1e18 and abs(self.value) < 1e100


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """The knowledge about one type of job. Compared by identity: a changed profile is a new
    object."""

    type: JobType
    speeds: Mapping[Shape, Speed] = field(default_factory=dict)
    accuracy: tuple[AccuracyPoint, ...] = ()
    costs: Costs | None = None
    """Measured costs; ``None`` leaves the snapshot's defaults in force."""
    cost_samples: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """The latest observations of each term of ``costs``."""
    memo: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """A cache that only :mod:`dljob.core.predicting.relating` uses: its conclusions from this very
    object."""

    def says_the_same_as(self, other: "Profile") -> bool:
        """Return whether the same is known by both, although they are two objects."""
        return (
            self.type == other.type
            and self.speeds == other.speeds
            and self.accuracy == other.accuracy
            and self.costs == other.costs
            and self.cost_samples == other.cost_samples
        )


# --- observations -------------------------------------------------------------------------


class CostTerm(StrEnum):
    """The observable parts of a start, a stop or a live change: the fields of :class:`Costs` that are not
    rates."""

    POD_INITIALIZATION = "pod_initialization"
    PROCESS_INITIALIZATION = "process_initialization"
    CHECKPOINT = "checkpoint"
    PROCESS_TERMINATION = "process_termination"
    POD_TERMINATION = "pod_termination"
    LIVE_SHRINK = "live_shrink"
    LIVE_GROW = "live_grow"


class SpeedSeen(NamedTuple):
    """The speed of a job over a while, its shape unchanged."""

    shape: Shape
    iterations_per_s: float
    duration_s: float
    at: float
    replaces: int = 0
    """How many of the latest observations of this shape it shows to be those of a warm-up."""


class AccuracySeen(NamedTuple):
    """A job reported its metric."""

    iteration: float
    value: float


class CostSeen(NamedTuple):
    """An observed duration of a start, a stop or a live change."""

    term: CostTerm
    seconds: float
    gpus: int = 0
    replaces: int = 0
    """How many of the latest observations of this term were less of the same start."""


Observation = SpeedSeen | AccuracySeen | CostSeen

RECENT = 9
"""The number of observations of a speed or a cost that are kept; four of them may be wrong."""

FEWEST_ITERATIONS = 2.0
"""A speed over less time is mostly an error of measurement."""

STALE_AFTER_S = 7 * 86400.0
"""Observations from before a pause this long count as one, because machines change."""

MOST_ACCURACY_POINTS = 64

MOST_SHAPES = 128
"""The number of shapes whose speeds are kept; the least recently observed ones are dropped."""

SLOWEST, FASTEST = 1e-9, 1e9
"""Iterations a second. A measurement beyond these bounds was not a training."""

LONGEST_COST_S = 1e9


def fold(profile: Profile, observation: Observation, *, defaults: Costs = Costs()) -> Profile:
    """
    Take an observation into a profile; the same object comes back if there is nothing to learn.

    ``defaults`` are the costs in force for types without measured ones: they stay in force for
    the terms that were not observed yet.
    """
    if isinstance(observation, SpeedSeen):
        return _fold_speed(profile, observation)
    if isinstance(observation, AccuracySeen):
        return _fold_accuracy(profile, observation)
    return _fold_cost(profile, observation, defaults=defaults)


def _fold_speed(profile: Profile, seen: SpeedSeen) -> Profile:
    speed = seen.iterations_per_s
    if not SLOWEST <= speed <= FASTEST:
        return profile
    if speed * seen.duration_s < FEWEST_ITERATIONS:
        return profile
    old = profile.speeds.get(seen.shape)
    recent, weight = _recall(old, seen.at)
    if seen.replaces:
        recent = recent[: max(0, len(recent) - seen.replaces)]
        weight = min(weight, float(len(recent)))
    recent = (*recent, speed)[-RECENT:]
    new = Speed(
        median(recent),
        min(weight + 1.0, float(RECENT)),
        recent,
        max(seen.at, old.seen_at if old is not None else seen.at),
    )
    speeds = {**profile.speeds, seen.shape: new}
    while len(speeds) > MOST_SHAPES:
        others = (shape for shape in speeds if shape != seen.shape)
        del speeds[min(others, key=lambda shape: (speeds[shape].seen_at, shape))]
    return replace(profile, speeds=speeds)


def _recall(old: Speed | None, now: float) -> tuple[tuple[float, ...], float]:
    """Return the observations so far; a profile made offline, or an old one, counts as one
    observation."""
    if old is None or not SLOWEST <= old.iterations_per_s <= FASTEST:
        return (), 0.0
    if not old.recent or now - old.seen_at > STALE_AFTER_S:
        return (old.iterations_per_s,), 1.0
    return old.recent, old.weight


def _fold_accuracy(profile: Profile, seen: AccuracySeen) -> Profile:
    point = AccuracyPoint(seen.iteration, seen.value)
    if not point.is_sound:
        return profile
    values = dict(profile.accuracy)
    # Another job of the type was that far before: the profile holds their common curve.
    known = values.get(seen.iteration, seen.value)
    values[seen.iteration] = known + (seen.value - known) / 2.0
    points = [AccuracyPoint(iteration, values[iteration]) for iteration in sorted(values)]
    if len(points) > MOST_ACCURACY_POINTS:
        del points[_find_dispensable(points)]
    return replace(profile, accuracy=tuple(points))


def _find_dispensable(points: Sequence[AccuracyPoint]) -> int:
    """
    The point without which the curve changes least.

    That is the one that spans the smallest triangle with its two neighbours; the ends stay.
    """
    k = np.array([point.iteration for point in points])
    v = np.array([point.value for point in points])
    # Only their order matters, and without units nothing can overflow.
    k, v = (each / max(float(np.abs(each).max()), 1e-300) for each in (k, v))
    areas = np.abs((k[1:-1] - k[:-2]) * (v[2:] - v[:-2]) - (v[1:-1] - v[:-2]) * (k[2:] - k[:-2]))
    return 1 + int(np.argmin(areas))


def _fold_cost(profile: Profile, seen: CostSeen, *, defaults: Costs) -> Profile:
    if not 0.0 <= seen.seconds <= LONGEST_COST_S:
        return profile
    costs = profile.costs or defaults
    # The part per GPU is not learnt here; the rest is the base.
    rate = float(getattr(costs, f"{seen.term}_per_gpu", 0.0))
    base = max(0.0, seen.seconds - rate * seen.gpus)
    samples = profile.cost_samples.get(seen.term, ())
    samples = (*samples[: len(samples) - seen.replaces], base)[-RECENT:]
    return replace(
        profile,
        costs=replace(costs, **{seen.term.value: median(samples)}),
        cost_samples={**profile.cost_samples, seen.term.value: samples},
    )
