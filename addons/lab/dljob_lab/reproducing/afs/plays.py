"""
One trace of Philly under one policy, as AFS plays it (section 5.1): 64 GPUs, and changes free of charge.

:mod:`dljob_lab.reproducing.afs.evaluation` makes a :class:`Task` for each pair and seed, and shares them among
the processors.
"""

from pathlib import Path
from typing import NamedTuple

from dljob.core.model import Cluster
from dljob.sim import policies
from dljob.sim.clusters import build_packed
from dljob.sim.engine.controlling.costs import costs_of_change
from dljob.sim.engine.settings import Setting
from dljob.sim.jobs.sampling import Sample, sample
from dljob.sim.simulating import Contestant, Outcome, simulate
from dljob_lab.reproducing.afs.workload import MACHINES, make_workload


class Variant(NamedTuple):
    """A policy, and what is different while it is played."""

    name: str
    policy: str
    is_greedy: bool = False
    """True if each job requests the most GPUs that it can use (Figure 6)."""
    restart_s: float = 0.0
    """The cost of a start and of each change."""


class Task(NamedTuple):
    """A trace, and how it is played."""

    cluster: str
    path: Path
    variant: Variant
    seed: int
    """Draws the models, and the place of the window."""
    window: int | None = None
    """How many consecutive jobs; ``None``: all."""
    load: float | None = None
    """The offered load; ``None``: as it comes."""


class Figures(NamedTuple):
    """The figures of the paper's evaluation, of one play."""

    jobs: frozenset[str]
    """The jobs of the trace that were played, so that those of several windows can be counted."""
    avg_jct_s: float
    p99_jct_s: float
    queue: float
    efficiency: float
    blocking: float


def play(task: Task) -> Figures:
    """Play it, and keep the figures."""
    outcome = replay(task)
    score = outcome.score
    return Figures(
        jobs=frozenset(str(job.job) for job in outcome.record.jobs),
        avg_jct_s=score.avg_jct_s,
        p99_jct_s=score.p99_jct_s,
        queue=score.avg_queue,
        efficiency=score.cluster_efficiency,
        blocking=score.blocking_index,
    )


def replay(task: Task) -> Outcome:
    """Play it, and keep all."""
    variant = task.variant
    setting = Setting(
        nodes=build_packed([MACHINES]), costs=costs_of_change(variant.restart_s), seed=task.seed
    )
    whole = make_workload(task.path, task.cluster, seed=task.seed, is_greedy=variant.is_greedy)
    wanted = Sample(window=task.window, load=task.load, seed=task.seed)
    workload = sample(whole, Cluster(setting.nodes), wanted=wanted)
    contestant = Contestant(variant.name, policies.read(variant.policy))
    (outcome,) = simulate(workload, setting, contestants=[contestant])
    return outcome
