"""
The workload of the ONES paper (section 4.1, Table 2 and its appendix), as far as the paper describes it.

:mod:`dljob_lab.reproducing.ones` plays it. By the appendix, 400 jobs are sampled uniformly from Microsoft's
trace, and each is replaced by the job of Table 2 that is closest in GPU time; they arrive 30 s apart on
average, at random. The paper does not say how many epochs a job needs to its target: that is assumed here, and
``docs/reproduction/ones.md`` says how.
"""

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import NamedTuple

from dljob.core.model import BatchRange, Checkpoint, GpuDemand, Job, JobId, Target, Training
from dljob.core.profiles import JobType, Profile, Speed
from dljob.sim.inputs.shipped import (
    SMALLEST_BATCH,
    StepTime,
    StepTimes,
    find_folder,
    load_step_times,
)
from dljob.sim.inputs.tables import Table
from dljob.sim.jobs.learning import Learning
from dljob.sim.jobs.noise import find_noise
from dljob.sim.jobs.workloads import TracedJob, Workload
from dljob_wire.messages import Shape

GPUS_A_NODE = 4
COUNTS = (1, 2, 4, 8, 16, 32, 64)
REQUESTS = (1, 2, 4, 8, 16)
"""The GPUs that users request: as many as in the trace, if need be fewer, up to the smallest cluster of Figure 17."""

FASTER = 1.7
"""
How much faster the paper's V100 compute than the T4 of Pollux's measurements: Gavel measured ResNet-50
(batch 128) and ResNet-18 (batch 128) on one V100 1.6 and 1.9 times as fast as Pollux did on one T4.
"""


class Model(NamedTuple):
    """A model of Table 2, and the measured application that it scales like."""

    name: str
    application: str
    computes: float
    """Its time to compute a sample, over that of the application's own model: as ElasticFlow measured
    on one A100, or else by multiply-adds."""
    parameters: float
    """Its parameters, over those of the application's own model."""


IMAGENET = (
    Model("AlexNet", "imagenet", 0.72 / 3.8, 61.1 / 25.6),
    Model("ResNet50", "imagenet", 1.0, 1.0),
    Model("VGG16", "imagenet", 3.65537 / 2.62478, 138.4 / 25.6),
    Model("InceptionV3", "imagenet", 3.65537 / 2.5623, 23.8 / 25.6),
)
CIFAR10 = (
    Model("ResNet18", "cifar10", 1.0, 1.0),
    Model("VGG16", "cifar10", 0.31 / 0.56, 14.7 / 11.2),
    Model("GoogleNet", "cifar10", 1.53 / 0.56, 6.2 / 11.2),
)
BERT = (Model("BERT", "bert", 64 / 384, 1.0),)
"""Pollux measured it on sequences of 384 tokens; the sentences of these datasets fit into 64."""

CONFIRMING = 10
"""The number of epochs in a row that must exceed the target accuracy before a job ends."""


class Kind(NamedTuple):
    """One of the 50 workloads of Table 2."""

    model: Model
    dataset: str
    samples: int
    epochs: int
    """To the target accuracy."""


LARGEST: Mapping[str, int] = {"imagenet": 12800, "cifar10": 4096, "bert": 384}
"""The largest batch that Pollux's authors have trained to its end."""

SHARE_OF_DATASET = 10
"""No batch is larger than this part of the dataset, so that an epoch has steps to learn from."""

CURVES: Mapping[str, tuple[float, float, float, float]] = {
    "imagenet": (5.5, 1.6, 0.911, 0.037),
    "cifar10": (71.2, 1.31, 0.954, 0.009),
    "bert": (37.2, 4.7, 0.91, 0.0),
}
"""
How accuracy rises over the epochs to the target, ``c - 1 / (b0 x + b1)`` at the share x of them, and its
noise: fitted to what Pollux's authors logged with the smallest batch. Of BERT they logged two epochs, and c is assumed.
"""


def list_kinds(*, vision_epochs: int = 10, text_epochs: int = 3) -> list[Kind]:
    """Table 2, which does not give the epochs to the target accuracy."""
    thousands = range(10, 21, 2)
    return [
        *(Kind(m, "ImageNet", 1000 * n, vision_epochs) for m in IMAGENET for n in thousands),
        *(Kind(m, "CIFAR10", 1000 * n, vision_epochs) for m in CIFAR10 for n in range(20, 41, 5)),
        *(Kind(BERT[0], "CoLA", 1000 * n, text_epochs) for n in range(5, 9)),
        Kind(BERT[0], "MRPC", 3600, text_epochs),
        *(Kind(BERT[0], "SST-2", 1000 * n, text_epochs) for n in thousands),
    ]


@cache
def _measured(model: Model) -> Mapping[Shape, tuple[StepTime, ...]]:
    """Step times of a model on V100: the computed part by its multiply-adds, the rest by its size."""
    times = load_step_times()[model.application].measured
    scaled = {}
    for shape, steps in times.items():
        scaled[shape._replace(gpu_type="V100")] = tuple(
            StepTime(
                each.local_batch,
                (each.step - each.sync) * model.computes / FASTER + each.sync * model.parameters,
                each.sync * model.parameters,
            )
            for each in steps
        )
    return scaled


def speeds_of(model: Model, batch: int) -> dict[Shape, Speed]:
    """The speeds of a model at a global batch, for each shape that was measured with it."""
    return StepTimes(_measured(model)).speeds_at(batch)


