"""
Plays the workloads of the SideCar paper under its three approaches, over many seeds.

Called by :mod:`dljob_lab.reproducing.sidecar.evaluation`, which makes rows of the results, and by
``benchmarks/sidecar_sensitivity.py``. Every seed draws arrivals, job types, numbers of GPUs for the
default scheduler and noise afresh; the three approaches get the same jobs.

Seeds are independent of each other, so they are shared among the processors; results come in the
order of the seeds, so their number changes nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, stdev
from typing import NamedTuple

from dljob.core.contract import Policy
from dljob.core.model import Mechanism
from dljob.core.policies.foresight import Foresight
from dljob.core.policies.papers.adaptive import Adaptive
from dljob.core.profiles import Costs
from dljob.sim.engine.settings import Setting
from dljob.sim.engine.world import World
from dljob.sim.results.records import Happening, Record
from dljob.sim.results.scoring import score
from dljob.sim.simulating import Watch
from dljob_lab.policies.elastic.optimus import Optimus
from dljob_lab.policies.rigid.kube_default import KubeDefault
from dljob_lab.reproducing.pooling import play_all
from dljob_lab.reproducing.sidecar.constants import FROZEN
from dljob_lab.reproducing.sidecar.workloads import (
    USUAL,
    Assumptions,
    Plan,
    make_workload,
)

SEEDS = 20
"""How often each workload is drawn."""


class Approach(NamedTuple):
    """One of the three of section V.B, or the paper's mechanism under another scheduler."""

    policy: Policy
    mechanism: Mechanism


APPROACHES: Mapping[str, Approach] = {
    "default": Approach(KubeDefault(), Mechanism.RECREATE),
    "termination": Approach(Optimus(), Mechanism.RECREATE),
    "sidecar": Approach(Adaptive(), Mechanism.IN_PLACE),
    "foresight": Approach(Foresight(), Mechanism.IN_PLACE),
}
OURS = "sidecar"
DEFAULT_SCHEDULER = "foresight"
"""The paper's mechanism under DLJob's default scheduler, which the paper does not have."""
BASELINES = ("default", "termination")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The results of one approach in one run; seconds and shares."""

    makespan_s: float
    avg_jct_s: float
    reshape_share: float
    adding: int
    removing: int
    pending: tuple[int, ...]
    """How many jobs are pending when each job is submitted, itself included if it has to wait."""
    predictions: tuple[tuple[float, float], ...]
    """(part done, predicted iterations / true ones) of jobs that end at an accuracy."""


Outcomes = Mapping[str, Outcome]
"""By approach."""


def play(
    plan: Plan,
    approach: str,
    *,
    seed: int,
    assumptions: Assumptions = USUAL,
    costs: Costs = FROZEN.costs,
) -> Record:
    """Play one workload once."""
    policy, mechanism = APPROACHES[approach]
    if approach == "default":
        # It does not use the length of a training, so no prediction is needed.
        plan = replace(plan, to_accuracy=False)
    setting = Setting(nodes=plan.nodes, mechanism=mechanism, costs=costs, seed=seed)
    return World(make_workload(plan, seed, assumptions=assumptions), setting, policy=policy).play()


def sum_up(record: Record) -> Outcome:
    """Take the reported figures from a record."""
    figures = score(record, policy=record.policy)
    return Outcome(
        makespan_s=figures.makespan_s,
        avg_jct_s=figures.avg_jct_s,
        reshape_share=figures.reshape_share,
        adding=_count(record, Happening.ADDING),
        removing=_count(record, Happening.REMOVING),
        pending=tuple(find_pending(record)),
        predictions=tuple(pair for job in record.jobs for pair in job.predictions),
    )


def _count(record: Record, what: Happening) -> int:
    return sum(entry.what is what for entry in record.log)


def find_pending(record: Record) -> Iterator[int]:
    """How many jobs are pending after each submission and what was decided upon it."""
    levels = dict(zip(record.series.time, record.series.pending, strict=True))
    return (round(levels[job.submitted_at]) for job in record.jobs)


def play_seed(
    task: tuple[Plan, int], *, assumptions: Assumptions = USUAL, costs: Costs = FROZEN.costs
) -> Outcomes:
    """Play one workload, drawn from one seed, in all approaches."""
    plan, seed = task
    return {
        approach: sum_up(play(plan, approach, seed=seed, assumptions=assumptions, costs=costs))
        for approach in APPROACHES
    }


def play_seeds(
    plans: Sequence[Plan],
    *,
    seeds: int = SEEDS,
    watch: Watch | None = None,
    assumptions: Assumptions = USUAL,
    costs: Costs = FROZEN.costs,
) -> dict[str, tuple[Outcomes, ...]]:
    """Play all seeds of some workloads; by the name of the workload, in order of the seeds."""
    tasks = [(plan, seed) for plan in plans for seed in range(seeds)]
    found: dict[str, list[Outcomes]] = {plan.name: [] for plan in plans}
    run = partial(play_seed, assumptions=assumptions, costs=costs)
    for (plan, seed), outcomes in zip(tasks, play_all(run, tasks), strict=True):
        found[plan.name].append(outcomes)
        if watch is not None:
            watch(plan.name, plan.jobs * (seed + 1), plan.jobs * seeds)
    return {name: tuple(each) for name, each in found.items()}


class Spread(NamedTuple):
    """A mean over the seeds, and how far they are from it."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        """Mean and standard deviation of a sample."""
        sample = list(values)
        return cls(fmean(sample), stdev(sample) if len(sample) > 1 else 0.0)

    def times(self, factor: float) -> "Spread":
        """Return the same in another unit."""
        return Spread(self.mean * factor, self.deviation * factor)


def reduce_by(
    runs: Sequence[Outcomes], baseline: str, *, quantity: str, approach: str = OURS
) -> Spread:
    """Return by how many percent an approach takes less than a baseline, seed by seed."""
    return Spread.of(
        100.0 * (1.0 - getattr(run[approach], quantity) / getattr(run[baseline], quantity))
        for run in runs
    )


def spread_of(runs: Sequence[Outcomes], approach: str, *, quantity: str) -> Spread:
    """A figure of one approach."""
    return Spread.of(getattr(run[approach], quantity) for run in runs)
