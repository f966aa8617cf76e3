"""The lower bound against exactly known optima, and against worlds where its parts show."""

import random
from dataclasses import replace

import pytest

from dljob.core.model import BatchRange, Cluster, GpuDemand, Job, JobId, Mechanism, Node, Training
from dljob.core.predicting.predictor import Predictor
from dljob.core.profiles import Costs, JobType, Profile, Speed
from dljob.sim import policies
from dljob.sim.engine.settings import Setting
from dljob.sim.engine.world import World
from dljob.sim.errors import BadInput
from dljob.sim.jobs.noise import Noise
from dljob.sim.jobs.workloads import TracedJob, Workload
from dljob_lab.bounding.batches import SLACK
from dljob_lab.bounding.bounds import CLOCK_S, Bound, bound_mean_jct
from dljob_wire.messages import Shape
from tests.sim.optima import Small, hesrpt_total, least_total
from tests.sim.worlds import make_traced, make_workload

FREE = Costs()


def make_jobs(*jobs: Small) -> Workload:
    """Jobs with a type each, whose speed does not depend on the number of nodes."""
    traced, profiles = [], {}
    for number, job in enumerate(jobs):
        kind = JobType(f"small-{number}")
        speeds = {Shape(gpus, 1): Speed(speed) for gpus, speed in job.speeds.items()}
        profiles[kind] = Profile(kind, speeds)
        options = tuple(job.speeds)
        traced.append(
            TracedJob(
                Job(
                    id=JobId(f"job-{number}"),
                    gpus=GpuDemand(options=options, requested=options[0]),
                    training=Training(iterations=max(1, int(job.work))),
                    type=kind,
                    submitted_at=job.submitted_at,
                ),
                job.work,
            )
        )
    ordered = tuple(sorted(traced, key=lambda each: each.job.submitted_at))
    return Workload("small", ordered, profiles, profiles)


def bound_of(workload: Workload, *nodes: Node, rounds: int = 100, **setting: object) -> Bound:
    given = {"costs": FREE, **setting}
    return bound_mean_jct(workload, Setting(nodes=nodes, **given), rounds=rounds)  # type: ignore[arg-type]


def one_node(gpus: int) -> Node:
    return Node.of("all", gpus)


def make_elastic(noise: Noise | None, *, maximum: int) -> TracedJob:
    """A job of batch 64 with a type that was measured with batches of 64 and of 256."""
    job = make_traced("elastic", options=(1,)).job
    elastic = replace(
        job,
        type=JobType("batched", "", 64),
        training=replace(job.training, batch_size=64),
        batch=BatchRange(elastic=True, maximum=maximum),
    )
    return TracedJob(elastic, 1000.0, noise=noise)


def profile_batches() -> dict[JobType, Profile]:
    kinds = {JobType("batched", "", 64): 1.0, JobType("batched", "", 256): 0.4}
    return {kind: Profile(kind, {Shape(1, 1): Speed(speed)}) for kind, speed in kinds.items()}


def test_lone_job_runs_at_its_highest_speed():
    bound = bound_of(make_workload(make_traced("a", iterations=1000.0)), one_node(4))
    assert bound.avg_jct_s == pytest.approx(250.0, abs=1e-5)
    assert bound.jobs == 1


@pytest.mark.parametrize(
    ("power", "sizes"),
    [
        (0.5, [10.0, 20.0, 50.0, 100.0, 200.0, 400.0, 1000.0, 3000.0]),
        (0.7, [5.0, 5.0, 70.0, 80.0, 300.0, 2000.0]),
    ],
)
def test_bound_is_within_three_percent_of_hesrpt(power, sizes):
    gpus = 120
    speeds = {count: count**power for count in range(1, gpus + 1)}
    workload = make_jobs(*(Small(0.0, size, speeds) for size in sizes))
    bound = bound_of(workload, one_node(gpus), rounds=60)
    optimum = hesrpt_total(sizes, gpus, power) / len(sizes)
    # Whole GPUs are a little worse than shares, so that the bound may be that much above.
    assert 0.97 * optimum <= bound.avg_jct_s <= 1.003 * optimum


