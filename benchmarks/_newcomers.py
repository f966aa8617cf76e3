"""Unmeasured jobs, each of a type of its own: drawn for benchmarks of deciding in ignorance."""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dljob.core.model import Checkpoint, Cluster, GpuDemand, Job, JobId, Mechanism, Training
from dljob.core.predicting.predictor import Predictor
from dljob.core.profiles import Costs, JobType, Profile, Speed
from dljob.sim.clusters import Machines, build_packed
from dljob.sim.jobs.sampling import set_load
from dljob.sim.jobs.scaling import load_standard_curves
from dljob.sim.jobs.workloads import Course, TracedJob, Workload
from dljob_wire.messages import Shape

MACHINES = [Machines(2, 8)]
NODES = build_packed(MACHINES)
COUNTS = (1, 2, 4, 8, 16)
Range = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """What a stream of jobs is drawn from. Times are in seconds."""

    jobs: int = 80
    load: float = 0.9
    start_s: Range = (20.0, 120.0)
    save_s: Range = (1.0, 60.0)
    length_s: Range = (20.0, 7200.0)
    """On the requested GPUs."""
    speed: Range = (0.1, 100.0)
    """Iterations a second on the requested GPUs."""
    warm_up_s: float = 30.0
    warm_up_pace: Range = (0.1, 0.5)
    crash: float = 0.08
    """The share of jobs that crash again and again."""
    mute: float = 0.08
    """The share that never reports progress."""
    untold: float = 0.15
    """The share whose length no user states."""


def draw(stream: Stream, seed: int) -> Workload:
    """Draw a stream; its jobs are the same for each policy, known or not."""
    chance = random.Random(f"{seed}/newcomers")
    cluster, curves = Cluster(NODES), load_standard_curves()
    predictor = Predictor(
        profiles=curves, costs=Costs(), mechanism=Mechanism.IN_PLACE, cluster=cluster
    )
    kinds = sorted({kind for kind in curves if predictor.speed(_like(kind), Shape(1, 1, "")) > 0})
    profiles: dict[JobType, Profile] = {}
    jobs: list[TracedJob] = []
    now = 0.0
    for number in range(stream.jobs):
        traced, profile = _draw_job(stream, number, chance, predictor, chance.choice(kinds))
        now += chance.expovariate(1.0)
        jobs.append(replace(traced, job=replace(traced.job, submitted_at=now)))
        profiles[profile.type] = profile
    return set_load(
        Workload(f"newcomers-{seed}", tuple(jobs), profiles, profiles), cluster, load=stream.load
    )


def forget(workload: Workload) -> Workload:
    """Take away all that policies know of the jobs."""
    return replace(workload, known={})


def inform(workload: Workload) -> Workload:
    """Let policies know all: also what each warm-up costs, as a part of the start."""
    known: dict[JobType, Profile] = {}
    courses: Mapping[JobType, Course] = {each.job.type: each.course for each in workload.jobs}
    for kind, profile in workload.truths.items():
        course, costs = courses[kind], profile.costs
        assert costs is not None
        start = costs.process_initialization + course.warm_up_s * (1.0 - course.warm_up_pace)
        known[kind] = replace(profile, costs=replace(costs, process_initialization=start))
    jobs = tuple(_tell(each) for each in workload.jobs)
    return replace(workload, known=known, jobs=jobs)


def _tell(traced: TracedJob) -> TracedJob:
    training = replace(traced.job.training, iterations=math.ceil(traced.iterations))
    return replace(traced, job=replace(traced.job, training=training), believed=None)


def _draw_job(
    stream: Stream, number: int, chance: random.Random, predictor: Predictor, curve: JobType
) -> tuple[TracedJob, Profile]:
    least = chance.choice((1, 1, 1, 2))
    most = chance.choice((4, 8, 16))
    options = tuple(count for count in COUNTS if least <= count <= most)
    requested = chance.choice(options[:3])
    relative = {
        count: predictor.speed(_like(curve), predictor.shape(count, "")) for count in options
    }
    speed = _draw_log(chance, stream.speed)
    speeds = {
        predictor.shape(count, ""): Speed(speed * value / relative[requested])
        for count, value in relative.items()
    }
    kind = JobType.of_one_job(f"job-{number:03d}")
    costs = Costs(
        process_initialization=chance.uniform(*stream.start_s),
        checkpoint=_draw_log(chance, stream.save_s),
        process_termination=1.0,
    )
    # The fewest that a job does: a step and a bit.
    iterations = max(2.0, speed * _draw_log(chance, stream.length_s))
    fate = chance.random()
    course = Course(
        warm_up_s=stream.warm_up_s,
        warm_up_pace=chance.uniform(*stream.warm_up_pace),
        crashes_after_s=chance.uniform(5.0, 60.0) if fate < stream.crash else math.inf,
        is_mute=stream.crash <= fate < stream.crash + stream.mute,
    )
    is_told = chance.random() >= stream.untold
    job = Job(
        id=JobId(f"job-{number:03d}"),
        gpus=GpuDemand(options=options, requested=requested),
        training=Training(iterations=math.ceil(iterations) if is_told else None),
        type=kind,
        checkpoint=Checkpoint(shared=True, signal="SIGUSR1"),
    )
    traced = TracedJob(
        job, float(math.ceil(iterations)), course=course, believed=None if is_told else math.inf
    )
    return traced, Profile(kind, speeds=speeds, costs=costs)


def _like(kind: JobType) -> Job:
    """A job of a type, for questions about its speed."""
    demand = GpuDemand(options=COUNTS, requested=1)
    return Job(id=JobId("any"), gpus=demand, training=Training(), type=kind)


def _draw_log(chance: random.Random, between: Range) -> float:
    low, high = between
    return math.exp(chance.uniform(math.log(low), math.log(high)))
