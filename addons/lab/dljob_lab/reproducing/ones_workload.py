"""
The workload of the ONES paper (section 4.1, Table 2), as far as the paper describes it.

:mod:`dljob_lab.reproducing.ones` plays it. The paper names models, datasets and their sizes, and the
cluster. It does not say how many jobs there are, how they arrive, how many GPUs they request, and
how many epochs they train: these are assumed here, and ``docs/reproduction/ones.md`` says how.
"""

import math
import random
from collections.abc import Iterator, Mapping
from functools import cache
from statistics import fmean
from typing import NamedTuple

from dljob.core.model import BatchRange, Checkpoint, GpuDemand, Job, JobId, Training
from dljob.core.profiles import JobType, Profile, Speed
from dljob.sim.inputs.shipped import (
    SMALLEST_BATCH,
    StepTime,
    StepTimes,
    load_step_times,
)
from dljob.sim.jobs.noise import find_noise
from dljob.sim.jobs.workloads import TracedJob, Workload
from dljob_wire.messages import Shape

COUNTS = (1, 2, 4, 8, 16, 32, 64)
REQUESTS = (1, 1, 2, 2, 4, 4, 8)
"""The GPUs that users request, drawn at random from these."""

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


LARGEST: Mapping[str, int] = {"imagenet": 12800, "cifar10": 4096, "bert": 384}
"""The largest batch that Pollux's authors have trained to its end."""

SHARE_OF_DATASET = 10
"""No batch is larger than this part of the dataset, so that an epoch has steps to learn from."""


def list_kinds(*, vision_epochs: int = 10, text_epochs: int = 3) -> list[Kind]:
    """Table 2, which does not give the epochs to the target accuracy."""
    thousands = range(10, 21, 2)
    vision, text = vision_epochs + CONFIRMING, text_epochs + CONFIRMING
    return [
        *(Kind(m, "ImageNet", 1000 * n, vision) for m in IMAGENET for n in thousands),
        *(Kind(m, "CIFAR10", 1000 * n, vision) for m in CIFAR10 for n in range(20, 41, 5)),
        *(Kind(BERT[0], "CoLA", 1000 * n, text) for n in range(5, 9)),
        Kind(BERT[0], "MRPC", 3600, text),
        *(Kind(BERT[0], "SST-2", 1000 * n, text) for n in thousands),
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


def make_workload(
    *,
    jobs: int,
    interval_seconds: float,
    seed: int,
    elastic: bool = True,
    free: bool = False,
    requested: int = 0,
) -> Workload:
    """
    Draw jobs of Table 2 that arrive at random, with a given mean time between them.

    Where batches are not ``elastic`` they are fixed for all policies; where they are ``free``,
    large ones cost nothing in convergence. Users request GPUs at random, or all as many.
    """
    rng = random.Random(f"ones/{seed}")
    kinds = list_kinds()
    # Every kind as often as any other, in random order, as far as the number of jobs allows it.
    order = [
        kind for _ in range(math.ceil(jobs / len(kinds))) for kind in rng.sample(kinds, len(kinds))
    ]
    at, traced = 0.0, []
    profiles: dict[JobType, Profile] = {}
    for number, kind in enumerate(order[:jobs]):
        gpus = rng.choice(REQUESTS)
        each = _make_job(
            kind, number, at=at, requested=requested or gpus, elastic=elastic, free=free
        )
        traced.append(each)
        for batch in _batches(each.job):
            known = each.job.type._replace(batch_size=batch)
            if known not in profiles:
                profiles[known] = Profile(known, speeds_of(kind.model, batch))
        at += rng.expovariate(1.0 / interval_seconds)
    return Workload(f"ones-{seed}", tuple(traced), profiles, profiles)


def _make_job(
    kind: Kind, number: int, *, at: float, requested: int, elastic: bool, free: bool
) -> TracedJob:
    model, application = kind.model, kind.model.application
    smallest = SMALLEST_BATCH[application]
    # As users do: the batch that fits a GPU, on each of the GPUs that they request.
    batch = smallest * requested
    noise = find_noise(application, smallest)
    knots = [(progress + 0.5) / 10 for progress in range(10)]
    longer = fmean(1.0 / noise.worth(batch, own=smallest, progress=each) for each in knots)
    iterations = kind.epochs * kind.samples / batch * longer
    counts = {shape.gpus for shape in speeds_of(model, batch)}
    most = max(batch, min(LARGEST[application], kind.samples // SHARE_OF_DATASET))
    job = Job(
        id=JobId(f"{number:03}-{model.name}-{kind.dataset}"),
        gpus=GpuDemand(
            options=tuple(count for count in COUNTS if count in counts), requested=requested
        ),
        training=Training(
            iterations=math.ceil(iterations),
            iterations_per_epoch=math.ceil(kind.samples / batch),
            batch_size=batch,
        ),
        type=JobType(model.name, kind.dataset, batch),
        submitted_at=at,
        checkpoint=Checkpoint(shared=True),
        batch=BatchRange(elastic=True, maximum=most) if elastic else BatchRange(),
    )
    return TracedJob(job, iterations, noise=None if free else noise)


def _batches(job: Job) -> Iterator[int]:
    """The batches that a job can have: its own, and in step with its GPUs up to the limit."""
    own, most = job.training.batch_size, job.batch.maximum
    yield own
    if job.batch.elastic:
        each = own // job.gpus.requested
        yield from (each * count for count in job.gpus.options if each * count < most)
        yield most
