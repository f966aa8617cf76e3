"""
``dljob profiles measure``: the offline profiling of the SideCar paper, section III.B.

A job runs for a while on each number of GPUs, on a controller of its own, and what that learns of
it there goes into the store.
"""

import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from dljob.cli.inputs.ending import run_to_the_end
from dljob.cli.output.messages import say
from dljob.control.scheduling import Options
from dljob.core.documents import jobfile
from dljob.core.model import Job, Mechanism
from dljob.core.predicting import mini_epochs
from dljob.core.profiles import (
    AccuracySeen,
    CostSeen,
    CostTerm,
    Observation,
    Profile,
    SpeedSeen,
)
from dljob.local.gpus import devices
from dljob.local.gpus.devices import RealGpus, Supply
from dljob.local.gpus.gpu_choices import GpuChoiceError
from dljob.local.gpus.nvml import NoGpusError
from dljob.local.measuring import Bench, GivenGpus, StuckError
from dljob.local.pods import trainers
from dljob.local.profiling import Course, profile_in_mini_epochs, profile_job
from dljob.local.setup import Setup
from dljob.sim.clusters import Machines, build_packed
from dljob.sim.errors import BadInput
from dljob.sim.inputs import yamlfiles
from dljob.store.store import Store, fold_into
from dljob_wire.problems import Problem

Document = dict[str, Any]

MINI_EPOCH_SHARES = 3
"""A mini-epoch lasts as long as warming up, measuring, and as much again: 30 s where ``--seconds`` is 10."""


def measure(
    file: Path,
    counts: Sequence[int] | None,
    cluster: tuple[Machines, ...] | None,
    *,
    seconds: float,
    rounds: int,
    mechanism: Mechanism,
    in_mini_epochs: bool = False,
) -> Profile:
    """Measure the job of a file, and report the progress."""
    document, job = read_job(file)
    if in_mini_epochs:
        counts = mini_epochs.count_gpus(job.gpus.options)
    counts = counts or job.gpus.options
    check(file, job, counts)
    # The folder goes last: `run_to_the_end` returns when the
    # processes that write there have ended, also after Ctrl-C.
    with _quiet("dljob.local"), tempfile.TemporaryDirectory(prefix="dljob-measure-") as folder:
        supply = find_gpus(cluster, max(counts))
        setup = Setup(
            state=Path(folder) / "state",
            nodes=supply.nodes,
            real_gpus=supply.real,
            virtual_gpus=cluster is not None,
            options=Options(policy=GivenGpus(), mechanism=mechanism),
            sample_seconds=seconds,
            poll_seconds=min(1.0, seconds / 4),
        )
        course = Course(counts=counts, rounds=rounds, patience_s=600.0 + 20 * seconds)
        length_s = MINI_EPOCH_SHARES * seconds if in_mini_epochs else None
        try:
            return run_to_the_end(_measure(setup, document, course=course, mini_epoch_s=length_s))
        except StuckError as error:
            raise click.ClickException(f"{error}; its logs are gone; run the job alone") from error


async def _measure(
    setup: Setup, document: Document, *, course: Course, mini_epoch_s: float | None
) -> Profile:
    async with Bench(setup) as bench:
        if mini_epoch_s is None:
            return await profile_job(bench, document, course=course, watch=say)
        return await profile_in_mini_epochs(
            bench, document, seconds=mini_epoch_s, patience_s=course.patience_s, watch=say
        )


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Set a logger to errors, because this verb reports the rest."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def keep(store: Store, measured: Profile, seconds: float) -> Profile:
    """Store the measurements as observations of an ordinary job."""
    stored = fold_into(store, measured.type, observations=list(_observations(measured, seconds)))
    return stored.profile or measured


def _observations(measured: Profile, seconds: float) -> Iterator[Observation]:
    for shape, speed in measured.speeds.items():
        for each in speed.recent:
            yield SpeedSeen(shape, each, max(seconds, 10.0 / each), speed.seen_at)
    for point in measured.accuracy:
        yield AccuracySeen(point.iteration, point.value)
    for term, samples in measured.cost_samples.items():
        for sample in samples:
            yield CostSeen(CostTerm(term), sample)


def read_job(file: Path) -> tuple[Document, Job]:
    found = [(line, content) for line, content in yamlfiles.load(file) if content is not None]
    if len(found) != 1:
        remedy = "put the job that you measure into a file of its own"
        raise BadInput(file, f"holds {len(found)} documents", remedy=remedy)
    ((line, document),) = found
    return document, jobfile.parse(document, source=f"{file}:{line}", require_template=True)


def check(file: Path, job: Job, counts: Sequence[int]) -> None:
    """Refuse a job that cannot be measured, with all reasons."""
    problems = [*trainers.problems_here(job)]
    if job.type.is_of_one_job:
        remedy = "name the model; it is the key of the profile"
        problems.append(Problem("spec.profile.model", None, "is missing", remedy))
    options = ", ".join(map(str, job.gpus.options))
    problems += [
        Problem("--gpus", count, f"{count} is not an option of the job", f"give some of {options}")
        for count in counts
        if count not in job.gpus.options
    ]
    if problems:
        raise jobfile.JobFileError(tuple(problems), str(file))


def find_gpus(cluster: tuple[Machines, ...] | None, needed: int) -> Supply:
    """Find the GPUs to measure on; raises if there are too few."""
    if cluster is not None:
        nodes = build_packed(cluster)
        supply = Supply(lambda: nodes)
    else:
        real = _find_real()
        supply = Supply(real.nodes, real)
    there = sum(len(node.gpus) for node in supply.nodes())
    if there < needed:
        raise click.UsageError(f"there are {there} GPUs and {needed} are to be measured")
    return supply


def _find_real() -> RealGpus:
    try:
        return devices.find_gpus(environment=os.environ)
    except NoGpusError as error:
        message = "NVML finds no GPU here; give --cluster 1x4 for four virtual ones"
        raise click.ClickException(message) from error
    except GpuChoiceError as error:
        raise click.ClickException(str(error)) from error
