"""
No policy beats the bound, for all traces, clusters and costs.

A violation is an error of the simulator, a policy or the bound. *Any* prices must prove a true bound,
so random prices are compared with every policy as well.
"""

import math
import random
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from dljob.core.contract import Decision, View
from dljob.core.model import (
    BatchRange,
    Checkpoint,
    GpuDemand,
    Job,
    JobId,
    Mechanism,
    Node,
    Training,
)
from dljob.core.placement.limits import NamespaceLimits
from dljob.core.profiles import Costs, JobType, Profile, Speed
from dljob.sim import policies
from dljob.sim.engine.settings import Outage, Setting
from dljob.sim.engine.world import World
from dljob.sim.jobs.noise import Noise
from dljob.sim.jobs.workloads import TracedJob, Workload
from dljob.sim.results.records import Record
from dljob_lab.bounding.bounds import CLOCK_S, bound_mean_jct
from dljob_lab.bounding.demands import read_demands
from dljob_lab.bounding.dual import Dual, Market
from dljob_wire.messages import Shape
from tests.builders import FakePolicy
from tests.core.examples import few_examples
from tests.sim.worlds import COSTS, make_short

OPTIONS = [(1,), (2,), (4,), (1, 2), (1, 2, 4), (2, 4, 8), (1, 3, 6), (1, 2, 3, 4, 5, 6, 7, 8)]
PER_GPU = Costs(
    pod_initialization=5.0,
    pod_initialization_per_gpu=2.0,
    process_initialization=3.0,
    process_initialization_per_gpu=1.0,
    checkpoint=2.0,
    process_termination=1.0,
    pod_termination=9.0,
)
MODELS = ("linear", "flat", "super", "peaked", "spread")
TYPES = ("V100", "K80")


BATCH = 64
NOISES = (None, Noise((0.0,), (20.0,)), Noise((0.0, 0.3, 0.7), (5.0, 200.0, 50_000.0)))


@dataclass(frozen=True)
class Case:
    """A workload and a world for it."""

    workload: Workload
    setting: Setting


def speed_of(model: str, gpus: int, nodes: int, gpu_type: str) -> float:
    """Curves of every kind: concave, better than linear, falling, faster on several nodes."""
    packed: float = {
        "linear": float(gpus),
        "flat": gpus**0.3,
        "super": gpus**1.4,
        "peaked": gpus / (1.0 + (gpus / 3.0) ** 2),
        "spread": gpus**0.7 * nodes**0.2,
    }[model]
    lost: float = 1.0 if model == "spread" else nodes**-0.3
    return packed * lost * {"": 1.0, "V100": 1.0, "K80": 0.4}[gpu_type]


def make_profiles() -> dict[JobType, Profile]:
    profiles = {}
    for model in MODELS:
        speeds = {
            Shape(gpus, nodes, kind): Speed(speed_of(model, gpus, nodes, kind))
            for kind in ("", *TYPES)
            for gpus in range(1, 13)
            for nodes in range(1, min(gpus, 4) + 1)
        }
        profiles[JobType(model)] = Profile(JobType(model), speeds)
    for batch in (BATCH, 4 * BATCH):
        kind = JobType("batched", "", batch)
        speeds = {
            # An iteration with four times the batch takes two and a half times as long.
            Shape(gpus, 1, gpu_type): Speed(gpus**0.6 / (0.5 + 0.5 * batch / BATCH))
            for gpu_type in ("", *TYPES)
            for gpus in (1, 2, 4, 8)
        }
        profiles[kind] = Profile(kind, speeds)
    return profiles


def draw_job(drawn: random.Random, number: int) -> TracedJob:
    options = drawn.choice(OPTIONS)
    iterations = drawn.choice([0.0, 0.5, 10.0, 300.0, 300.0, 4000.0, 90_000.0])
    demand = GpuDemand(
        options=options,
        requested=drawn.choice(options),
        types=drawn.choice([(), (), (), ("V100",), ("K80", "V100")]),
        mixed=drawn.random() < 0.3,
        max_nodes=drawn.choice([None, None, None, 1, 2]),
    )
    job = Job(
        id=JobId(drawn.choice(["", "", "team/"]) + f"job-{number}"),
        gpus=demand,
        training=Training(iterations=max(1, int(iterations))),
        type=JobType(drawn.choice(MODELS)),
        submitted_at=drawn.choice([0.0, 0.0, 7.0, 100.0, 1234.5]),
        priority=drawn.choice([0, 0, 0, 1]),
        suspend=drawn.random() < 0.03,
        checkpoint=Checkpoint(shared=drawn.random() < 0.8),
    )
    return (
        draw_elastic(drawn, TracedJob(job, iterations))
        if drawn.random() < 0.3
        else TracedJob(job, iterations)
    )


def draw_elastic(drawn: random.Random, traced: TracedJob) -> TracedJob:
    """Make the batch of a job elastic, of a type measured with two batches or with none."""
    job = traced.job
    elastic = replace(
        job,
        training=replace(job.training, batch_size=BATCH),
        type=drawn.choice([job.type, JobType("batched", "", BATCH)]),
        batch=BatchRange(elastic=True, maximum=drawn.choice([BATCH, 3 * BATCH, 16 * BATCH])),
    )
    return replace(traced, job=elastic, noise=drawn.choice(NOISES))