def draw_small(drawn: random.Random, gpus: int) -> Small:
    options = sorted(drawn.sample(range(1, gpus + 1), drawn.randint(1, gpus)))
    speeds = {
        count: drawn.choice([1.0, count**0.6, count**1.2, drawn.uniform(0.5, 3.0)])
        for count in options
    }
    return Small(drawn.choice([0.0, 0.0, 3.0]), drawn.choice([1.0, 5.0, 20.0]), speeds)


def test_bound_is_close_to_the_best_schedule():
    parts = []
    for seed in range(4):
        drawn = random.Random(seed)
        gpus = drawn.randint(2, 3)
        jobs = [draw_small(drawn, gpus) for _ in range(drawn.randint(2, 3))]
        optimum = least_total(jobs, gpus) / len(jobs)
        bound = bound_of(make_jobs(*jobs), one_node(gpus), rounds=60)
        assert bound.avg_jct_s <= optimum * (1.0 + 1e-9)
        parts.append(bound.avg_jct_s / optimum)
    # Duality leaves a gap where two or three jobs cannot be shared out; with more it closes.
    assert min(parts) >= 0.8
    assert sum(parts) / len(parts) >= 0.95


def test_start_occupies_gpus():
    jobs = [make_traced(str(each), iterations=10.0, options=(1,)) for each in range(20)]
    bound = bound_of(make_workload(*jobs), one_node(1), costs=Costs(process_initialization=30.0))
    best = 40.0 * (20 + 1) / 2
    assert 0.9 * best <= bound.avg_jct_s <= best


def test_recreated_pods_occupy_gpus():
    jobs = [make_traced(str(each), iterations=10.0, options=(1,)) for each in range(8)]
    workload, costs = make_workload(*jobs), Costs(pod_initialization=30.0)
    in_place = bound_of(workload, one_node(1), costs=costs)
    recreated = bound_of(workload, one_node(1), costs=costs, mechanism=Mechanism.RECREATE)
    # Early initialisation: the pods of all jobs start while others train.
    assert in_place.avg_jct_s <= 30.0 + 10.0 * (8 + 1) / 2
    assert recreated.avg_jct_s > 2.0 * in_place.avg_jct_s


def test_dropped_jobs_are_not_counted():
    jobs = (
        make_traced("small"),
        make_traced("large", options=(8,)),
        make_traced("wide", options=(2, 16)),
    )
    workload, setting = make_workload(*jobs), Setting(nodes=(one_node(4),), costs=FREE)
    bound = bound_mean_jct(workload, setting, rounds=5)
    record = World(workload, setting, policy=policies.make("srsf")).play()
    assert bound.dropped == len(record.dropped) == 2
    assert bound.jobs == len(record.jobs) == 1


def test_cluster_that_fits_no_job_is_refused():
    with pytest.raises(BadInput, match="no job that can run on 2 GPUs"):
        bound_of(make_workload(make_traced("a", options=(4,))), one_node(2))


def test_job_of_unknown_speed_is_refused():
    workload = replace(make_workload(make_traced("a")), truths={})
    with pytest.raises(BadInput, match="nothing is known of the speed of job a"):
        bound_of(workload, one_node(4))


@pytest.mark.parametrize(("maximum", "scales"), [(64, None), (256, (60.0,)), (700, (5.0, 400.0))])
def test_elastic_job_is_bounded_by_its_best_batch(maximum, scales):
    noise = Noise((0.0, 0.5)[: len(scales)], scales) if scales else None
    traced, profiles = make_elastic(noise, maximum=maximum), profile_batches()
    bound = bound_of(Workload("elastic", (traced,), profiles, profiles), one_node(1))
    truth = Predictor(
        profiles=profiles, costs=FREE, mechanism=Mechanism.IN_PLACE, cluster=Cluster([one_node(1)])
    )
    fastest = 0.0
    for batch in range(1, maximum + 1):
        # Of the two scales the larger makes more of a large batch, and the smaller of a small one.
        worth = max((scale + 64) / (scale + batch) for scale in scales) if scales else 1.0
        speed = truth.speed_with(traced.job, Shape(1, 1), batch_size=batch)
        fastest = max(fastest, speed * worth)
    assert 1000.0 / fastest / (1.0 + SLACK) - CLOCK_S <= bound.alone_s <= 1000.0 / fastest