class Sampled(NamedTuple):
    """A job of Microsoft's trace."""

    gpus: int
    seconds: float


@cache
def read_trace() -> tuple[Sampled, ...]:
    """Every twentieth job of the eleven virtual clusters that are published."""
    path = find_folder() / "ones" / "philly_twentieth.csv.gz"
    rows = Table.read(path, required=("num_gpus", "duration_s"))
    return tuple(Sampled(row.whole("num_gpus", least=1), row.seconds("duration_s")) for row in rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The workload of the paper, and what experiments change in it."""

    jobs: int = 400
    interval_s: float = 30.0
    elastic: bool = True
    """If false, batches are fixed for all policies."""
    free: bool = False
    """True if large batches cost nothing in convergence."""
    requested: int = 0
    """The GPUs that every job requests; 0: as many as in the trace."""
    reports: bool = True
    """If false, jobs declare their lengths instead of reporting their accuracy."""
    part: int = 1
    """A job of the trace counts with this part of its GPU time."""


PAPER = Rules()


def make_workload(seed: int, rules: Rules = PAPER) -> Workload:
    """Sample jobs from the trace, and replace each by the one of Table 2 that is closest in GPU time."""
    rng = random.Random(f"ones/{seed}")
    at, traced = 0.0, []
    profiles: dict[JobType, Profile] = {}
    for number, sampled in enumerate(rng.choices(read_trace(), k=rules.jobs)):
        gpus = rules.requested or max(count for count in REQUESTS if count <= sampled.gpus)
        kind = find_closest(sampled.gpus * sampled.seconds / rules.part, gpus)
        each = _make_job(kind, number, at=at, requested=gpus, rules=rules)
        traced.append(each)
        for batch in _batches(each.job):
            known = each.job.type._replace(batch_size=batch)
            if known not in profiles:
                profiles[known] = Profile(known, speeds_of(kind.model, batch))
        at += rng.expovariate(1.0 / rules.interval_s)
    return Workload("ones", tuple(traced), profiles, profiles)


@cache
def find_closest(gpu_seconds: float, gpus: int) -> Kind:
    """Return the workload of Table 2 whose time on these GPUs, times their number, is closest."""
    return min(list_kinds(), key=lambda kind: abs(seconds_of(kind, gpus) * gpus - gpu_seconds))


@cache
def seconds_of(kind: Kind, gpus: int) -> float:
    """Return how long a job trains alone on these GPUs, packed."""
    shape = Shape(gpus, -(-gpus // GPUS_A_NODE), "V100")
    batch = SMALLEST_BATCH[kind.model.application] * gpus
    return _count_iterations(kind, batch) / speeds_of(kind.model, batch)[shape].iterations_per_s


def _count_iterations(kind: Kind, batch: int, *, epochs: int | None = None) -> float:
    """Return how many iterations with this batch are worth all epochs with the smallest, or as many as are given."""
    smallest = SMALLEST_BATCH[kind.model.application]
    noise = find_noise(kind.model.application, smallest)
    knots = [(progress + 0.5) / 10 for progress in range(10)]
    longer = fmean(1.0 / noise.worth(batch, own=smallest, progress=each) for each in knots)
    return (epochs or kind.epochs + CONFIRMING) * kind.samples / batch * longer


def _make_job(kind: Kind, number: int, *, at: float, requested: int, rules: Rules) -> TracedJob:
    model, application = kind.model, kind.model.application
    smallest = SMALLEST_BATCH[application]
    # As users do: the batch that fits a GPU, on each of the GPUs that they request.
    batch = smallest * requested
    iterations = _count_iterations(kind, batch)
    counts = {shape.gpus for shape in speeds_of(model, batch)}
    most = max(batch, min(LARGEST[application], kind.samples // SHARE_OF_DATASET))
    learning = _make_learning(kind, batch, seed=number) if rules.reports else None
    target = None
    if learning is not None:
        reached = learning.truth_at(_count_iterations(kind, batch, epochs=kind.epochs))
        target = Target(metric="accuracy", value=reached, patience=CONFIRMING)
    job = Job(
        id=JobId(f"{number:03}-{model.name}-{kind.dataset}"),
        gpus=GpuDemand(
            options=tuple(count for count in COUNTS if count in counts), requested=requested
        ),
        training=Training(
            iterations=None if rules.reports else math.ceil(iterations),
            iterations_per_epoch=math.ceil(kind.samples / batch),
            batch_size=batch,
            target=target,
        ),
        type=JobType(model.name, kind.dataset, batch),
        submitted_at=at,
        checkpoint=Checkpoint(shared=True),
        batch=BatchRange(elastic=True, maximum=most) if rules.elastic else BatchRange(),
    )
    noise = None if rules.free else find_noise(application, smallest)
    return TracedJob(job, iterations, learning=learning, noise=noise)


def _make_learning(kind: Kind, batch: int, *, seed: int) -> Learning:
    b0, b1, c, sigma = CURVES[kind.model.application]
    to_target = _count_iterations(kind, batch, epochs=kind.epochs)
    return Learning(b0=b0 / to_target, b1=b1, c=c, sigma=sigma, seed=seed)


def _batches(job: Job) -> Iterator[int]:
    """The batches that a job can have: its own, and in step with its GPUs up to the limit."""
    own, most = job.training.batch_size, job.batch.maximum
    yield own
    if job.batch.elastic:
        each = own // job.gpus.requested
        yield from (each * count for count in job.gpus.options if each * count < most)
        yield most