def draw_case(seed: int) -> Case:
    """A few jobs on a few nodes of one or two types, all from one number."""
    drawn = random.Random(seed)
    kinds = drawn.choice([("",), ("",), TYPES])
    nodes = tuple(
        Node.of(f"n{number}", drawn.randint(1, 4), drawn.choice(kinds))
        for number in range(drawn.randint(1, 4))
    )
    jobs = tuple(draw_job(drawn, number) for number in range(drawn.randint(1, 7)))
    if kinds == ("",):
        jobs = tuple(
            replace(j, job=replace(j.job, gpus=replace(j.job.gpus, types=()))) for j in jobs
        )
    outages = (Outage(nodes[0].name, 50.0, 400.0),) if drawn.random() < 0.2 else ()
    profiles = make_profiles()
    setting = Setting(
        nodes=nodes,
        mechanism=drawn.choice(list(Mechanism)),
        costs=drawn.choice([Costs(), Costs(process_initialization=30.0), COSTS, PER_GPU]),
        seed=seed % 5,
        outages=outages,
        checkpoint_every_s=60.0,
        limits=NamespaceLimits(max_gpus={"team": 4} if drawn.random() < 0.2 else {}),
    )
    ordered = tuple(sorted(jobs, key=lambda each: each.job.submitted_at))
    return Case(Workload(f"case {seed}", ordered, profiles, profiles), setting)


@dataclass(frozen=True)
class AnyBatch(FakePolicy):
    """``max-min`` with a random allowed batch for each elastic job."""

    def allocate(self, view: View) -> Decision:
        decision = policies.make("max-min").allocate(view)
        elastic = {s.id: s.job for s in (*view.running, *view.pending) if s.job.batch.elastic}
        shares = {
            job: share._replace(batch_size=self._draw(elastic[job], view.seed))
            if job in elastic
            else share
            for job, share in decision.shares.items()
        }
        return replace(decision, shares=shares)

    def _draw(self, job: Job, seed: int) -> int:
        most = job.batch.maximum
        return random.Random(f"{job.id} {seed}").choice([1, BATCH, 2 * BATCH, most, most])


def draw_elastic_case(seed: int) -> Case:
    """A case with elastic batches and free starts, so that bounds are close."""
    drawn, case = random.Random(seed), draw_case(seed)
    jobs = tuple(draw_elastic(drawn, each) for each in case.workload.jobs[:3])
    setting = replace(case.setting, costs=Costs(), outages=(), limits=NamespaceLimits())
    return Case(replace(case.workload, jobs=jobs), setting)


def can_be_bounded(case: Case) -> bool:
    return bool(read_demands(case.workload, case.setting).jobs)


def play(case: Case, name: str) -> Record:
    return World(case.workload, case.setting, policy=make_short(name)).play()


# Numbers instead of cases, because a failure shows the drawn value.
numbers = st.integers(0, 1_000_000).filter(lambda number: can_be_bounded(draw_case(number)))


def mean_jct(record: Record, jobs: int) -> float:
    """Return the mean completion time; infinite if a policy left jobs waiting."""
    times = [job.jct for job in record.completed]
    return sum(times) / jobs if len(times) == jobs else math.inf


@few_examples(7)
@given(number=numbers)
def test_no_policy_beats_the_bound(number):
    case = draw_case(number)
    bound = bound_mean_jct(case.workload, case.setting, rounds=8)
    for name in policies.NAMES:
        assert mean_jct(play(case, name), bound.jobs) >= bound.avg_jct_s, name


@few_examples(7)
@given(number=st.integers(0, 1_000_000))
def test_no_batch_beats_the_bound(number):
    case = draw_elastic_case(number)
    assume(can_be_bounded(case))
    bound = bound_mean_jct(case.workload, case.setting, rounds=8)
    for policy in (make_short("ones"), AnyBatch()):
        record = World(case.workload, case.setting, policy=policy).play()
        assert mean_jct(record, bound.jobs) >= bound.avg_jct_s, type(policy)


@few_examples(7)
@given(number=numbers, seed=st.integers(0, 1000))
def test_any_prices_give_a_valid_bound(number, seed):
    case = draw_case(number)
    demands = read_demands(case.workload, case.setting)
    count = len(demands.jobs)
    drawn = np.random.default_rng(seed)
    last = max(job.submitted_at + job.alone_s for job in demands.jobs)
    edges = np.concatenate([[0.0], np.sort(drawn.uniform(0.0, last, 10)), [last + 1.0]])
    prices = drawn.random((len(edges) - 1, len(demands.gpus)))
    prices *= drawn.choice([0.01, 0.1, 1.0, 10.0]) * (drawn.random(prices.shape) < 0.8)
    proven = Dual(demands.jobs, Market(demands.gpus, edges)).prove(prices).total_s / count
    for name in policies.NAMES:
        assert mean_jct(play(case, name), count) >= proven - CLOCK_S, name
