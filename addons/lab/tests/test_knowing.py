"""Policies with partial knowledge: the truth stays, and measurements are paid for."""

from dataclasses import replace

import pytest

from dljob.core.model import GpuDemand, Job, JobId, Mechanism, Training
from dljob.core.profiles import Costs, JobType, Profile, Speed
from dljob.sim import policies
from dljob.sim.clusters import Machines, build_packed
from dljob.sim.engine.settings import Setting
from dljob.sim.engine.world import World
from dljob.sim.jobs.workloads import TracedJob, Workload
from dljob_lab import knowing
from dljob_wire.messages import Shape

KIND = JobType("net")
SPEEDS = {1: 1.0, 2: 1.8, 4: 3.0}
COSTS = Costs(process_initialization=10.0)


def make_workload() -> Workload:
    speeds = {
        Shape(gpus, nodes, kind): Speed(speed / nodes)
        for gpus, speed in SPEEDS.items()
        for nodes in (1, 2)
        if nodes <= gpus
        for kind in ("K80", "V100")
    }
    profiles = {KIND: Profile(KIND, speeds)}
    job = Job(
        id=JobId("a"),
        gpus=GpuDemand(options=tuple(SPEEDS), requested=4),
        training=Training(iterations=300),
        type=KIND,
    )
    return Workload("one", (TracedJob(job, 300.0),), profiles, profiles)


def test_mini_epochs_know_two_smallest_packed_counts():
    whole = make_workload()
    workload = knowing.know_by_mini_epochs(whole)
    assert set(workload.known[KIND].speeds) == {Shape(1, 1, "K80"), Shape(2, 1, "K80")}
    assert workload.truths is whole.truths


def test_marginal_utility_covers_every_shape():
    workload = make_workload()
    believing = knowing.believe_marginal_utility(workload)
    assert set(believing.known[KIND].speeds) == set(workload.truths[KIND].speeds)
    assert believing.truths is workload.truths
    three = [speed for shape, speed in believing.known[KIND].speeds.items() if shape.gpus == 4]
    assert len(set(three)) < len(three), "it knows nothing of nodes"


def test_mini_epochs_are_paid_once_per_job():
    workload = make_workload()
    prices = knowing.price_mini_epochs(workload, COSTS, mechanism=Mechanism.IN_PLACE)
    assert prices == {KIND: pytest.approx(3 * 30.0 + 2 * 30.0 / 1.8 + 10.0)}
    setting = Setting(nodes=build_packed([Machines(1, 4, "V100")]), costs=COSTS)
    (free,) = World(workload, setting, policy=policies.make("fifo")).play().jobs
    paying = replace(setting, trials=prices)
    (paid,) = World(workload, paying, policy=policies.make("fifo")).play().jobs
    assert paid.jct - free.jct == pytest.approx(prices[KIND])
