"""
Workloads One to Four of the SideCar paper (section V.A), drawn once for every seed.

Called by :mod:`dljob_lab.reproducing.sidecar.runs`. Jobs arrive after exponential gaps that fill the
window of 11,000 s, and each is of a type drawn from the job set. Where the paper is silent,
this module decides once: every job may have 1, 2, 4 or 8 GPUs of one type on one node (each is one
container), and its checkpoint can be read on both nodes (the paper's servers share a file system).
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dljob.core.model import Checkpoint, GpuDemand, Job, JobId, Node, Target, Training
from dljob.core.profiles import AccuracyPoint, JobType, Profile
from dljob.sim.jobs.learning import Learning
from dljob.sim.jobs.workloads import TracedJob, Workload
from dljob_lab.reproducing.sidecar.job_types import (
    COUNTS,
    JOB_SET_ONE,
    JOB_SET_TWO,
    Kind,
    Rule,
    make_profile,
)

WINDOW_S = 11_000.0
"""Within which all jobs arrive."""

NODE_GPUS = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """The paper's description of one of its workloads."""

    number: int
    jobs: int
    kinds: tuple[Kind, ...]
    gpu_types: tuple[str, str]
    to_accuracy: bool = False
    """True if jobs end at an accuracy instead of after some epochs."""

    @property
    def name(self) -> str:
        """The name of its rows."""
        return f"workload-{self.number}"

    @property
    def nodes(self) -> tuple[Node, ...]:
        """One server of each of the two types."""
        return tuple(Node.of(kind.lower(), NODE_GPUS, kind) for kind in self.gpu_types)


PLANS = (
    Plan(1, 40, JOB_SET_ONE, ("V100", "P100")),
    Plan(2, 20, JOB_SET_ONE, ("V100", "P100")),
    Plan(3, 40, JOB_SET_TWO, ("V100", "K80")),
    Plan(4, 40, JOB_SET_TWO, ("V100", "K80"), to_accuracy=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """Values that the paper leaves open, apart from the constants; other values test how much they matter."""

    options: tuple[int, ...] = COUNTS
    rule: Rule = Rule.COMPUTED_PART
    window_s: float = WINDOW_S
    slowness: float = 1.0
    """By what factor every iteration takes longer."""


USUAL = Assumptions()


def make_workload(plan: Plan, seed: int, *, assumptions: Assumptions = USUAL) -> Workload:
    """Draw the arrivals and types of one workload."""
    # Workload Four holds the very jobs of Three; a string seeds alike in every process.
    same = 3 if plan.number == 4 else plan.number
    chance = random.Random(f"sidecar workload {same}, seed {seed}")
    arrivals = draw_arrivals(plan.jobs, assumptions.window_s, chance=chance)
    kinds = [chance.choice(plan.kinds) for _ in arrivals]
    jobs = [
        _make_job(index, kind, submitted_at=submitted_at, options=assumptions.options)
        for index, (kind, submitted_at) in enumerate(zip(kinds, arrivals, strict=True))
    ]
    truths = {
        kind.type: make_profile(
            kind, plan.gpu_types, rule=assumptions.rule, slowness=assumptions.slowness
        )
        for kind in plan.kinds
    }
    if not plan.to_accuracy:
        return Workload(plan.name, tuple(jobs), truths, truths)
    learners = [
        _let_learn(traced, kind, seed=1000 * seed + index)
        for index, (traced, kind) in enumerate(zip(jobs, kinds, strict=True))
    ]
    return Workload(plan.name, tuple(learners), truths, _add_accuracies(plan.kinds, truths))


def draw_arrivals(jobs: int, window_s: float, *, chance: random.Random) -> list[float]:
    """
    Exponential gaps, as many as there are jobs and one more behind the last, scaled to the window.

    These are the arrivals of a Poisson process of which it is known how many fell in the window.
    """
    gaps = [chance.expovariate(1.0) for _ in range(jobs + 1)]
    scale = window_s / math.fsum(gaps)
    return [round(scale * math.fsum(gaps[: index + 1]), 3) for index in range(jobs)]


def _make_job(
    index: int, kind: Kind, *, submitted_at: float, options: tuple[int, ...]
) -> TracedJob:
    job = Job(
        id=JobId(f"job-{index:02}"),
        gpus=GpuDemand(options=options, requested=max(options), max_nodes=1),
        training=Training(iterations=kind.iterations, batch_size=kind.batch_size),
        type=kind.type,
        submitted_at=submitted_at,
        checkpoint=Checkpoint(shared=True),
    )
    return TracedJob(job, kind.iterations)


# --- how jobs learn: synthetic, because the paper prints no accuracy curve ----------------

MOST_EPOCHS = 4
"""
A job that ends at an accuracy may train for this multiple of the epochs of the other workloads: a
limit far off, as training code has one, for targets that seem to be out of reach.
"""

NOISE = 0.005
"""The standard deviation of a reported accuracy."""

OFFLINE = (0.001, 0.005, 0.01, 0.02, 0.03, 0.05)
"""
After which parts of its training a type's accuracy was measured offline: the paper ran each type
"for a small number of iterations".
"""


def make_learning(kind: Kind, *, sigma: float = 0.0, seed: int = 0) -> Learning:
    """
    A curve from chance to what a type has reached when its epochs are over.

    It starts where guessing does (5 of 1,000 classes, or of 10) and never reaches what long
    training brings; after the epochs of the paper it is where models of that time were.
    """
    start, end, limit = (0.5, 0.995, 1.0) if kind.dataset.name == "MNIST" else (0.005, 0.5, 0.9)
    b1 = 1.0 / (limit - start)
    b0 = (1.0 / (limit - end) - b1) / kind.iterations
    return Learning(b0=b0, b1=b1, c=limit, sigma=sigma, seed=seed)


def _let_learn(traced: TracedJob, kind: Kind, *, seed: int) -> TracedJob:
    """Let a job end at the accuracy that it reaches in Workload Three, instead of after epochs."""
    learning = make_learning(kind, sigma=NOISE, seed=seed)
    training = replace(
        traced.job.training,
        iterations=MOST_EPOCHS * kind.iterations,
        target=Target(metric="top5", value=learning.truth_at(kind.iterations)),
    )
    return TracedJob(replace(traced.job, training=training), traced.iterations, learning)


def _add_accuracies(
    kinds: Sequence[Kind], truths: Mapping[JobType, Profile]
) -> Mapping[JobType, Profile]:
    known = {}
    for index, kind in enumerate(kinds):
        learning = make_learning(kind, sigma=NOISE, seed=-1 - index)
        points = tuple(
            AccuracyPoint(part * kind.iterations, learning.accuracy_at(part * kind.iterations))
            for part in OFFLINE
        )
        known[kind.type] = Profile(kind.type, truths[kind.type].speeds, accuracy=points)
    return known
