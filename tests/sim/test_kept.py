"""
Random histories of jobs with good, broken and no checkpoints, under every policy.

No work is lost unless a law or a priority demands it. Without the law ``work-kept`` the same histories
lose much, so they are hard enough.
"""

import math
import random
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from dljob.core.model import Node
from dljob.sim import policies
from dljob.sim.engine.settings import Setting
from dljob.sim.engine.world import World
from dljob.sim.jobs.checkpointing import Kind
from dljob.sim.results.records import Happening, Record
from dljob.sim.scenarios import draw_checkpoints, with_checkpoint
from tests.sim.worlds import COSTS, make_traced, make_workload, times_of

NODES = (Node.of("n1", 4), Node.of("n2", 4))
NAMES = [name for name in policies.NAMES if name != "kube-pods"]
SEEDS = range(3)


def make_history(seed: int, *, levels: int = 1):
    """Twenty jobs that arrive at random, half of them without a good checkpoint."""
    rng = random.Random(seed)
    jobs = []
    for number in range(20):
        job = make_traced(
            f"job-{number}",
            at=round(rng.uniform(0.0, 2000.0), 1),
            iterations=round(rng.lognormvariate(6.5, 1.0)),
            options=rng.choice([(1, 2, 4), (1,), (2, 4), (1, 2, 4, 8)]),
        )
        own = replace(job.job, priority=rng.randrange(levels))
        kind = rng.choice((Kind.GOOD, Kind.GOOD, Kind.NONE, Kind.BROKEN))
        jobs.append(with_checkpoint(replace(job, job=own), kind))
    return make_workload(*jobs)


def play(seed: int, policy: str, *, levels: int = 1, **said: Any) -> Record:
    setting = Setting(nodes=NODES, costs=COSTS, seed=seed, **said)
    return World(make_history(seed, levels=levels), setting, policy=policies.make(policy)).play()


def lost(record: Record) -> float:
    return sum(job.redone for job in record.jobs)


def test_no_work_is_lost_without_demand():
    for number, policy in enumerate(NAMES):
        seed = number % len(SEEDS)
        record = play(seed, policy, trial_s=seed * 15.0)
        assert all(job.completed_at is not None for job in record.jobs), policy
        assert lost(record) == 0.0, (policy, seed)


@pytest.mark.parametrize("policy", ["foresight", "adaptive", "afs-l"])
def test_histories_lose_work_without_the_law(policy):
    assert any(lost(play(seed, policy, keeps_work=False)) > 100.0 for seed in SEEDS)


@pytest.mark.parametrize("policy", ["foresight", "adaptive", "afs-l"])
def test_broken_checkpoint_without_trial_loses_work(policy):
    records = [play(seed, policy, tries=False) for seed in SEEDS]
    losses = [job for record in records for job in record.jobs if job.redone]
    assert losses
    assert all(job.lost_work_s > 0.0 for job in losses)


def test_foresight_sizes_unsaved_jobs_for_life():
    """A long job arrives in an idle cluster between two bursts; the second burst does not wait for it."""
    bursts = (
        make_traced(f"short-{at:.0f}-{n}", at=at, iterations=200.0, options=(1, 2))
        for at in (0.0, 900.0)
        for n in range(12)
    )
    long = with_checkpoint(
        make_traced("long", at=800.0, iterations=50_000.0, options=(1, 2, 4, 8)), Kind.NONE
    )
    setting = Setting(nodes=NODES, costs=COSTS)
    record = World(make_workload(*bursts, long), setting, policy=policies.make("foresight")).play()
    ends = {str(job.job): job.completed_at or math.inf for job in record.jobs}
    assert lost(record) == 0.0
    assert max(end for job, end in ends.items() if job != "long") < 3000.0
    assert ends["long"] < 50_000.0


def test_job_keeps_its_gpus_during_its_trial():
    """It grows when its checkpoint is confirmed, not when the other job ends."""

    def grows_at(trial_s: float) -> float:
        first = make_traced("first", at=0.0, iterations=100.0, options=(2,))
        second = make_traced("second", at=0.0, iterations=5000.0, options=(2, 4))
        setting = Setting(nodes=NODES[:1], costs=COSTS, trial_s=trial_s)
        record = World(
            make_workload(first, second), setting, policy=policies.make("max-min")
        ).play()
        assert lost(record) == 0.0
        return times_of(record, Happening.ADDING, "second")[0]

    assert grows_at(0.0) < 400.0
    assert grows_at(900.0) > 900.0


def test_savings_are_drawn_by_seed():
    workload = make_workload(*(make_traced(f"job-{n}", iterations=1.0) for n in range(400)))
    drawn = draw_checkpoints(workload, none=0.5, broken=0.25, seed=1)
    assert draw_checkpoints(workload, none=0.5, broken=0.25, seed=1) == drawn
    assert draw_checkpoints(workload, none=0.0, broken=0.0, seed=1) is workload
    none = sum(not each.declares for each in drawn.jobs)
    broken = sum(each.declares and not each.saves for each in drawn.jobs)
    assert 160 < none < 240
    assert 60 < broken < 140


@pytest.mark.parametrize("policy", ["foresight", "adaptive", "fifo"])
def test_only_higher_priority_costs_work(policy):
    for seed in SEEDS:
        record = play(seed, policy, levels=2)
        assert all(job.completed_at is not None for job in record.jobs)
        top = {t.job.id for t in make_history(seed, levels=2).jobs if t.job.priority == 1}
        assert all(job.redone == 0.0 for job in record.jobs if job.job in top)


# Policies that hold GPUs for the first job in the queue, or stop others for it.
TAKE_TURNS = ["max-min", "srtf", "tiresias"]


# Policies that prefer narrow jobs if these save themselves.
TAKE_NARROW = ["foresight", "srsf"]


@pytest.mark.parametrize(
    ("policy", "saves"), [*product(TAKE_TURNS, [True, False]), *product(TAKE_NARROW, [False])]
)
def test_wide_job_is_not_starved_by_narrow_ones(policy, saves):
    """A narrow job of 2.5 hours arrives each hour; the wide one needs all GPUs."""
    hour = 3600.0
    stream = [
        make_traced(f"narrow-{n}", at=n * hour, iterations=2.5 * hour, options=(1,))
        for n in range(30)
    ]
    wide = make_traced("wide", at=hour / 2, iterations=hour, options=(4,))
    jobs = (replace(job, saves=saves) for job in (wide, *stream))
    setting = Setting(nodes=NODES[:1], costs=COSTS, keeps_work=True)
    record = World(make_workload(*jobs), setting, policy=policies.make(policy)).play()
    assert times_of(record, Happening.GRANTED, "wide")[0] < 8 * hour
    assert lost(record) == 0.0
